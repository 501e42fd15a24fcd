//! From flags to a spec.

use anyhow::Context;
use sloplet_policy::budget::Budget;
use sloplet_policy::network::Network;
use sloplet_policy::{Limits, Spec};

use crate::cli::{Reach, Run};

pub fn from_options(options: &Run) -> anyhow::Result<Spec> {
    let defaults = Limits::default();
    let limits = Limits {
        memory: options.machine.memory.unwrap_or(defaults.memory),
        cpus: options.machine.cpus.unwrap_or(defaults.cpus),
        pids: options.machine.pids.unwrap_or(defaults.pids),
        disk: options.machine.disk.unwrap_or(defaults.disk),
        inodes: options.machine.inodes,
        timeout: options.timeout.unwrap_or(defaults.timeout),
        output: options.output_limit.unwrap_or(defaults.output),
    };
    let mut env =
        options.machine.env.iter().map(|variable| variable_of(variable)).collect::<anyhow::Result<Vec<_>>>()?;
    if options.tty {
        let terminal = std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".into());
        env.insert(0, format!("TERM={terminal}"));
    }
    Ok(Spec {
        image: options.image.clone(),
        isolation: options.machine.isolation,
        limits,
        mounts: options.machine.mount.clone(),
        env,
        workdir: options.machine.workdir.clone(),
        user: options.machine.user.clone(),
        hostname: options.machine.hostname.clone(),
        best_effort: options.machine.best_effort,
        network: network_of(&options.machine.reach),
        secrets: options.machine.reach.secret.clone(),
        budget: budget_of(&options.machine.reach),
    })
}

/// What may be reached.
pub fn network_of(reach: &Reach) -> Network {
    Network {
        allow: reach.allow.clone(),
        deny: reach.deny.clone(),
        ask: reach.ask.clone(),
        host_ports: reach.allow_host_port.clone(),
        internet: reach.allow_internet,
        ipv6: reach.ipv6,
        ..Network::default()
    }
}

/// What may be used up.
pub fn budget_of(reach: &Reach) -> Budget {
    Budget {
        usd: reach.budget_usd,
        tokens: reach.budget_tokens,
        requests_per_minute: reach.budget_requests,
        exec_per_minute: reach.budget_execs,
        egress_bytes: reach.budget_egress,
        group: reach.budget_group.clone(),
        at_cap: reach.at_cap.unwrap_or_default(),
    }
}

/// `NAME=value` as it is; `NAME` alone names a variable of the host to pass on, on purpose.
pub fn variable_of(text: &str) -> anyhow::Result<String> {
    if text.contains('=') {
        return Ok(text.to_owned());
    }
    let value = std::env::var(text).with_context(|| format!("--env {text}: there is no such variable on the host"))?;
    Ok(format!("{text}={value}"))
}
