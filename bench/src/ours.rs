//! What is under test: the engine library, and the binary.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command as HostCommand;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use sloplet_client::Process;
use sloplet_driver_docker::Docker;
use sloplet_driver_docker::host::Host;
use sloplet_driver_namespaces::Namespaces;
use sloplet_driver_oci::{Flavour, Oci};
use sloplet_driver_vm::Vm;
use sloplet_engine::{Command, Driver, Engine, Patron, Places, Sandbox};
use sloplet_policy::Spec;
use sloplet_wire::Exec;
use tokio::runtime::Runtime;

use crate::scratch::Scratch;

/// An engine with places of its own, and the runtime it lives in.
pub struct Ours {
    // Before the runtime: it is shut down while that exists.
    engine: Engine,
    runtime: Runtime,
}

impl Ours {
    /// An engine with that many spawners, which are this very program.
    pub fn start(scratch: &Scratch, spawners: usize) -> Result<Self> {
        let places = places(scratch);
        let program = PathBuf::from("/proc/self/exe");
        let driver = Namespaces::new(&program, &places.own_run()?, &places.data, spawners);
        Self::with(places, driver)
    }

    /// An engine whose sandboxes are containers of a Docker engine, with `binary` as their agent.
    pub fn on_docker(scratch: &Scratch, docker: &str, binary: &Path) -> Result<Self> {
        let places = places(scratch);
        let driver = Docker::at(Host::parse(docker), binary, &places.data);
        Self::with(places, driver)
    }

    /// An engine that makes sandboxes behind gVisor only, with `agent` (the binary) as their agents.
    pub fn behind_gvisor(scratch: &Scratch, agent: &Path) -> Result<Self> {
        let places = places(scratch);
        let walls = Namespaces::new(&PathBuf::from("/proc/self/exe"), &places.own_run()?, &places.data, 1);
        let driver = Oci::new(Flavour::Runsc, Arc::new(walls), agent, &places.data);
        Self::with(places, driver)
    }

    /// An engine that makes virtual machines, with `binary` in them.
    pub fn with_machines(scratch: &Scratch, binary: &Path) -> Result<Self> {
        let places = places(scratch);
        let driver = Vm::new(binary, &places.own_run()?, &places.data);
        Self::with(places, driver)
    }

    fn with(places: Places, driver: impl Driver + 'static) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { engine: Engine::new(places, vec![Box::new(driver)]), runtime })
    }

    /// Runs something that uses the engine.
    pub fn block_on<T>(&self, work: impl AsyncFnOnce(&Engine) -> Result<T>) -> Result<T> {
        self.runtime.block_on(work(&self.engine))
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _guard = self.runtime.enter();
        self.engine.shut_down();
    }
}

/// The default sandbox: every limit and every wall, nothing left out.
pub async fn create(engine: &Engine) -> Result<Sandbox> {
    create_like(engine, Spec::default()).await
}

/// One that is described.
pub async fn create_like(engine: &Engine, spec: Spec) -> Result<Sandbox> {
    engine.create(spec, &Patron::plain("bench")).await.context("creating a sandbox")
}

/// Runs `true` in it.
pub async fn exec_true(sandbox: &Sandbox) -> Result<()> {
    let output = sandbox.exec(Command::new(["true"])).await?.output(4096).await?;
    ensure!(output.exit.code == Some(0), "'true' ended with {:?}", output.exit);
    Ok(())
}

/// A command that goes to the agent past the record, for what the record costs.
pub async fn exec_unrecorded(sandbox: &Sandbox, argv: &[&str]) -> Result<Process> {
    let exec = Exec {
        argv: argv.iter().map(|word| word.as_bytes().to_vec().into()).collect(),
        env: vec![b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_vec().into()],
        user: sandbox.spec().user.clone(),
        ..Exec::default()
    };
    Ok(sandbox.agent().exec(exec).await?)
}

/// A whole life.
pub async fn whole_life(engine: &Engine) -> Result<()> {
    let sandbox = create(engine).await?;
    exec_true(&sandbox).await?;
    sandbox.destroy().await.context("destroying a sandbox")?;
    Ok(())
}

/// The binary running `true`, with the same places and some options.
pub fn binary_run(binary: &Path, scratch: &Scratch, options: &[&str]) -> HostCommand {
    let places = places(scratch);
    let mut command = HostCommand::new(binary);
    command.env("SLOPLET_DATA", places.data).env("SLOPLET_RUN", places.run);
    command.arg("run").args(options).args(["--", "true"]);
    command
}

/// The same in a container of a Docker engine, which must have the image.
pub fn binary_run_on_docker(binary: &Path, scratch: &Scratch, docker: &str, image: &str) -> HostCommand {
    let places = places(scratch);
    let mut command = HostCommand::new(binary);
    command.env("SLOPLET_DATA", places.data).env("SLOPLET_RUN", places.run).env("DOCKER_HOST", docker);
    command.args(["run", "--driver", "docker", "--image", image, "--", "true"]);
    command
}

fn places(scratch: &Scratch) -> Places {
    Places { data: scratch.disk().join("data"), run: scratch.memory().join("run") }
}

/// The binary that was named; else one built now, if cargo runs this program; else the one beside this program.
pub fn find_binary(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let program = std::env::current_exe().context("finding this program")?;
    let beside = program.with_file_name("sloplet");
    if let Some(cargo) = std::env::var_os("CARGO") {
        // Into the same folder as this program, in the same profile.
        let profile = program.parent().and_then(Path::file_name).unwrap_or(OsStr::new("release"));
        let profile = if profile == "debug" { OsStr::new("dev") } else { profile };
        let built = HostCommand::new(cargo)
            .args(["build", "--quiet", "-p", "sloplet", "--profile"])
            .arg(profile)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .context("starting cargo")?;
        ensure!(built.success(), "cargo could not build the sloplet binary");
    }
    ensure!(beside.exists(), "no sloplet binary at {}: name one with --sloplet", beside.display());
    Ok(beside)
}
