//! Placeholders, and where they become values.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::uri::PathAndQuery;
use memchr::memmem;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use ring::rand::{SecureRandom, SystemRandom};
use sloplet_policy::secret::{Place, SecretRule};

use crate::redact::Needles;
use crate::value::SecretValue;

/// A secret of a sandbox.
#[derive(Debug, Clone)]
pub struct Secret {
    /// Who may see it, and where.
    pub rule: SecretRule,
    /// What they see.
    pub value: SecretValue,
    /// What the sandbox sees.
    pub placeholder: String,
}

/// A placeholder for a rule: like no other text, and safe in a header, an address and JSON as it is.
pub fn placeholder(rule: &SecretRule) -> Result<String, ring::error::Unspecified> {
    let mut random = [0; 16];
    SystemRandom::new().fill(&mut random)?;
    let random: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let prefix = rule.prefix.as_deref().unwrap_or("");
    Ok(format!("{prefix}sloplet-secret-{}-{random}", rule.name.to_ascii_lowercase()))
}

/// A value that cannot be put where it was asked for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PutError {
    #[error(
        "sloplet: the value of {0} cannot be put into a header: it holds a line break or another control character"
    )]
    Header(String),
    #[error(
        "sloplet: {0} is not sent over plain HTTP, where everyone on the way can read it: use https, or add ';http' to its rule"
    )]
    Plain(String),
    #[error("sloplet: with its secret the request's address is none")]
    Address,
}

/// What happened to a placeholder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub name: String,
    pub place: &'static str,
    /// It became its value; or it stayed.
    pub used: bool,
}

/// A sandbox's secrets, seen from one host.
pub(crate) struct Vault<'a> {
    secrets: &'a [Secret],
    host: &'a str,
    port: u16,
    tls: bool,
    pub seen: Vec<Seen>,
    /// What must not come back.
    pub needles: Needles,
}

impl<'a> Vault<'a> {
    pub fn new(secrets: &'a [Secret], host: &'a str, port: u16, tls: bool) -> Self {
        let needles = all_of(secrets.iter().filter(|secret| secret.rule.is_for(host, port)));
        Self { secrets, host, port, tls, seen: Vec::new(), needles }
    }

    /// Whether some secret may go into bodies, which must then be held.
    pub fn fills_bodies(&self) -> bool {
        self.mine().any(|secret| secret.rule.place == Place::Body)
    }

