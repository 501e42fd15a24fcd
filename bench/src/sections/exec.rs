//! A command in a running sandbox.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use sloplet_engine::Sandbox;
use sloplet_policy::{Isolation, Spec};

use super::names::{EXEC, EXEC_BARE, EXEC_DOCKER, EXEC_GVISOR, EXEC_ON_DOCKER, EXEC_RUNSC, EXEC_UNRECORDED};
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
    let sandbox = ours.block_on(ours::create)?;
    let pid = sandbox.pid().context("the sandbox has no pid")?;
    let oci = |name, make: fn(&Path, &Path) -> Result<Runtime>, slow: bool| {
        let started = match rootfs {
            Ok(rootfs) => make(&dir.disk().join("exec"), rootfs).and_then(Runtime::start_idle),
            Err(error) => Err(anyhow!("{error:#}")),
        };
        match started {
            Ok(mut idle) if slow => Contender::slow(name, move || idle.exec()),
            Ok(mut idle) => Contender::new(name, move || idle.exec()),
            Err(error) => Contender::missing(name, error),
        }
    };
    let docker_started = match docker {
        Ok(docker) => docker.start_idle().map(|()| docker),
        Err(error) => Err(anyhow!("{error:#}")),
    };
    let on_docker = match docker {
        Ok(docker) => ours::find_binary(options.sloplet.as_deref()).and_then(|binary| {
            let ours = Ours::on_docker(dir, &docker.host(), &binary)?;
            let sandbox = {
                let spec = Spec { image: IMAGE.to_owned(), ..Spec::default() };
                ours.block_on(async |engine| ours::create_like(engine, spec).await)?
            };
            Ok((ours, sandbox))
        }),
        Err(error) => Err(anyhow!("{error:#}")),
    };
    let gvisor = behind_gvisor(options, dir);
    let contenders = vec![
        host_program(EXEC_BARE, "true", &[]),
        Contender::new(EXEC, || {
            let started = Instant::now();
            ours.block_on(async |_| ours::exec_true(&sandbox).await)?;
            Ok(started.elapsed())
        }),
        Contender::new(EXEC_UNRECORDED, || {
            let started = Instant::now();
            let output = ours.block_on(async |_| {
                let process = ours::exec_unrecorded(&sandbox, &["true"]).await?;
                Ok(process.output(4096).await?)
            })?;
            ensure!(output.exit.code == Some(0), "'true' ended with {:?}", output.exit);
            Ok(started.elapsed())
        }),
        host_program("nsenter (into our sandbox)", "nsenter", &["--all", "--target", &pid.to_string(), "true"]),
        oci("crun exec", Runtime::crun, false),
        oci("runc exec", Runtime::runc, false),
        oci(EXEC_RUNSC, Runtime::runsc, true),
        match &gvisor {
            Ok((engine, sandbox)) => Contender::new(EXEC_GVISOR, || {
                let started = Instant::now();
                engine.block_on(async |_| ours::exec_true(sandbox).await)?;
                Ok(started.elapsed())
            }),
            Err(error) => Contender::missing(EXEC_GVISOR, anyhow!("{error:#}")),
        },
        match docker_started {
            Ok(docker) => Contender::slow(EXEC_DOCKER, || docker.exec()),
            Err(error) => Contender::missing(EXEC_DOCKER, error),
        },
        match &on_docker {
            Ok((ours, sandbox)) => Contender::new(EXEC_ON_DOCKER, || {
                let started = Instant::now();
                ours.block_on(async |_| ours::exec_true(sandbox).await)?;
                Ok(started.elapsed())
            }),
            Err(error) => Contender::missing(EXEC_ON_DOCKER, anyhow!("{error:#}")),
        },
    ];
    let rows = take_turns(options.rounds(), contenders)?;
    if let Ok((ours, sandbox)) = on_docker {
        ours.block_on(async |_| Ok(sandbox.destroy().await?))?;
    }
    ours.block_on(async |_| Ok(sandbox.destroy().await?))?;
    if let Ok((engine, sandbox)) = gvisor {
        engine.block_on(async |_| Ok(sandbox.destroy().await?))?;
    }
    let table = Table { title: "'true' in a running sandbox".into(), rows };
    print::timings(&table, &[("bare", EXEC_BARE), ("docker", EXEC_DOCKER)]);
    report.timings.push(table);
    Ok(())
}

/// A sandbox behind gVisor, and the engine that made it.
fn behind_gvisor(options: &Options, dir: &Scratch) -> Result<(Ours, Sandbox)> {
    program::find("runsc")?;
    let engine = Ours::behind_gvisor(dir, &ours::find_binary(options.sloplet.as_deref())?)?;
    let spec = Spec { isolation: Isolation::Gvisor, ..Spec::default() };
    let sandbox = engine.block_on(async |engine| ours::create_like(engine, spec).await)?;
    Ok((engine, sandbox))
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
