//! Network rules, as E2B's SDKs give them. What concerns traffic out of the sandbox becomes rules of our own. Name servers are
//! kept and returned, and open nothing: names are looked up by this server, whichever a program inside asks.

use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sloplet_engine::life::Said;
use sloplet_policy::HeaderRule;

use super::extract::{Json, Path};
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// Entries of each list.
const MAX_ENTRIES: usize = 1000;

/// Bytes of all rules.
const MAX_BYTES: usize = 256 * 1024;

/// Where the answer to "may it reach the internet at all" is kept among the rules.
const ACCESS: &str = "allowInternetAccess";

/// What concerns traffic to the sandbox: new rules for traffic from it leave this alone.
const INGRESS: [&str; 3] = ["allowPublicTraffic", "maskRequestHost", "httpsPorts"];

/// Rules as they are given.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deny_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_public_traffic: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mask_request_host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<BTreeMap<String, Vec<Rule>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    egress_proxy: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dns_servers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    https_ports: Option<Vec<u16>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Rule {
    #[serde(skip_serializing_if = "Option::is_none")]
    transform: Option<Transform>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Transform {
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<BTreeMap<String, String>>,
}

/// Rules for a running sandbox.
#[derive(Debug, Deserialize)]
pub struct Update {
    #[serde(default, rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    #[serde(flatten)]
    network: Network,
}

impl Network {
    fn check(&self) -> Result<(), ApiError> {
        let lists = [&self.allow_out, &self.deny_out, &self.dns_servers];
        let long = |list: &Vec<String>| list.len() > MAX_ENTRIES || list.iter().any(|entry| entry.len() > 300);
        if lists.into_iter().flatten().any(long) || self.rules.as_ref().is_some_and(|rules| rules.len() > MAX_ENTRIES) {
            return Err(ApiError::bad_request(format!("a list of network rules has more than {MAX_ENTRIES} entries")));
        }
        // As with E2B's own open servers: better said than sent out another way.
        if self.egress_proxy.is_some() {
            return Err(ApiError::bad_request(
                "an egress proxy is not available on this server: leave 'egressProxy' out",
            ));
        }
        let addresses = self.deny_out.iter().chain(&self.dns_servers).flatten();
        if let Some(bad) = addresses.into_iter().find(|entry| !is_network(entry)) {
            return Err(ApiError::bad_request(format!("'{bad}' is not an IP address or a network such as 10.0.0.0/8")));
        }
        if let Some(bad) = self.allow_out.iter().flatten().find(|entry| !is_network(entry) && !is_domain(entry)) {
            return Err(ApiError::bad_request(format!("'{bad}' is not an IP address, a network or a domain")));
        }
        if let Some(bad) = self.rules.iter().flatten().map(|(domain, _)| domain).find(|domain| !is_domain(domain)) {
            return Err(ApiError::bad_request(format!("'{bad}' is not a domain")));
        }
        Ok(())
    }
}

/// `10.0.0.1`, `10.0.0.0/8`, `fe80::/10`.
fn is_network(text: &str) -> bool {
    let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let most = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.is_none_or(|length| length.parse::<u8>().is_ok_and(|length| length <= most))
}

/// `example.com`, `*.example.com`, perhaps with a port.
fn is_domain(text: &str) -> bool {
    let text = text.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(text, |(name, _)| name);
    let text = text.strip_prefix("*.").unwrap_or(text);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(fits);
    text.len() <= 253 && text.split('.').all(label)
}

/// Headers that the rules set on requests.
pub fn headers(kept: Option<&Value>) -> Result<Vec<HeaderRule>, ApiError> {
    let Some(rules) = kept.and_then(|kept| kept.get("rules")) else { return Ok(Vec::new()) };
    let bad = |error: String| ApiError::bad_request(format!("rules: {error}"));
    let rules: BTreeMap<String, Vec<Rule>> =
        serde_json::from_value(rules.clone()).map_err(|error| bad(error.to_string()))?;
    let mut set = Vec::new();
    for (domain, rules) in rules {
        for headers in rules.into_iter().filter_map(|rule| rule.transform?.headers) {
            let host = domain.parse().map_err(|error: sloplet_policy::secret::SecretError| bad(error.to_string()))?;
            set.push(HeaderRule { host, headers });
        }
    }
    HeaderRule::check_all(&set).map_err(|error| bad(error.to_string()))?;
    Ok(set)
}

/// What is kept of the rules: one object, with the access among them.
pub fn kept(access: Option<bool>, network: Option<Network>) -> Result<Option<Value>, ApiError> {
    if access.is_none() && network.is_none() {
        return Ok(None);
    }
    let network = network.unwrap_or_default();
    network.check()?;
    let bad = |error: serde_json::Error| ApiError::bad_request(error.to_string());
    let mut rules = serde_json::to_value(network).map_err(bad)?;
    if let (Some(access), Some(rules)) = (access, rules.as_object_mut()) {
        rules.insert(ACCESS.into(), access.into());
    }
    if rules.to_string().len() > MAX_BYTES {
        return Err(ApiError::bad_request(format!("the network rules have more than {MAX_BYTES} bytes")));
    }
    Ok(Some(rules))
}

/// The access and the rules, as they were given.
pub fn shown(kept: Option<&Value>) -> (Option<bool>, Option<Value>) {
    let Some(Value::Object(kept)) = kept else { return (None, None) };
    let mut rules = kept.clone();
    let access = rules.remove(ACCESS).and_then(|access| access.as_bool());
    (access, (!rules.is_empty()).then_some(Value::Object(rules)))
}

