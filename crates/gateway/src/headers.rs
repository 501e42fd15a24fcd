//! Headers between two hops.

use hyper::header::{
    CONNECTION, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::{Request, Version};
use sloplet_policy::HeaderRule;

/// Headers that are for one hop only, beside those that `Connection` names.
const HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Takes out what is for one hop only.
pub(crate) fn strip_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // gRPC asks for it, and it may be passed on.
    let trailers = headers.get(TE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    for name in named.iter().chain(&HOP) {
        headers.remove(name);
    }
    headers.remove(EXPECT);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Sets the headers that rules have for a host, in place of what was said; of two values the later one. An error is the name of one
/// that cannot be sent.
pub(crate) fn set_headers<'a>(
    headers: &mut HeaderMap,
    rules: &'a [HeaderRule],
    host: &str,
    port: u16,
) -> Result<(), &'a str> {
    let mine = rules.iter().filter(|rule| rule.is_for(host, port));
    for (name, value) in mine.flat_map(|rule| &rule.headers) {
        let (Ok(header), Ok(mut value)) = (name.parse::<HeaderName>(), HeaderValue::from_bytes(value.as_bytes()))
        else {
            return Err(name);
        };
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(())
}

/// The protocol that a request wants to change to.
pub(crate) fn upgrade<B>(request: &Request<B>) -> Option<HeaderValue> {
    let named = request.headers().get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let asked = named.flat_map(|value| value.split(',')).any(|name| name.trim().eq_ignore_ascii_case("upgrade"));
    let protocol = request.headers().get(UPGRADE).cloned();
    protocol.filter(|_| asked && request.version() == Version::HTTP_11)
}

/// Whether everything that names the host in a request names this one.
pub(crate) fn is_for<B>(request: &Request<B>, name: &str, port: u16, tls: bool) -> bool {
    let usual = if tls { 443 } else { 80 };
    let same = |authority: &str| {
        let (host, given) = match authority.rsplit_once(':') {
            Some((host, digits)) if !host.ends_with(':') => match digits.parse::<u16>() {
                Ok(given) => (host, given),
                Err(_) => return false,
            },
            _ => (authority, usual),
        };
        let host = host.strip_suffix('.').unwrap_or(host);
        host.eq_ignore_ascii_case(name) && given == port
    };
    let hosts: Vec<_> = request.headers().get_all(HOST).iter().collect();
    let address = request.uri().authority();
    let known = address.is_some() || !hosts.is_empty();
    known
        && hosts.len() <= 1
        && address.is_none_or(|address| same(address.as_str()))
        && hosts.iter().all(|host| host.to_str().is_ok_and(same))
}

/// One header with all cookies, as HTTP/1.1 has it; HTTP/2 may have cut them up.
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<Vec<u8>> = headers.get_all(COOKIE).iter().map(|value| value.as_bytes().to_vec()).collect();
    if cookies.len() > 1
        && let Ok(mut joined) = HeaderValue::from_bytes(&cookies.join(b"; ".as_slice()))
    {
        joined.set_sensitive(true);
        headers.insert(COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_one_hop_is_taken_out() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("x-stays", "1"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip_hop(&mut headers);
        assert_eq!(headers.len(), 2);
        assert!(headers.contains_key("x-stays") && headers.contains_key("te"));
    }

    #[test]
    fn headers_are_set_in_place_of_what_was_said() {
        let rule = |host: &str, name: &str, value: &str| HeaderRule {
            host: host.parse().unwrap(),
            headers: [(name.to_owned(), value.to_owned())].into(),
        };
        let rules = [
            rule("*.own.example", "X-Token", "first"),
            rule("h.own.example", "x-token", "last"),
            rule("other.example", "x-other", "1"),
            rule("h.own.example:8443", "x-port", "1"),
        ];
        let mut headers = HeaderMap::new();
        headers.append("x-token", HeaderValue::from_static("own"));
        headers.append("x-token", HeaderValue::from_static("another"));
        assert_eq!(set_headers(&mut headers, &rules, "h.own.example", 443), Ok(()));
        assert_eq!(headers.get_all("x-token").iter().collect::<Vec<_>>(), ["last"]);
        assert!(headers.len() == 1 && headers["x-token"].is_sensitive());
        assert_eq!(set_headers(&mut headers, &[rule("h.own.example", "x", "a\nb")], "h.own.example", 80), Err("x"));
    }

    #[test]
    fn every_name_of_the_host_must_be_the_same() {
        let request = |uri: &str, hosts: &[&str]| {
            let mut request = Request::builder().uri(uri);
            for host in hosts {
                request = request.header(HOST, *host);
            }
            request.body(()).unwrap()
        };
        for (uri, hosts, expected) in [
            ("/", &["h.example"][..], true),
            ("/", &["H.Example:443"], true),
            ("https://h.example/", &[], true),
            ("https://h.example/", &["h.example"], true),
            ("/", &[], false),
            ("/", &["other.example"], false),
            ("/", &["h.example:80"], false),
            ("/", &["h.example:x"], false),
            ("/", &["h.example", "h.example"], false),
            ("https://other.example/", &["h.example"], false),
            ("https://h.example/", &["other.example"], false),
            ("https://user@h.example/", &["h.example"], false),
        ] {
            assert_eq!(is_for(&request(uri, hosts), "h.example", 443, true), expected, "{uri} {hosts:?}");
        }
        assert!(is_for(&request("/", &["h.example:8080"]), "h.example", 8080, false));
    }
}
