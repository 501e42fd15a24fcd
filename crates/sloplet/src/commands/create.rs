//! `sloplet create`

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};

use super::run::spec::{budget_of, network_of, variable_of};
use sloplet_gateway::SecretValue;
use sloplet_policy::secret::{Place, SecretRule};

use crate::api::Server;
use crate::cli::{Create, Lifetime};

pub async fn run(server: &Server, options: Create) -> anyhow::Result<u8> {
    let as_json = options.json;
    let made = server.post("/sandboxes", &request(options)?).await?;
    if as_json {
        say!("{}", serde_json::to_string_pretty(&made)?);
    } else {
        // What names it in other commands, and nothing else: for `id=$(sloplet create)`.
        say!("{}", made["name"].as_str().or(made["id"].as_str()).unwrap_or_default());
    }
    Ok(0)
}

/// The same names as in the API; what was not said is left out.
fn request(options: Create) -> anyhow::Result<Value> {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    set("image", Some(options.image.into()));
    set("isolation", Some(options.machine.isolation.name().into()));
    set("name", options.name.map(Into::into));
    set("memory", options.machine.memory.map(|size| size.to_string().into()));
    set("cpus", options.machine.cpus.map(|cpus| f64::from(cpus).into()));
    set("pids", options.machine.pids.map(Into::into));
    set("disk", options.machine.disk.map(|size| size.to_string().into()));
    set("inodes", options.machine.inodes.map(Into::into));
    set("timeout", options.timeout.map(lifetime));
    set("on_timeout", options.pause_on_timeout.then(|| "pause".into()));
    set("idle_timeout", options.idle_timeout.map(|span| span.to_string().into()));
    set("auto_resume", options.auto_resume.then(|| true.into()));
    set("workdir", options.machine.workdir.map(|path| path.display().to_string().into()));
    set("user", options.machine.user.map(Into::into));
    set("hostname", Some(options.machine.hostname.into()));
    set("best_effort", options.machine.best_effort.then(|| true.into()));
    set("env", Some(serde_json::to_value(variables(&options.machine.env)?)?));
    set("metadata", Some(serde_json::to_value(pairs("--metadata", &options.metadata)?)?));
    let volumes = options.volume.iter().map(|text| volume(text)).collect::<anyhow::Result<Vec<_>>>()?;
    set("volumes", Some(volumes.into()));
    let reach = &options.machine.reach;
    set("network", Some(serde_json::to_value(network_of(reach))?));
    set("budget", Some(serde_json::to_value(budget_of(reach))?));
    let secrets = reach.secret.iter().map(secret).collect::<anyhow::Result<Vec<_>>>()?;
    set("secrets", Some(secrets.into()));
    let mut mounts = Vec::new();
    for mount in options.machine.mount {
        // Relative to here, not to wherever the server was started.
        let from = std::path::absolute(&mount.from).context("--mount")?;
        mounts.push(json!({"from": from, "to": mount.to, "writable": mount.writable}));
    }
    set("mounts", Some(mounts.into()));
    Ok(fields.into())
}

/// A secret with its value, which is looked up here: the server may run as somebody else.
fn secret(rule: &SecretRule) -> anyhow::Result<Value> {
    let value = SecretValue::resolve(&rule.source).with_context(|| format!("--secret {}", rule.name))?;
    let value = std::str::from_utf8(value.expose()).with_context(|| format!("--secret {}", rule.name))?;
    let hosts: Vec<String> = rule.hosts.iter().map(ToString::to_string).collect();
    let mut fields = json!({"name": rule.name, "value": value, "hosts": hosts, "http": rule.http});
    if let Some(prefix) = &rule.prefix {
        fields["prefix"] = prefix.as_str().into();
    }
    match &rule.place {
        Place::Anywhere => {}
        Place::Header { name } => fields["header"] = name.clone().into(),
        Place::Query { name } => fields["query"] = name.clone().into(),
        Place::Body => fields["body"] = true.into(),
    }
    Ok(fields)
}

/// A time, or null for never.
pub fn lifetime(lifetime: Lifetime) -> Value {
    lifetime.0.map_or(Value::Null, |span| span.to_string().into())
}

/// `NAME=value` each, or `NAME` alone for a variable of the host.
pub fn variables(given: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let given = given.iter().map(|text| variable_of(text)).collect::<anyhow::Result<Vec<_>>>()?;
    pairs("--env", &given)
}

/// `NAME=value` each.
pub fn pairs(option: &str, given: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let pair = |text: &String| {
        let (name, value) = text.split_once('=').with_context(|| format!("{option} {text}: write NAME=value"))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    given.iter().map(pair).collect()
}

/// `NAME:PATH[:ro]`.
fn volume(text: &str) -> anyhow::Result<Value> {
    let (text, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (text.strip_suffix(":rw").unwrap_or(text), false),
    };
    match text.split_once(':') {
        Some((name, path)) if !name.is_empty() && path.starts_with('/') => {
            Ok(json!({"volume": name, "path": path, "read_only": read_only}))
        }
        _ => bail!("--volume {text}: write NAME:PATH[:ro], like data:/data"),
    }
}
