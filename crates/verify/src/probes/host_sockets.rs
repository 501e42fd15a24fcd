//! Sockets of the host's services.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};

use crate::part::{Parts, nothing, seen_in};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "host-sockets",
    ids: &[29, 30],
    tries: "connect to abstract sockets and to sockets of services (Docker, containerd, D-Bus)",
    why: "CVE-2020-15257: containerd's abstract socket was open to containers; docker.sock is root",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[111] }, // ECONNREFUSED
};

/// Where services listen.
const SERVICES: [&str; 6] = [
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/podman/podman.sock",
    "/run/sloplet/api.sock",
];

fn parts(_: &Settings, parts: &mut Parts) {
    parts.add("abstract", |settings| {
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(&settings.abstract_name)?)?;
        Ok("connected".into())
    });
    parts.add("by path", |settings| {
        UnixStream::connect(&settings.socket)?;
        Ok("connected".into())
    });
    for path in SERVICES {
        parts.optional(path, move |_| {
            UnixStream::connect(path)?;
            Ok("connected".into())
        });
    }
    parts.add("any at all", |settings| {
        // The host is large: there, only where the planted one is.
        let top = if settings.inside { Path::new("/") } else { settings.socket.parent().unwrap_or(Path::new("/run")) };
        match find(top, 0) {
            Some(path) => Ok(path.display().to_string()),
            None => nothing("no socket anywhere"),
        }
    });
    parts.add("abstract names", |settings| seen_in("/proc/net/unix", &settings.abstract_name));
}

fn find(folder: &Path, depth: usize) -> Option<PathBuf> {
    if depth > 6 || ["/proc", "/sys", "/usr"].iter().any(|skipped| folder == Path::new(skipped)) {
        return None;
    }
    let entries: Vec<_> = std::fs::read_dir(folder).ok()?.flatten().collect();
    let socket = entries.iter().find(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    socket.map(std::fs::DirEntry::path).or_else(|| {
        let folders = entries.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.filter_map(|entry| find(&entry.path(), depth + 1)).next()
    })
}
