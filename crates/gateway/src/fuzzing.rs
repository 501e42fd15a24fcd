//! What the fuzz targets in `fuzz/` may call of this crate, with what must hold for any bytes from inside or an LLM's API.

use std::sync::OnceLock;

use bytes::Bytes;

use crate::llm::{Call, Endpoint, Seen, Sse};
use crate::prices::{Prices, Usage};

const ENDPOINTS: [Endpoint; 5] =
    [Endpoint::Messages, Endpoint::Chat, Endpoint::Responses, Endpoint::Completions, Endpoint::Embeddings];

fn prices() -> Option<&'static Prices> {
    static PRICES: OnceLock<Option<Prices>> = OnceLock::new();
    PRICES.get_or_init(|| Prices::built_in().ok()).as_ref()
}

/// A call's body: what is sent on asks for the same, and is read the same way.
pub fn llm_request(body: &[u8]) {
    let prices = prices();
    for endpoint in ENDPOINTS {
        let Ok(call) = Call::read(endpoint, Bytes::copy_from_slice(body)) else { continue };
        let price = prices.and_then(|prices| prices.find(&call.model));
        for price in [None, price.as_deref()] {
            let worst = call.worst(price);
            let _ = (worst.tokens(), price.map(|price| price.cost(&worst)));
        }
        if let Ok(again) = Call::read(endpoint, call.body.clone()) {
            assert!(!again.usage_added, "usage was asked for twice");
            assert_eq!((&again.model, again.stream, &again.unbounded), (&call.model, call.stream, &call.unbounded));
        } else {
            assert!(!call.usage_added, "what is sent on cannot be read");
        }
    }
}

/// An answer's events in pieces of `size` bytes: the same events as in one piece, and the same bill.
pub fn llm_stream(bytes: &[u8], size: usize) {
    for endpoint in ENDPOINTS {
        let read = |size: usize| {
            let (mut sse, mut seen, mut events) = (Sse::default(), Seen::default(), Vec::new());
            for piece in bytes.chunks(size.max(1)) {
                sse.push(piece, |data| {
                    seen.event(endpoint, data);
                    events.push(data.to_vec());
                });
            }
            sse.finish(|data| {
                seen.event(endpoint, data);
                events.push(data.to_vec());
            });
            seen.ended();
            (events, format!("{seen:?}"))
        };
        assert_eq!(read(size), read(bytes.len()));
    }
}

/// An answer that came in one piece: counts of any size are priced without overflowing.
pub fn llm_answer(bytes: &[u8]) {
    let price = prices().and_then(|prices| prices.find("claude-sonnet-4-5"));
    for endpoint in ENDPOINTS {
        let seen = Seen::whole(endpoint, bytes);
        let usage: &Usage = &seen.usage;
        let _ = (usage.tokens(), price.as_ref().map(|price| price.cost(usage)));
        assert!(seen.tools.len() <= 64);
    }
}
