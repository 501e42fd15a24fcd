//! From a file and flags to a spec. Flags win.

use std::path::{Path, PathBuf};

use anyhow::Context;
use sloplet_driver_vm::whole::NAME as WHOLE;
use sloplet_engine::Trust;
use sloplet_policy::file::File;
use sloplet_policy::{Budget, ByteSize, Isolation, Limits, Network, SecretRule, Span, Spec};

use crate::cli::{Machine, MachineKind, Reach, WORKSPACE};

/// The file of `--config`, or the one in the working directory; an empty one if there is none. One that nobody vouches for
/// only tightens, or is refused. `data` is the data folder.
pub fn file(data: &Path, machine: &Machine) -> anyhow::Result<File> {
    if machine.no_config {
        return Ok(File::default());
    }
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    Ok(Trust::of(data).settings(machine.config.as_deref(), &here, &machine.mount)?)
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
    base.env.iter().try_for_each(|text| check_name("env", text))?;
    let given = machine.env.iter().map(|text| variable(text));
    let env = base.env.iter().cloned().map(Ok).chain(given).collect::<anyhow::Result<Vec<_>>>()?;
    let user = machine.user.clone().or_else(|| base.user.clone());
    user.as_deref().map_or(Ok(()), check_user)?;
    let usual = Spec::default();
    Ok(Spec {
        image: rest.image.or_else(|| base.image.clone()).unwrap_or(usual.image),
        isolation: machine.isolation.or(base.isolation).unwrap_or_default(),
        driver: driver(file, machine)?,
        limits,
        mounts,
        guards: Vec::new(),
        data: file.data.mounts.clone(),
        env,
        workdir: machine.workdir.clone().or_else(|| base.workdir.clone()).or_else(|| workspace(machine)),
        user,
        hostname: machine.hostname.clone().or_else(|| base.hostname.clone()).unwrap_or(usual.hostname),
        gpu: base.gpu.iter().chain(&machine.gpu).cloned().collect(),
        devices: usual.devices,
        aio: machine.allow_aio || base.aio.unwrap_or(false),
        best_effort: machine.best_effort || base.best_effort.unwrap_or(false),
        network: network(file, &machine.reach),
        secrets: secrets(file, &machine.reach)?,
        headers: Vec::new(),
        budget: budget(file, &machine.reach),
        weaken: None,
    })
}

/// Where commands start unless that is said: in the folder that a flag mounted as the workspace.
pub fn workspace(machine: &Machine) -> Option<PathBuf> {
    let workspace = Path::new(WORKSPACE);
    machine.mount.iter().any(|bind| bind.to == workspace && bind.from.is_dir()).then(|| workspace.to_owned())
}

/// The wall that is named. A level on the command line is stronger than a name in the file.
pub fn driver(file: &File, machine: &Machine) -> anyhow::Result<Option<String>> {
    if machine.machine == Some(MachineKind::Full) {
        let level = machine.isolation.or(file.sandbox.isolation);
        anyhow::ensure!(
            level.is_none_or(|level| level == Isolation::Vm),
            "--machine full is a virtual machine: use it with '--isolation vm'"
        );
        return Ok(Some(WHOLE.to_owned()));
    }
    let named = || file.sandbox.driver.clone().filter(|_| machine.isolation.is_none() && machine.machine.is_none());
    Ok(machine.driver.clone().or_else(named))
}

/// Refuses ids that nobody can have inside.
pub fn check_user(user: &str) -> anyhow::Result<()> {
    let beyond = |id: &str| id.parse::<u64>().is_ok_and(|id| id > u64::from(u16::MAX));
    anyhow::ensure!(!user.split(':').any(beyond), "--user {user}: ids inside are 0 to 65535");
    Ok(())
}

/// What may be reached: what the file says, and what flags add.
pub fn network(file: &File, reach: &Reach) -> Network {
    let mut network = file.network.clone();
    network.allow.extend_from_slice(&reach.allow);
    network.deny.extend_from_slice(&reach.deny);
    network.ask.extend_from_slice(&reach.ask);
    network.ask_timeout = reach.ask_timeout.unwrap_or(network.ask_timeout);
    network.host_ports.extend_from_slice(&reach.allow_host_port);
    network.internet |= reach.allow_internet;
    network.ipv6 |= reach.ipv6;
    network
}

/// Secrets of the file, and those of flags, which win.
pub fn secrets(file: &File, reach: &Reach) -> anyhow::Result<Vec<SecretRule>> {
    let listed = file.secrets.iter().filter(|(name, _)| !reach.secret.iter().any(|given| &given.name == *name));
    let listed = listed.map(|(name, table)| Ok(table.clone().rule(name)?));
    listed.chain(reach.secret.iter().cloned().map(Ok)).collect()
}

/// What may be used up. Flags win.
pub fn budget(file: &File, reach: &Reach) -> Budget {
    let base = &file.budget;
    Budget {
        usd: reach.budget_usd.or(base.usd),
        tokens: reach.budget_tokens.or(base.tokens),
        requests_per_minute: reach.budget_requests.or(base.requests_per_minute),
        exec_per_minute: reach.budget_execs.or(base.exec_per_minute),
        egress_bytes: reach.budget_egress.or(base.egress_bytes),
        group: reach.budget_group.clone().or_else(|| base.group.clone()),
        at_cap: reach.at_cap.unwrap_or(base.at_cap),
    }
}

/// Refuses what names no variable. The value may be a secret, and is not told.
fn check_name(whose: &str, text: &str) -> anyhow::Result<()> {
    let name = text.split('=').next().unwrap_or_default();
    let wrong = name.is_empty() || name.contains(|letter: char| letter.is_whitespace() || letter.is_control());
    anyhow::ensure!(!wrong, "{whose} '{}' is not of the form NAME=value: a name has no spaces", name.escape_debug());
    Ok(())
}

/// `NAME=value` as it is; `NAME` alone names a variable of the host to pass on, on purpose.
pub fn variable(text: &str) -> anyhow::Result<String> {
    check_name("--env", text)?;
    if text.contains('=') {
        return Ok(text.to_owned());
    }
    let value = std::env::var(text).with_context(|| format!("--env {text}: there is no such variable on the host"))?;
    Ok(format!("{text}={value}"))
}
