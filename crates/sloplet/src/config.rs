//! From a file and flags to a spec. Flags win.

use std::path::{Path, PathBuf};

use anyhow::Context;
use sloplet_policy::file::File;
use sloplet_policy::{ByteSize, Limits, Span, Spec};

use crate::cli::Machine;

/// The file of `--config`, or the one in the working directory; an empty one if there is none.
pub fn file(named: Option<&Path>) -> anyhow::Result<File> {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    Ok(File::find(named, &here)?.unwrap_or_default())
}

/// What commands add to the description of a machine.
#[derive(Debug, Default)]
pub struct Rest {
    /// `--image`.
    pub image: Option<String>,
    /// `--timeout`.
    pub timeout: Option<Span>,
    /// `--output-limit`.
    pub output: Option<ByteSize>,
}

/// The spec of a file and flags.
pub fn spec(file: &File, machine: &Machine, rest: Rest) -> anyhow::Result<Spec> {
    let (base, defaults) = (&file.sandbox, Limits::default());
    let limits = Limits {
        memory: machine.memory.or(base.memory).unwrap_or(defaults.memory),
        cpus: machine.cpus.or(base.cpus).unwrap_or(defaults.cpus),
        pids: machine.pids.or(base.pids).unwrap_or(defaults.pids),
        disk: machine.disk.or(base.disk).unwrap_or(defaults.disk),
        inodes: machine.inodes.or(base.inodes),
        timeout: rest.timeout.or(base.timeout).unwrap_or(defaults.timeout),
        output: rest.output.or(base.output).unwrap_or(defaults.output),
    };
    let mut mounts = base.mounts.iter().map(sloplet_policy::file::Mount::bind).collect::<Result<Vec<_>, _>>()?;
    mounts.extend(machine.mount.iter().cloned());
    let given = machine.env.iter().map(|text| variable(text));
    let env = base.env.iter().cloned().map(Ok).chain(given).collect::<anyhow::Result<Vec<_>>>()?;
    let usual = Spec::default();
    Ok(Spec {
        image: rest.image.or_else(|| base.image.clone()).unwrap_or(usual.image),
        isolation: machine.isolation.or(base.isolation).unwrap_or_default(),
        limits,
        mounts,
        env,
        workdir: machine.workdir.clone().or_else(|| base.workdir.clone()),
        user: machine.user.clone().or_else(|| base.user.clone()),
        hostname: machine.hostname.clone().or_else(|| base.hostname.clone()).unwrap_or(usual.hostname),
        best_effort: machine.best_effort || base.best_effort.unwrap_or(false),
        weaken: None,
    })
}

/// `NAME=value` as it is; `NAME` alone names a variable of the host to pass on, on purpose.
pub fn variable(text: &str) -> anyhow::Result<String> {
    if text.contains('=') {
        return Ok(text.to_owned());
    }
    let value = std::env::var(text).with_context(|| format!("--env {text}: there is no such variable on the host"))?;
    Ok(format!("{text}={value}"))
}
