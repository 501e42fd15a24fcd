//! A container's way out: sockets in its network namespace, on which the host decides. The same as everywhere, but made from
//! outside after the engine has made the namespace, before anything but the agent runs in it. That takes root beside the engine.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;
use serde::{Deserialize, Serialize};
use sloplet_engine::{DriverError, Outlets};
use sloplet_monitor::{Done, Task, perform, task};
use sloplet_policy::{Capability, Feature};
use sloplet_spawner::network::Outlet;

use crate::failed;
use crate::host::{Host, explain};
use crate::probe::Found;

const STEP: &str = "make a way out of the container";

/// Whether containers can have one.
pub fn capability(host: &Host, found: Result<&Found, String>) -> Capability {
    let Ok(found) = found else { return Capability::missing(Feature::Egress, "there is no engine", None) };
    let here = rustix::system::uname().nodename().to_string_lossy() == found.machine;
    let reason = match () {
        () if !rustix::process::geteuid().is_root() => "only root can enter a container's network namespace",
        () if found.podman => "Podman's containers without a network have no resolver's address",
        () if found.rootless => "a rootless engine's containers cannot be entered",
        () if host.socket().is_none() || !here => "the engine is, or may be, on another host",
        () => return sloplet_driver_namespaces::egress::probe(),
    };
    Capability::missing(Feature::Egress, reason, Some("use --driver namespaces"))
}

/// The first process of a container, by the engine's account.
async fn told_process(client: &bollard::Docker, container: &str) -> Result<i32, DriverError> {
    let known = client.inspect_container(container, None).await.map_err(|error| failed(STEP, explain(&error)))?;
    let pid = known.state.and_then(|state| state.pid).and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0);
    pid.ok_or_else(|| failed(STEP, "it has ended"))
}

/// Whether a process of this host is in a container. An engine in a virtual machine counts processes of its own.
fn is_in(pid: i32, container: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(container))
}

/// The first process of a container, if that is on this host.
pub async fn process(client: &bollard::Docker, container: &str) -> Option<i32> {
    told_process(client, container).await.ok().filter(|pid| is_in(*pid, container))
}

/// A container's first process, and whether an engine before this one has opened its way out.
#[derive(Debug, Serialize, Deserialize)]
struct Wanted {
    pid: i32,
    container: String,
    again: bool,
}

/// Opens sockets in the network namespace of a container: only root can enter one.
pub static OPEN: Task = Task { name: "docker-outlet", run: open_here };

fn open_here(input: &[u8], _: Vec<OwnedFd>) -> io::Result<Done> {
    let Wanted { pid, container, again } = task::input(input)?;
    let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
    // Looked at after the namespace was opened: what is there then was there before.
    if !is_id(&container) || !is_in(pid, &container) {
        let why = format!("process {pid} of this host is not the container's: is the engine on this host?");
        return Err(io::Error::other(why));
    }
    let opened = match again {
        true => Outlet::reopen_in(namespace.as_fd()),
        false => Outlet::open_in(namespace.as_fd()),
    };
    Ok(Done::with_fds(opened.map_err(|problem| io::Error::other(problem.to_string()))?.sockets))
}

/// Whether a text is the whole id of a container: a shorter one could be found in the control group of any process.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Opens the way out of a container that was started just now; or again, for an engine after the one that did.
pub async fn open(client: &bollard::Docker, container: &str, again: bool) -> Result<(Outlets, i32), DriverError> {
    let pid = told_process(client, container).await?;
    let wanted = Wanted { pid, container: container.to_owned(), again };
    let opened = tokio::task::spawn_blocking(move || perform::<()>(&OPEN, &wanted, Vec::new()));
    let ((), opened) = opened.await.map_err(|error| failed(STEP, error))?.map_err(|error| failed(STEP, error))?;
    let listens = |socket: &std::os::fd::OwnedFd| socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM);
    let (listeners, resolvers) = opened.into_iter().partition(listens);
    Ok((Outlets { listeners, resolvers }, pid))
}