    fn mine(&self) -> impl Iterator<Item = &'a Secret> {
        let (host, port) = (self.host, self.port);
        self.secrets.iter().filter(move |secret| secret.rule.is_for(host, port))
    }

    /// Replaces in headers.
    pub fn headers(&mut self, headers: &mut HeaderMap) -> Result<(), PutError> {
        let secrets = self.secrets;
        let names: Vec<_> = headers.keys().cloned().collect();
        for name in names {
            let hyper::header::Entry::Occupied(mut entry) = headers.entry(&name) else { continue };
            for value in entry.iter_mut() {
                let basic = (name == AUTHORIZATION).then(|| basic(value)).flatten();
                let mut text = basic.clone().unwrap_or_else(|| value.as_bytes().to_vec());
                let mut changed = None;
                for secret in secrets {
                    let here = match &secret.rule.place {
                        Place::Anywhere | Place::Header { name: None } => true,
                        Place::Header { name: Some(only) } => name.as_str().eq_ignore_ascii_case(only),
                        Place::Query { .. } | Place::Body | Place::Basic { .. } => false,
                    };
                    if self.put(secret, "header", here, &mut text, plain)? {
                        changed = Some(&secret.rule.name);
                    }
                }
                let Some(changed) = changed else { continue };
                let text = match basic {
                    None => text,
                    Some(_) => {
                        // A host that shows the header again shows this form.
                        let filled = STANDARD.encode(&text);
                        let shown = value.as_bytes().get(6..).unwrap_or_default().trim_ascii();
                        self.needles.add(filled.as_bytes(), shown);
                        format!("Basic {filled}").into_bytes()
                    }
                };
                let mut filled = HeaderValue::from_bytes(&text).map_err(|_| PutError::Header(changed.clone()))?;
                filled.set_sensitive(true);
                *value = filled;
            }
        }
        self.authenticate(headers)
    }

    /// Sets basic authentication where a secret is for that, in place of what the request had.
    fn authenticate(&mut self, headers: &mut HeaderMap) -> Result<(), PutError> {
        let mine: Vec<&Secret> = self.mine().collect();
        for secret in mine {
            let (Place::Basic { user }, name) = (&secret.rule.place, &secret.rule.name) else { continue };
            if !self.tls && !secret.rule.http {
                return Err(PutError::Plain(name.clone()));
            }
            let of = |password: &[u8]| STANDARD.encode([user.as_bytes(), b":", password].concat());
            let filled = of(secret.value.expose());
            self.needles.add(filled.as_bytes(), of(secret.placeholder.as_bytes()).as_bytes());
            let text = format!("Basic {filled}");
            let mut value = HeaderValue::from_str(&text).map_err(|_| PutError::Header(name.clone()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
            self.seen.push(Seen { name: name.clone(), place: "header", used: true });
        }
        Ok(())
    }

    /// Replaces in the query. A placeholder in the path stays: paths are logged everywhere.
    pub fn query(&mut self, address: &PathAndQuery) -> Result<Option<PathAndQuery>, PutError> {
        let secrets = self.secrets;
        let mut changed = false;
        let mut path = address.path().as_bytes().to_vec();
        for secret in secrets {
            self.put(secret, "query", false, &mut path, percent)?;
        }
        let Some(query) = address.query() else { return Ok(None) };
        let mut pairs = Vec::new();
        for pair in query.split('&') {
            let key = pair.split('=').next().unwrap_or("");
            let key = percent_decode_str(key).decode_utf8_lossy();
            let mut text = pair.as_bytes().to_vec();
            for secret in secrets {
                let here = match &secret.rule.place {
                    Place::Anywhere | Place::Query { name: None } => true,
                    Place::Query { name: Some(only) } => key == only.as_str(),
                    Place::Header { .. } | Place::Body | Place::Basic { .. } => false,
                };
                changed |= self.put(secret, "query", here, &mut text, percent)?;
            }
            pairs.push(text);
        }
        if !changed {
            return Ok(None);
        }
        let whole = [address.path().as_bytes(), &pairs.join(&b'&')].join(&b'?');
        PathAndQuery::try_from(whole.as_slice()).map(Some).map_err(|_| PutError::Address)
    }

    /// Replaces in a body that is held, in the form of its content.
    pub fn body(&mut self, headers: &HeaderMap, body: &[u8]) -> Result<Option<Vec<u8>>, PutError> {
        let secrets = self.secrets;
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("").to_ascii_lowercase();
        let kind = kind.split(';').next().unwrap_or("").trim();
        let mut text = Cow::Borrowed(body);
        for secret in secrets {
            if memmem::find(&text, secret.placeholder.as_bytes()).is_none() {
                continue;
            }
            let here = secret.rule.place == Place::Body;
            let form = match kind {
                "application/x-www-form-urlencoded" => percent,
                kind if kind.ends_with("json") => json,
                _ => plain,
            };
            self.put(secret, "body", here, text.to_mut(), form)?;
        }
        Ok(matches!(text, Cow::Owned(_)).then(|| text.into_owned()))
    }

    /// Replaces one secret's placeholder, if it is there and may be.
    fn put(
        &mut self,
        secret: &Secret,
        place: &'static str,
        here: bool,
        text: &mut Vec<u8>,
        form: fn(&[u8]) -> Cow<'_, [u8]>,
    ) -> Result<bool, PutError> {
        let shown = secret.placeholder.as_bytes();
        if memmem::find(text, shown).is_none() {
            return Ok(false);
        }
        let name = secret.rule.name.clone();
        let used = here && secret.rule.is_for(self.host, self.port);
        if used && !self.tls && !secret.rule.http {
            return Err(PutError::Plain(name));
        }
        if used {
            *text = replaced(text, shown, &form(secret.value.expose()));
        }
        let seen = Seen { name, place, used };
        if !self.seen.contains(&seen) {
            self.seen.push(seen);
        }
        Ok(used)
    }
}

/// The values of these secrets, in the forms that they are sent in.
pub(crate) fn all_of<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Needles {
    let mut needles = Needles::default();
    for secret in secrets {
        let (value, shown) = (secret.value.expose(), secret.placeholder.as_bytes());
        for form in [Cow::Borrowed(value), json(value), percent(value)] {
            needles.add(&form, shown);
        }
    }
    needles
}

/// The user and password of basic authentication.
fn basic(value: &HeaderValue) -> Option<Vec<u8>> {
    let text = value.to_str().ok()?;
    let (scheme, encoded) = text.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case("basic ") {
        return None;
    }
    STANDARD_NO_PAD.decode(encoded.trim().trim_end_matches('=')).ok()
}

fn replaced(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + to.len());
    let mut done = 0;
    for start in memmem::find_iter(text, from) {
        out.extend_from_slice(&text[done..start]);
        out.extend_from_slice(to);
        done = start + from.len();
    }
    out.extend_from_slice(&text[done..]);
    out
}

