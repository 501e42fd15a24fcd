//! Listings, cut into pages.

use axum::http::{HeaderMap, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::query::Query;
use crate::error::ApiError;

/// The header with which the next page is asked for.
const NEXT: &str = "x-next-token";

/// Most entries of a page, and how many there are unless that is said.
const MOST: usize = 100;

/// Which page is wanted.
#[derive(Debug, Clone)]
pub struct Page {
    limit: usize,
    /// The last entry of the page before.
    after: Option<Key>,
    /// Oldest first.
    ascending: bool,
}

/// Where an entry is in a listing: when it was made, then its id.
pub type Key = (u64, String);

impl Page {
    /// As asked for with `limit`, `nextToken` and `order`.
    pub fn of(query: &Query) -> Result<Self, ApiError> {
        let limit = match query.number::<usize>("limit")? {
            Some(0) => return Err(ApiError::bad_request("the limit must be at least 1")),
            limit => limit.unwrap_or(MOST).min(MOST),
        };
        let after = query.text("nextToken").map(|token| {
            let bytes = URL_SAFE_NO_PAD.decode(token).ok();
            let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            let parts = text.as_ref().and_then(|text| text.split_once('.'));
            let key = parts.and_then(|(made, id)| Some((made.parse().ok()?, id.to_owned())));
            key.ok_or_else(|| ApiError::bad_request("nextToken is not one that was given out"))
        });
        let ascending = match query.text("order") {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err(ApiError::bad_request("the order must be 'asc' or 'desc'")),
        };
        Ok(Self { limit, after: after.transpose()?, ascending })
    }

    /// The entries of this page, and headers that lead to the next one. What is added or removed meanwhile neither
    /// repeats nor hides others.
    pub fn cut<T>(&self, mut entries: Vec<T>, key: impl Fn(&T) -> Key) -> (HeaderMap, Vec<T>) {
        entries.sort_by_cached_key(|entry| key(entry));
        if !self.ascending {
            entries.reverse();
        }
        if let Some(after) = &self.after {
            entries.retain(|entry| if self.ascending { key(entry) > *after } else { key(entry) < *after });
        }
        let more = entries.len() > self.limit;
        entries.truncate(self.limit);
        let mut headers = HeaderMap::new();
        if let (true, Some(last)) = (more, entries.last()) {
            let (made, id) = key(last);
            let token = URL_SAFE_NO_PAD.encode(format!("{made}.{id}"));
            if let Ok(value) = HeaderValue::from_str(&token) {
                headers.insert(NEXT, value);
            }
        }
        (headers, entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(order: &str, mut entries: Vec<(u64, &'static str)>) -> Vec<Vec<&'static str>> {
        let mut pages = Vec::new();
        let mut token = String::new();
        loop {
            let page = Page::of(&Query::parse(&format!("limit=2&order={order}&nextToken={token}"))).unwrap();
            let (headers, cut) = page.cut(entries.clone(), |(made, id)| (*made, (*id).to_owned()));
            pages.push(cut.into_iter().map(|(_, id)| id).collect());
            match headers.get(NEXT) {
                Some(next) => token = next.to_str().unwrap().to_owned(),
                None => return pages,
            }
            // Newer than all: it must not shift what follows.
            entries.push((1000, "new"));
        }
    }

    #[test]
    fn every_entry_is_on_one_page() {
        let entries = vec![(3, "c"), (1, "a"), (2, "b2"), (2, "b1"), (5, "e")];
        assert_eq!(pages("desc", entries.clone()), [vec!["e", "c"], vec!["b2", "b1"], vec!["a"]]);
        assert_eq!(pages("asc", entries)[..2], [vec!["a", "b1"], vec!["b2", "c"]]);
        assert_eq!(pages("desc", vec![(1, "a"), (2, "b")]), [vec!["b", "a"]]);
        assert_eq!(pages("desc", vec![]), [Vec::<&str>::new()]);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["limit=0", "limit=x", "nextToken=!!", "nextToken=AAAA", "order=up"] {
            assert!(Page::of(&Query::parse(text)).is_err(), "{text}");
        }
    }
}
