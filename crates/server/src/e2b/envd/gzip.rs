//! Bytes compressed on their way out and in, a little at a time.

use std::io::{self, Write};

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, MultiGzDecoder};
use futures_util::{Stream, StreamExt, stream};

use crate::error::ApiError;

/// Decompressed at once: it may become a thousand times as much.
const PIECE: usize = 1024;

/// Whether a client wants an answer compressed. Those that merely could take it get it as it is, which is faster.
pub fn is_wanted(headers: &HeaderMap) -> bool {
    let named = headers.get_all(header::ACCEPT_ENCODING);
    let mut wanted = false;
    for coding in named.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')) {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = weight.trim().strip_prefix("q=").is_some_and(|weight| weight.parse() == Ok(0.0));
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" if !refused => wanted = true,
            "identity" | "*" if refused => {}
            _ => return false,
        }
    }
    wanted
}

/// Whether a body is compressed; refuses what is so in another way.
pub fn is_given(headers: &HeaderMap) -> Result<bool, ApiError> {
    match headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?").trim().to_ascii_lowercase()) {
        None => Ok(false),
        Some(coding) if coding == "identity" || coding.is_empty() => Ok(false),
        Some(coding) if coding == "gzip" => Ok(true),
        Some(coding) => {
            Err(ApiError::bad_request(format!("unsupported Content-Encoding: {coding}, supported: gzip, identity")))
        }
    }
}

/// Compresses.
pub fn compress<S>(plain: S) -> impl Stream<Item = io::Result<Bytes>> + Send
where
    S: Stream<Item = io::Result<Bytes>> + Send + Unpin,
{
    let encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
    stream::try_unfold((plain, encoder), |(mut plain, encoder)| async move {
        let Some(mut encoder) = encoder else { return Ok(None) };
        loop {
            match plain.next().await {
                Some(bytes) => encoder.write_all(&bytes?)?,
                None => return Ok(Some((encoder.finish()?.into(), (plain, None)))),
            }
            if !encoder.get_ref().is_empty() {
                let ready = std::mem::take(encoder.get_mut());
                return Ok(Some((ready.into(), (plain, Some(encoder)))));
            }
        }
    })
}

/// Decompresses. However well it was compressed, a bounded amount is held at once.
pub fn decompress<S>(packed: S) -> impl Stream<Item = io::Result<Bytes>> + Send
where
    S: Stream<Item = io::Result<Bytes>> + Send + Unpin,
{
    let decoder = Some(MultiGzDecoder::new(Vec::new()));
    stream::try_unfold((packed, Bytes::new(), decoder), |(mut packed, mut rest, decoder)| async move {
        let Some(mut decoder) = decoder else { return Ok(None) };
        loop {
            if rest.is_empty() {
                match packed.next().await {
                    Some(bytes) => rest = bytes?,
                    None => {
                        let ready = decoder.finish()?;
                        return Ok(Some((ready.into(), (packed, rest, None))));
                    }
                }
            }
            decoder.write_all(&rest.split_to(rest.len().min(PIECE)))?;
            if !decoder.get_ref().is_empty() {
                let ready = std::mem::take(decoder.get_mut());
                return Ok(Some((ready.into(), (packed, rest, Some(decoder)))));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn whole(stream: impl Stream<Item = io::Result<Bytes>>) -> io::Result<(Vec<u8>, usize)> {
        let (mut all, mut largest) = (Vec::new(), 0);
        let mut stream = std::pin::pin!(stream);
        while let Some(bytes) = stream.next().await {
            let bytes = bytes?;
            largest = largest.max(bytes.len());
            all.extend_from_slice(&bytes);
        }
        Ok((all, largest))
    }

    fn pieces(bytes: &[u8], size: usize) -> impl Stream<Item = io::Result<Bytes>> + Send + Unpin {
        let pieces: Vec<_> = bytes.chunks(size).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        stream::iter(pieces)
    }

    #[tokio::test]
    async fn there_and_back_again_in_bounded_pieces() {
        for plain in [vec![], b"hello".to_vec(), vec![0; 8 << 20]] {
            let (packed, _) = whole(compress(pieces(&plain, 70_000))).await.unwrap();
            let (back, largest) = whole(decompress(pieces(&packed, 64 * 1024))).await.unwrap();
            assert!(back == plain);
            assert!(largest < 2 << 20, "{largest}");
        }
    }

    #[tokio::test]
    async fn what_is_broken_is_an_error() {
        let (packed, _) = whole(compress(pieces(b"hello", 9))).await.unwrap();
        assert!(whole(decompress(pieces(&packed[..packed.len() - 3], 9))).await.is_err());
        assert!(whole(decompress(pieces(b"not gzip at all, surely", 9))).await.is_err());
    }

    #[test]
    fn only_those_who_ask_for_it_get_it() {
        let wants = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, value.parse().unwrap());
            is_wanted(&headers)
        };
        for yes in ["gzip", "GZIP;q=0.5", "gzip, identity;q=0", "*;q=0, gzip"] {
            assert!(wants(yes), "{yes}");
        }
        for no in ["", "gzip;q=0", "gzip, deflate, br", "identity", "*", "gzip, *"] {
            assert!(!wants(no), "{no}");
        }
        assert!(!is_wanted(&HeaderMap::new()));
    }
}