/// As it is.
fn plain(value: &[u8]) -> Cow<'_, [u8]> {
    Cow::Borrowed(value)
}

/// As it stands within a JSON text.
fn json(value: &[u8]) -> Cow<'_, [u8]> {
    let quoted = std::str::from_utf8(value).ok().and_then(|text| serde_json::to_string(text).ok());
    quoted.map_or(Cow::Borrowed(value), |quoted| Cow::Owned(quoted.as_bytes()[1..quoted.len() - 1].to_vec()))
}

/// As it stands in an address or a form. What an address may hold unchanged is left as it is.
fn percent(value: &[u8]) -> Cow<'_, [u8]> {
    const KEPT: percent_encoding::AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    Cow::Owned(percent_encode(value, &KEPT).to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(rule: &str, value: &str) -> Secret {
        let rule: SecretRule = rule.parse().unwrap();
        let placeholder = placeholder(&rule).unwrap();
        Secret { rule, value: SecretValue::new(value), placeholder }
    }

    fn headers(list: &[(&'static str, String)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (hyper::header::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn placeholders_are_unique_and_plain() {
        let rule: SecretRule = "API_KEY@h.example;prefix=sk-ant-".parse().unwrap();
        let one = placeholder(&rule).unwrap();
        assert!(one.starts_with("sk-ant-sloplet-secret-api_key-"), "{one}");
        assert_ne!(one, placeholder(&rule).unwrap());
        assert_eq!(percent(one.as_bytes()), one.as_bytes());
        assert_eq!(json(one.as_bytes()), one.as_bytes());
    }

    #[test]
    fn headers_are_filled_for_the_rules_host_only() {
        let secrets = [secret("KEY@h.example", "real-value-1")];
        let shown = &secrets[0].placeholder;
        for (host, port, expected) in [("h.example", 443, true), ("x.example", 443, false), ("h.example", 8443, false)]
        {
            let mut map = headers(&[("authorization", format!("Bearer {shown}")), ("x-other", shown.clone())]);
            let mut vault = Vault::new(&secrets, host, port, true);
            vault.headers(&mut map).unwrap();
            assert_eq!(map["authorization"] == "Bearer real-value-1", expected, "{host}:{port}");
            assert_eq!(map["x-other"] == "real-value-1", expected, "{host}:{port}");
            assert_eq!(vault.seen, [Seen { name: "KEY".into(), place: "header", used: expected }]);
        }
    }

    #[test]
    fn a_named_header_is_the_only_one() {
        let secrets = [secret("KEY@h.example;header=X-Api-Key", "real-value-1")];
        let shown = &secrets[0].placeholder;
        let mut map = headers(&[("x-api-key", shown.clone()), ("user-agent", shown.clone())]);
        let mut vault = Vault::new(&secrets, "h.example", 443, true);
        vault.headers(&mut map).unwrap();
        assert!(map["x-api-key"] == "real-value-1" && map["user-agent"] == shown.as_str());
        assert!(map["x-api-key"].is_sensitive());
        assert_eq!(vault.seen.iter().filter(|seen| seen.used).count(), 1);
        assert_eq!(vault.seen.len(), 2);
        assert!(vault.query(&PathAndQuery::try_from(format!("/?k={shown}")).unwrap()).unwrap().is_none());
    }

    #[test]
    fn basic_authentication_is_set_for_its_host_alone_whatever_the_request_had() {
        let secrets = [secret("TOKEN@git.example.com;basic=me", "ghp_value")];
        let shown = |host: &str, tls: bool, given: &[(&'static str, String)]| {
            let mut map = headers(given);
            let mut vault = Vault::new(&secrets, host, 443, tls);
            vault.headers(&mut map).map(|()| map.get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned()))
        };
        let wanted = Some(format!("Basic {}", STANDARD.encode("me:ghp_value")));
        assert_eq!(shown("git.example.com", true, &[]), Ok(wanted.clone()));
        assert_eq!(shown("git.example.com", true, &[("authorization", "Bearer mine".into())]), Ok(wanted));
        assert_eq!(shown("example.com", true, &[]), Ok(None));
        assert_eq!(shown("git.example.com", false, &[]), Err(PutError::Plain("TOKEN".into())));
        // What stands for it elsewhere is no password.
        let other = shown("example.com", true, &[("authorization", secrets[0].placeholder.clone())]);
        assert_eq!(other, Ok(Some(secrets[0].placeholder.clone())));
    }

    #[test]
    fn basic_authentication_is_opened_and_does_not_come_back() {
        let secrets = [secret("KEY@h.example", "real-value-1")];
        let given = STANDARD.encode(format!("user:{}", secrets[0].placeholder));
        let mut map = headers(&[("authorization", format!("Basic {given}"))]);
        let mut vault = Vault::new(&secrets, "h.example", 443, true);
        vault.headers(&mut map).unwrap();
        let filled = STANDARD.encode("user:real-value-1");
        assert_eq!(map["authorization"], format!("Basic {filled}"));
        assert_eq!(
            vault.needles.replace(format!("got {filled}!").as_bytes()).unwrap(),
            format!("got {given}!").as_bytes()
        );
    }

    #[test]
    fn the_query_is_filled_and_the_path_is_not() {
        let secrets = [secret("KEY@h.example;query=key", "a b&c")];
        let shown = &secrets[0].placeholder;
        let address = PathAndQuery::try_from(format!("/{shown}?key={shown}&other={shown}")).unwrap();
        let mut vault = Vault::new(&secrets, "h.example", 443, true);
        let filled = vault.query(&address).unwrap().unwrap();
        assert_eq!(filled.as_str(), format!("/{shown}?key=a%20b%26c&other={shown}"));
    }

    #[test]
    fn bodies_are_filled_in_their_own_form() {
        let secrets = [secret("KEY@h.example;body", "quote\" and &")];
        let body = format!("{{\"k\":\"{}\"}}", secrets[0].placeholder);
        for (kind, expected) in [
            ("application/json; charset=utf-8", r#"{"k":"quote\" and &"}"#),
            ("application/x-www-form-urlencoded", r#"{"k":"quote%22%20and%20%26"}"#),
            ("text/plain", r#"{"k":"quote" and &"}"#),
        ] {
            let mut vault = Vault::new(&secrets, "h.example", 443, true);
            assert!(vault.fills_bodies());
            let filled = vault.body(&headers(&[("content-type", kind.into())]), body.as_bytes()).unwrap().unwrap();
            assert_eq!(String::from_utf8(filled).unwrap(), expected, "{kind}");
        }
    }

    #[test]
    fn plain_http_needs_the_rules_word_and_line_breaks_are_refused() {
        let plain = [secret("KEY@h.example:80", "real-value-1")];
        let mut map = headers(&[("x-key", plain[0].placeholder.clone())]);
        let error = Vault::new(&plain, "h.example", 80, false).headers(&mut map).unwrap_err();
        assert_eq!(error, PutError::Plain("KEY".into()));
        let allowed = [secret("KEY@h.example;http", "two\nlines")];
        let mut map = headers(&[("x-key", allowed[0].placeholder.clone())]);
        let error = Vault::new(&allowed, "h.example", 80, false).headers(&mut map).unwrap_err();
        assert!(error == PutError::Header("KEY".into()) && !error.to_string().contains("lines"));
    }
}
