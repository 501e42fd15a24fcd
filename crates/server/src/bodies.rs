//! Bodies of requests that are held in memory: as many bytes as may be, within a time, counted as they come.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::StatusCode;
use bytes::BytesMut;
use futures_util::StreamExt as _;

use crate::account::Account;
use crate::e2b::envd::rest::discard;
use crate::error::ApiError;

/// How often a body's bytes count: as they came, as they are understood, and as they are used.
pub const TIMES: u64 = 3;

/// What a sender may take its time for.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Until something comes.
    pub pause: Duration,
    /// Until all is there.
    pub whole: Duration,
}

/// What all get.
pub const PATIENCE: Patience = Patience { pause: Duration::from_secs(30), whole: Duration::from_secs(300) };

/// Reads a body to its end. 413 if it is longer than `most`, 408 if it takes too long, 503 if there is no memory for it.
pub async fn whole(body: Body, most: usize, account: Option<&Account>, patience: Patience) -> Result<Bytes, ApiError> {
    let too_large = || ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than this path takes");
    let announced = body.size_hint().lower();
    let mut pieces = body.into_data_stream();
    if announced > most as u64 {
        discard(&mut pieces).await;
        return Err(too_large());
    }
    let reading = async {
        let mut read = BytesMut::new();
        while let Some(piece) =
            tokio::time::timeout(patience.pause, pieces.next()).await.map_err(|_| too_slow(patience.pause))?
        {
            let piece = piece.map_err(|error| ApiError::bad_request(format!("the body broke off: {error}")))?;
            if read.len() + piece.len() > most {
                drop(read);
                discard(&mut pieces).await;
                return Err(too_large());
            }
            if let Some(account) = account {
                account.charge(piece.len() as u64 * TIMES)?;
            }
            read.extend_from_slice(&piece);
        }
        Ok(read.freeze())
    };
    tokio::time::timeout(patience.whole, reading).await.unwrap_or_else(|_| Err(too_slow(patience.whole)))
}

fn too_slow(time: Duration) -> ApiError {
    let message = format!("the body did not come within {} seconds: send it again", time.as_secs());
    ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    const SHORT: Patience = Patience { pause: Duration::from_millis(50), whole: Duration::from_millis(400) };

    async fn status(body: Body) -> Result<usize, u16> {
        whole(body, 1000, None, SHORT).await.map(|bytes| bytes.len()).map_err(|error| error.status.as_u16())
    }

    #[tokio::test]
    async fn a_body_that_stalls_drips_or_is_too_long_is_refused() {
        assert_eq!(status(Body::from(vec![0; 1000])).await, Ok(1000));
        assert_eq!(status(Body::from(vec![0; 1001])).await, Err(413));
        let piece = || Ok::<_, std::io::Error>(Bytes::from_static(&[0; 600]));
        assert_eq!(status(Body::from_stream(stream::iter([piece(), piece()]))).await, Err(413));
        let stalls = stream::iter([piece()]).chain(stream::pending());
        assert_eq!(status(Body::from_stream(stalls)).await, Err(408));
        let drips = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        });
        assert_eq!(status(Body::from_stream(drips)).await, Err(408));
    }
}