/// What our own rules make of them. Theirs let a rule that allows win over one that denies, except that denying everything
/// leaves what is allowed: here denying always wins, and everything is denied that is not allowed. The SDKs ask for internet
/// access unless told otherwise, so that alone opens nothing unless the server was told that it may.
pub fn policy(kept: Option<&Value>, internet: bool, access: &Access) -> Result<sloplet_policy::Network, ApiError> {
    let Some(kept) = kept else { return Ok(sloplet_policy::Network::default()) };
    let list = |name: &str| -> Vec<String> {
        let entries = kept.get(name).and_then(Value::as_array).into_iter().flatten();
        entries.filter_map(|entry| entry.as_str().map(str::to_owned)).collect()
    };
    let everything = |entry: &String| matches!(entry.as_str(), "0.0.0.0/0" | "::/0");
    let (allow, deny) = (list("allowOut"), list("denyOut"));
    let asked = kept.get(ACCESS).and_then(Value::as_bool) != Some(false);
    let open = asked && (internet || allow.iter().any(everything)) && !deny.iter().any(everything);
    let bad = |error: sloplet_policy::network::RuleError| ApiError::bad_request(error.to_string());
    let rules = |entries: &[String]| {
        let entries = entries.iter().filter(|entry| !everything(entry));
        entries.map(|entry| rule(entry).parse().map_err(bad)).collect::<Result<Vec<_>, _>>()
    };
    let network = sloplet_policy::Network {
        allow: rules(&allow)?,
        deny: rules(&deny)?,
        internet: open,
        ..sloplet_policy::Network::default()
    };
    crate::v1::reach::check(&network, access)?;
    Ok(network)
}

/// An address of theirs means every port; a domain the usual two, unless it says one.
fn rule(entry: &str) -> String {
    match (is_network(entry), entry.contains(':')) {
        (true, true) => format!("[{entry}]:*"),
        (true, false) => format!("{entry}:*"),
        (false, _) => entry.to_owned(),
    }
}

pub async fn replace(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
    Json(update): Json<Update>,
) -> Result<StatusCode, ApiError> {
    let record = app.sandboxes().get(&access.owner, &id)?;
    let new = kept(update.allow_internet_access, Some(update.network))?;
    let rules = merged(record.request.network.as_ref(), new);
    let network = policy(Some(&rules), app.config().internet, &access)?;
    let said = Said { headers: headers(Some(&rules))?, rules };
    app.sandboxes().set_network(&access.owner, &id, network, Some(said)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// New rules, with what the old ones said of traffic to the sandbox.
fn merged(old: Option<&Value>, new: Option<Value>) -> Value {
    let mut rules = match new {
        Some(Value::Object(rules)) => rules,
        _ => Map::new(),
    };
    for name in INGRESS {
        rules.remove(name);
        if let Some(value) = old.and_then(|old| old.get(name)) {
            rules.insert(name.into(), value.clone());
        }
    }
    Value::Object(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn keep(network: Value) -> Result<Option<Value>, ApiError> {
        kept(Some(true), Some(serde_json::from_value(network).unwrap()))
    }

    #[test]
    fn rules_come_back_as_they_were_given() {
        let rules = json!({"allowOut": ["8.8.8.8", "*.example.com"], "denyOut": ["0.0.0.0/0"],
            "allowPublicTraffic": false, "rules": {"api.example.com": [{"transform": {"headers": {"x": "y"}}}]}});
        let kept = keep(rules.clone()).unwrap();
        assert_eq!(shown(kept.as_ref()), (Some(true), Some(rules)));
        assert_eq!(shown(super::kept(None, None).unwrap().as_ref()), (None, None));
        assert_eq!(shown(super::kept(Some(false), None).unwrap().as_ref()), (Some(false), None));
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            json!({"denyOut": ["example.com"]}),
            json!({"denyOut": ["1.2.3.4/33"]}),
            json!({"allowOut": ["a b"]}),
            json!({"allowOut": vec!["1.1.1.1"; 1001]}),
            json!({"rules": {"*": []}}),
            json!({"egressProxy": {"address": "proxy.example.com:1080"}}),
        ] {
            assert!(keep(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn transforms_become_headers_in_their_order() {
        let set = |name: &str, value: &str| json!({"transform": {"headers": {name: value}}});
        let rules = json!({"rules": {"h.example": [set("x", "1"), {}, set("x", "2")], "*.i.example": [set("y", "3")]}});
        let headers = headers(keep(rules).unwrap().as_ref()).unwrap();
        let shown: Vec<_> = headers.iter().map(|rule| (rule.host.to_string(), rule.headers.clone())).collect();
        let one = |host: &str, name: &str, value: &str| {
            (host.to_owned(), BTreeMap::from([(name.to_owned(), value.to_owned())]))
        };
        assert_eq!(shown, [one("*.i.example", "y", "3"), one("h.example", "x", "1"), one("h.example", "x", "2")]);
        for (host, name) in [("1.2.3.4", "x"), ("h.example", "host"), ("h.example", "a b"), ("*.com", "x")] {
            let kept = keep(json!({"rules": {host: [set(name, "1")]}})).unwrap();
            assert!(super::headers(kept.as_ref()).is_err(), "{host} {name}");
        }
        assert!(super::headers(None).unwrap().is_empty());
    }

    #[test]
    fn new_rules_for_traffic_out_leave_traffic_in_alone() {
        let old = json!({"denyOut": ["8.8.8.8"], "allowPublicTraffic": false});
        let merged = merged(Some(&old), Some(json!({"allowOut": ["1.1.1.1"]})));
        assert_eq!(merged, json!({"allowOut": ["1.1.1.1"], "allowPublicTraffic": false}));
    }
}
