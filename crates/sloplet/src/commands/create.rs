//! `sloplet create`

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};

use sloplet_gateway::SecretValue;
use sloplet_policy::file::{File, Mount};
use sloplet_policy::protect::Protected;
use sloplet_policy::secret::{Place, SecretRule};

use crate::api::{Server, encode};
use crate::cli::{Create, Lifetime};
use crate::clone::{self, Done, Inside};
use crate::config::{self, variable};
use crate::progress::ProgressLine;

pub async fn run(server: &Server, data: &Path, mut options: Create) -> anyhow::Result<u8> {
    let as_json = options.json;
    let (rule, secret) = options.git.reach()?;
    options.machine.reach.allow.extend(rule);
    options.machine.reach.secret.extend(secret);
    let git = std::mem::take(&mut options.git);
    let file = config::file(data, &options.machine)?;
    let request = request(file, options)?;
    let made = {
        let _line = ProgressLine::of("making the sandbox");
        server.post("/sandboxes", &request).await?
    };
    let id = made["id"].as_str().unwrap_or_default();
    if let Err(error) = clone::clone(&Served { server, id }, &git).await {
        // Whoever asked for a repository has no use for a sandbox without it.
        let _ = server.delete(&format!("/sandboxes/{}", encode(id))).await;
        return Err(error);
    }
    if as_json {
        say!("{}", serde_json::to_string_pretty(&made)?);
    } else {
        // What names it in other commands, and nothing else: for `id=$(sloplet create)`.
        say!("{}", made["name"].as_str().or(made["id"].as_str()).unwrap_or_default());
    }
    Ok(0)
}

/// A sandbox of a server.
struct Served<'a> {
    server: &'a Server,
    id: &'a str,
}

impl Inside for Served<'_> {
    async fn run(&self, words: Vec<String>) -> anyhow::Result<Done> {
        let (name, value) = clone::VARIABLE;
        let asked = json!({"command": words, "env": {name: value}, "timeout": "1h"});
        let done = self.server.post(&format!("/sandboxes/{}/exec", encode(self.id)), &asked).await?;
        let said = |output: &str| done[output].as_str().unwrap_or_default().to_owned();
        Ok(Done { good: done["exit_code"] == 0, stdout: said("stdout"), stderr: said("stderr") })
    }
}

/// The same names as in the API; what was not said is left out.
pub fn request(file: File, options: Create) -> anyhow::Result<Value> {
    let reach = &options.machine.reach;
    let (network, budget) = (config::network(&file, reach), config::budget(&file, reach));
    let secrets = config::secrets(&file, reach)?;
    let driver = config::driver(&file, &options.machine)?;
    let kept = file.volumes.iter().map(|(name, path)| {
        let path = path.as_str().with_context(|| format!("[volumes] {name}: write {name} = \"/path\""))?;
        volume(&format!("{name}:{path}"))
    });
    let kept = kept.collect::<anyhow::Result<Vec<_>>>()?;
    let base = file.sandbox;
    let env = base.env.iter().chain(&options.machine.env).cloned().collect::<Vec<_>>();
    let home = std::env::home_dir();
    let radius = file.protect.at_home(home.as_deref());
    radius.check_env(&env)?;
    let protected = Protected::for_host(None, &[]).with(&radius.paths);
    let mut fields = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    set("image", options.image.or(base.image).map(Into::into));
    set("pool", options.pool.map(Into::into));
    set("isolation", options.machine.isolation.or(base.isolation).map(|level| level.name().into()));
    set("driver", driver.map(Into::into));
    set("name", options.name.map(Into::into));
    set("memory", options.machine.memory.or(base.memory).map(|size| size.to_string().into()));
    set("cpus", options.machine.cpus.or(base.cpus).map(|cpus| f64::from(cpus).into()));
    set("pids", options.machine.pids.or(base.pids).map(Into::into));
    set("disk", options.machine.disk.or(base.disk).map(|size| size.to_string().into()));
    set("inodes", options.machine.inodes.or(base.inodes).map(Into::into));
    let timeout = options.timeout.or(base.timeout.map(|span| Lifetime(Some(span))));
    set("timeout", timeout.map(lifetime));
    set("on_timeout", options.pause_on_timeout.then(|| "pause".into()));
    set("idle_timeout", options.idle_timeout.map(|span| span.to_string().into()));
    set("auto_resume", options.auto_resume.then(|| true.into()));
    let workspace = config::workspace(&options.machine);
    set(
        "workdir",
        options.machine.workdir.or(base.workdir).or(workspace).map(|path| path.display().to_string().into()),
    );
    options.machine.user.as_deref().or(base.user.as_deref()).map_or(Ok(()), config::check_user)?;
    set("user", options.machine.user.or(base.user).map(Into::into));
    set("hostname", options.machine.hostname.or(base.hostname).map(Into::into));
    let gpu: Vec<String> = base.gpu.iter().chain(&options.machine.gpu).cloned().collect();
    set("gpu", (!gpu.is_empty()).then(|| gpu.into()));
    set("aio", (options.machine.allow_aio || base.aio.unwrap_or(false)).then(|| true.into()));
    let best_effort = options.machine.best_effort || base.best_effort.unwrap_or(false);
    set("best_effort", best_effort.then(|| true.into()));
    set("env", Some(serde_json::to_value(variables(&env)?)?));
    set("metadata", Some(serde_json::to_value(pairs("--metadata", &options.metadata)?)?));
    let volumes = options.volume.iter().map(|text| volume(text)).collect::<anyhow::Result<Vec<_>>>()?;
    set("volumes", Some(kept.into_iter().chain(volumes).collect::<Vec<_>>().into()));
    radius.check_network(&network)?;
    set("network", Some(serde_json::to_value(&network)?));
    set("budget", Some(serde_json::to_value(&budget)?));
    let secrets = secrets.iter().map(secret).collect::<anyhow::Result<Vec<_>>>()?;
    set("secrets", Some(secrets.into()));
    let mut mounts = Vec::new();
    let listed = base.mounts.iter().map(Mount::bind).collect::<Result<Vec<_>, _>>()?;
    for mount in listed.into_iter().chain(options.machine.mount) {
        // Relative to here, not to wherever the server was started.
        let from = std::path::absolute(&mount.from).context("--mount")?;
        if !radius.paths.is_empty() && from.exists() {
            protected.open(&from)?;
        }
        let mut wish = json!({"from": from, "to": mount.to, "writable": mount.writable});
        for (name, wanted) in [("sockets", mount.sockets), ("unguarded", mount.unguarded)] {
            if wanted {
                wish[name] = true.into();
            }
        }
        mounts.push(wish);
    }
    set("mounts", Some(mounts.into()));
    set("data", (!file.data.mounts.is_empty()).then(|| serde_json::to_value(&file.data.mounts)).transpose()?);
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
        Place::Basic { user } => fields["basic"] = user.as_str().into(),
    }
    Ok(fields)
}

/// A time, or null for never.
pub fn lifetime(lifetime: Lifetime) -> Value {
    lifetime.0.map_or(Value::Null, |span| span.to_string().into())
}

/// `NAME=value` each, or `NAME` alone for a variable of the host.
pub fn variables(given: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let given = given.iter().map(|text| variable(text)).collect::<anyhow::Result<Vec<_>>>()?;
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
