//! From flags to a spec.

use anyhow::Context;
use sloplet_policy::{Limits, Spec};

use crate::cli::Run;

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
    })
}

/// `NAME=value` as it is; `NAME` alone names a variable of the host to pass on, on purpose.
pub fn variable_of(text: &str) -> anyhow::Result<String> {
    if text.contains('=') {
        return Ok(text.to_owned());
    }
    let value = std::env::var(text).with_context(|| format!("--env {text}: there is no such variable on the host"))?;
    Ok(format!("{text}={value}"))
}
