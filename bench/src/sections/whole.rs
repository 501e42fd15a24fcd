//! A whole run of `true`: start, run, and nothing left.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, anyhow};

use super::names::{BARE, BINARY, BINARY_GVISOR, BWRAP, DOCKER, LIBRARY, ON_DOCKER, RUNSC};
use crate::competitors::docker::{Docker, IMAGE};
use crate::competitors::oci::Runtime;
use crate::competitors::program;
use crate::measure::{Contender, take_turns};
use crate::options::Options;
use crate::ours::{self, Ours};
use crate::print;
use crate::report::{Report, Table};
use crate::scratch::Scratch;

/// Measures and prints it.
pub fn measure(
    options: &Options,
    report: &mut Report,
    dir: &Scratch,
    rootfs: &Result<PathBuf>,
    docker: &Result<Docker>,
) -> Result<()> {
    let ours = Ours::start(dir, 1)?;
    let runtime = |make: fn(&Path, &Path) -> Result<Runtime>| match rootfs {
        Ok(rootfs) => make(&dir.disk().join("whole"), rootfs),
        Err(error) => Err(anyhow!("{error:#}")),
    };
    let binary = ours::find_binary(options.sloplet.as_deref());
    let contenders = vec![
        host_program(BARE, "true", &[]),
        host_program(BWRAP, "bwrap", &["--unshare-all", "--ro-bind", "/", "/", "true"]),
        Contender::new(LIBRARY, || {
            let started = Instant::now();
            ours.block_on(ours::whole_life)?;
            Ok(started.elapsed())
        }),
        match &binary {
            Ok(binary) => {
                let mut command = ours::binary_run(binary, dir, &[]);
                Contender::new(BINARY, move || program::time(&mut command))
            }
            Err(error) => Contender::missing(BINARY, anyhow!("{error:#}")),
        },
        oci("crun run", runtime(Runtime::crun), false),
        oci("runc run", runtime(Runtime::runc), false),
        oci(RUNSC, runtime(Runtime::runsc), true),
        match (&binary, &program::find("runsc")) {
            (Ok(binary), Ok(_)) => {
                let mut command = ours::binary_run(binary, dir, &["--isolation", "gvisor"]);
                Contender::slow(BINARY_GVISOR, move || program::time(&mut command))
            }
            (Err(error), _) | (_, Err(error)) => Contender::missing(BINARY_GVISOR, anyhow!("{error:#}")),
        },
        match docker {
            Ok(docker) => Contender::slow(DOCKER, || docker.run()),
            Err(error) => Contender::missing(DOCKER, anyhow!("{error:#}")),
        },
        match on_docker(options, dir, docker) {
            Ok(mut command) => Contender::slow(ON_DOCKER, move || program::time(&mut command)),
            Err(error) => Contender::missing(ON_DOCKER, error),
        },
    ];
    let rows = take_turns(options.rounds(), contenders)?;
    let table = Table { title: "Whole run of 'true'".into(), rows };
    print::timings(&table, &[("bare", BARE), ("bwrap", BWRAP), ("docker", DOCKER)]);
    report.timings.push(table);
    Ok(())
}

/// Once before: the first run copies the agent to the engine.
fn on_docker(options: &Options, dir: &Scratch, docker: &Result<Docker>) -> Result<Command> {
    let docker = docker.as_ref().map_err(|error| anyhow!("{error:#}"))?;
    let binary = ours::find_binary(options.sloplet.as_deref())?;
    let mut command = ours::binary_run_on_docker(&binary, dir, &docker.host(), IMAGE);
    program::time(&mut command)?;
    Ok(command)
}

fn host_program(name: &'static str, program: &str, arguments: &[&str]) -> Contender<'static> {
    match program::find(program) {
        Ok(path) => {
            let mut command = Command::new(path);
            command.args(arguments);
            Contender::new(name, move || program::time(&mut command))
        }
        Err(error) => Contender::missing(name, error),
    }
}

fn oci(name: &'static str, runtime: Result<Runtime>, slow: bool) -> Contender<'static> {
    match runtime {
        Ok(mut runtime) if slow => Contender::slow(name, move || runtime.run()),
        Ok(mut runtime) => Contender::new(name, move || runtime.run()),
        Err(error) => Contender::missing(name, error),
    }
}
