//! What a sandbox may reach and use up, as JSON.

use serde::{Deserialize, Serialize};
use sloplet_engine::life::Values;
use sloplet_gateway::SecretValue;
use sloplet_policy::secret::{Place, Source};
use sloplet_policy::{Network, SecretRule};
use utoipa::ToSchema;

use crate::auth::{Access, Scope};
use crate::error::ApiError;

/// What may be reached; nothing unless said. Rules name a host (`api.example.com`, `*.example.com`, an address or a network)
/// and perhaps ports (`:443`, `:8000-8100`, `:*`).
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NetworkRules {
    /// What may be reached; ports 80 and 443 unless said.
    #[schema(example = json!(["api.github.com", "*.example.com:443"]))]
    pub allow: Vec<String>,
    /// What may not, whatever else is said.
    pub deny: Vec<String>,
    /// What a person is asked about.
    pub ask: Vec<String>,
    /// How long that person may take, from 1s to 24h; without an answer it is no.
    #[schema(example = "2m", pattern = "^([1-9][0-9]{0,4}(ms|s|m|h|d)){1,4}$")]
    pub ask_timeout: String,
    /// Ports of the host's loopback, inside as `host.sloplet.internal`; only for keys of the scope `admin`.
    #[schema(minimum = 1)]
    pub host_ports: Vec<u16>,
    /// Every public address.
    pub internet: bool,
    /// IPv6 addresses for names, too.
    pub ipv6: bool,
    /// How much of it.
    #[schema(value_type = TrafficLimits)]
    pub limits: TrafficLimits,
}

/// How much a sandbox may use of the network.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TrafficLimits {
    /// Connections at once.
    pub connections: u32,
    /// New connections in a second.
    pub new_per_second: u32,
    /// Bytes it may send.
    #[schema(example = "500MiB", pattern = "^[0-9]{1,6}[KMGT]iB$")]
    pub bytes_up: Option<String>,
    /// Bytes it may receive.
    #[schema(example = "500MiB", pattern = "^[0-9]{1,6}[KMGT]iB$")]
    pub bytes_down: Option<String>,
    /// Questions to the resolver in a second.
    pub dns_per_second: u32,
}

/// What may be used up. What is not given is not bounded.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Spending {
    /// Dollars for LLM calls.
    #[schema(example = "2.50", pattern = "^\\$?[0-9]{1,6}(\\.[0-9]{1,6})?$")]
    pub usd: Option<String>,
    /// Tokens of LLM calls.
    pub tokens: Option<u64>,
    /// LLM calls in a minute.
    #[schema(minimum = 1, value_type = Option<u64>)]
    pub requests_per_minute: Option<u32>,
    /// Commands started in a minute.
    #[schema(minimum = 1, value_type = Option<u64>)]
    pub exec_per_minute: Option<u32>,
    /// Bytes it may send, and bytes it may receive.
    #[schema(example = "500MiB", pattern = "^[0-9]{1,6}[KMGT]iB$")]
    pub egress_bytes: Option<String>,
    /// Sandboxes of the same group spend from one pot.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,64}$")]
    pub group: Option<String>,
    /// What happens when it is used up.
    pub at_cap: WhenUsedUp,
}

/// What happens when a budget is used up.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenUsedUp {
    /// What goes beyond it is refused.
    #[default]
    Deny,
    /// The sandbox is paused.
    Pause,
    /// The sandbox is removed.
    Kill,
}

/// A secret that is put into requests to some hosts. Inside there is only a placeholder.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSecret {
    /// The variable inside that holds the placeholder.
    #[schema(pattern = "^[A-Za-z_][A-Za-z0-9_]{0,63}$", example = "ANTHROPIC_API_KEY")]
    name: String,
    /// The secret itself.
    #[schema(value_type = String, min_length = 1, max_length = 8192)]
    #[serde(skip_serializing)]
    value: Hidden,
    /// Who may see it.
    #[schema(min_items = 1, example = json!(["api.anthropic.com"]))]
    hosts: Vec<String>,
    /// Only in this header.
    #[serde(default)]
    header: Option<String>,
    /// Only in this parameter of the query.
    #[serde(default)]
    query: Option<String>,
    /// In the body, and nowhere else.
    #[serde(default)]
    body: bool,
    /// In every request, as the password of this user of basic authentication, in place of what the request had: programs
    /// inside, like git, need not know of it.
    #[schema(pattern = "^[A-Za-z0-9_.@+-]{1,128}$", example = "x-access-token")]
    #[serde(default)]
    basic: Option<String>,
    /// What the placeholder begins with.
    #[serde(default)]
    prefix: Option<String>,
    /// Also over plain HTTP.
    #[serde(default)]
    http: bool,
}

/// Text that is not shown again.
#[derive(Deserialize)]
struct Hidden(String);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// Bytes of a secret.
const SECRET: usize = 8192;

/// Secrets of one sandbox.
const SECRETS: usize = 64;

/// The rules and the values.
pub fn secrets(given: Vec<NewSecret>) -> Result<(Vec<SecretRule>, Values), ApiError> {
    if given.len() > SECRETS {
        return Err(ApiError::bad_request(format!("a sandbox can have {SECRETS} secrets at most")));
    }
    let (mut rules, mut values) = (Vec::new(), Values::new());
    for secret in given {
        if secret.value.0.is_empty() || secret.value.0.len() > SECRET {
            return Err(ApiError::bad_request(format!("secrets: a value has 1 to {SECRET} bytes")));
        }
        let header = secret.header.map(|name| Place::Header { name: Some(name) });
        let query = secret.query.map(|name| Place::Query { name: Some(name) });
        let basic = secret.basic.map(|user| Place::Basic { user });
        let mut places = [header, query, secret.body.then_some(Place::Body), basic].into_iter().flatten();
        let place = match (places.next(), places.next()) {
            (place, None) => place.unwrap_or_default(),
            _ => return Err(ApiError::bad_request("secrets: say one of header, query, body and basic")),
        };
        let hosts = secret.hosts.iter().map(|host| host.parse()).collect::<Result<Vec<_>, _>>();
        let hosts = hosts.map_err(|error| ApiError::bad_request(format!("secrets: {error}")))?;
        let source = Source::Env { var: secret.name.clone() };
        let rule = SecretRule { name: secret.name, hosts, source, place, prefix: secret.prefix, http: secret.http };
        rule.check().map_err(|error| ApiError::bad_request(format!("secrets: {error}")))?;
        values.insert(rule.name.clone(), SecretValue::new(secret.value.0));
        rules.push(rule);
    }
    Ok((rules, values))
}

/// What is near the server is for those who own it: its loopback, and private addresses named in a rule.
pub fn check(network: &Network, access: &Access) -> Result<(), ApiError> {
    network.check().map_err(|error| ApiError::bad_request(format!("network: {error}")))?;
    if network.is_nothing() {
        return Ok(());
    }
    let near = network.nearby(&sloplet_egress::host::addresses());
    if near.is_some() || !network.host_ports.is_empty() {
        access.require(Scope::Admin)?;
    }
    Ok(())
}
