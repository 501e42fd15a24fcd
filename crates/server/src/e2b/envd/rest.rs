//! What is left of a body that is refused.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};

/// Read at most.
const BYTES: usize = 64 * 1024 * 1024;

/// Waited at most.
const TIME: Duration = Duration::from_secs(5);

/// Reads and drops it: a client reads the answer only when it has sent all, and a connection that is closed before is
/// reset.
pub async fn discard<E>(body: &mut (impl Stream<Item = Result<Bytes, E>> + Unpin)) {
    let all = async {
        let mut read = 0;
        while let Some(Ok(bytes)) = body.next().await {
            read += bytes.len();
            if read > BYTES {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(TIME, all).await;
}
