//! One command per file.

mod approve;
mod archive;
mod audit;
pub mod compare;
pub mod completion;
mod cost;
mod cp;
mod create;
mod diff;
mod doctor;
mod exec;
mod fork;
mod gc;
mod image;
mod info;
mod init;
mod key;
mod logs;
mod ls;
mod mask;
mod mcp;
mod net;
mod patch;
mod pause;
mod pool;
mod port;
mod presign;
mod ps;
mod rm;
mod run;
mod serve;
mod server;
mod shell;
mod snapshot;
mod ssh;
mod timeout;
mod trust;
mod verify;
mod vm;
mod volume;
mod watch;

use std::path::Path;

use sloplet_spawner::launcher::Forked;

use crate::api::Server;
use crate::cli::{Cli, Command, ServerCommand};
use crate::setup;

/// Carries out a command and returns the exit status.
pub fn run(arguments: Cli, forked: Option<Forked>) -> anyhow::Result<u8> {
    let data = arguments.common.data;
    match arguments.command {
        Command::Run(options) => run::run(data, forked, *options),
        Command::Serve(options) => serve::run(data, *options),
        Command::Verify(options) => verify::run(data, *options),
        Command::Init { yes, force } => init::run(data, yes, force),
        Command::Trust { path, revoke, list } => trust::run(data, path, revoke, list),
        Command::Doctor { probe, json } => doctor::run(data, probe, json),
        Command::Compare { rounds, svg, json } => compare::run(data, rounds.into(), json, svg.as_deref()),
        Command::Image(command) => image::run(data, command),
        Command::Vm(command) => vm::run(data, command),
        Command::Mask(options) => mask::run(*options),
        Command::Mcp(options) => mcp::run(data, !arguments.common.no_autostart, *options),
        Command::Gc { json } => gc::run(data, json),
        Command::Completion { shell } => Ok(completion::run(shell)),
        Command::Server(ServerCommand::Stop) => setup::runtime()?.block_on(server::stop(data)),
        Command::Audit(options) => audit::run(data, options),
        Command::Cost(options) => cost::run(data, options),
        command => {
            let search = setup::search(data, !arguments.common.no_autostart)?;
            let runtime = setup::runtime()?;
            let code = runtime.block_on(async {
                match command {
                    // Its client asks for the server when it needs one.
                    Command::Ssh(options) => ssh::run(search, options).await,
                    command => with_server(Server::find(&search).await?, &search.data, command).await,
                }
            });
            // A thread may still wait for our input.
            runtime.shutdown_background();
            code
        }
    }
}

/// The commands that need a server. `data` is the data folder.
async fn with_server(server: Server, data: &Path, command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Create(options) => create::run(&server, data, *options).await,
        Command::Exec(options) => exec::run(&server, *options).await,
        Command::Shell { name, user } => shell::run(&server, name, user).await,
        Command::Cp { source, destination, user } => cp::run(&server, &source, &destination, user).await,
        Command::Diff { name, paths, json } => diff::run(&server, &name, &paths, json).await,
        Command::Patch { name, path, user, baseline } => {
            patch::run(&server, &name, path.as_deref(), user.as_deref(), baseline.as_deref()).await
        }
        Command::Ls { all, metadata, json } => ls::run(&server, all, &metadata, json).await,
        Command::Ps { name, json } => ps::run(&server, &name, json).await,
        Command::Logs { name, pid, follow, tail } => logs::run(&server, &name, pid, follow, tail).await,
        Command::Presign { verb, object, expires, json } => presign::run(&server, verb, &object, expires, json).await,
        Command::Port { name, port, timeout, forward, json } => {
            port::run(&server, &name, port, timeout, forward, json).await
        }
        Command::Pause { names } => pause::run(&server, "pause", &names).await,
        Command::Stop { names } => pause::run(&server, "stop", &names).await,
        Command::Resume { names } => pause::run(&server, "resume", &names).await,
        Command::Snapshot(options) => snapshot::run(&server, options).await,
        Command::Fork { name, from, count, new_name, json } => {
            let source = match (from, name) {
                (Some(snapshot), _) => fork::Source::Snapshot(snapshot),
                (None, name) => fork::Source::Sandbox(name.unwrap_or_default()),
            };
            fork::run(&server, source, count, new_name, json).await
        }
        Command::Rm { names, all } => rm::run(&server, &names, all).await,
        Command::Net(options) => net::run(&server, options).await,
        Command::Approve(options) => approve::run(&server, options).await,
        Command::Watch { name, json } => watch::run(&server, name, json).await,
        Command::Timeout { name, timeout } => timeout::run(&server, &name, timeout).await,
        Command::Volume(command) => volume::run(&server, command).await,
        Command::Pool(command) => pool::run(&server, command).await,
        Command::Key(command) => key::run(&server, command).await,
        Command::Info { name, json } => info::run(&server, name.as_deref(), json).await,
        _ => anyhow::bail!("this command needs no server"),
    }
}
