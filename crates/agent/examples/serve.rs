//! Serves on descriptor 0: `serve <root> fixed|<default user> [listener]` (the listener is descriptor 1). For tests.

use std::fs::File;
use std::os::fd::AsFd;

use sloplet_agent::{Config, Identity, serve};
use sloplet_sys::filter::SockFilter;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let identity = match arguments[1].as_str() {
        "fixed" => Identity::Fixed {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            name: "me".into(),
            home: arguments[0].clone().into(),
        },
        user => Identity::Switch { default_user: user.into() },
    };
    let listener = match arguments.get(2) {
        Some(_) => Some(std::io::stdout().as_fd().try_clone_to_owned()?),
        None => None,
    };
    let stream = std::io::stdin().as_fd().try_clone_to_owned()?;
    serve(Config {
        stream: Some(stream),
        pipes: None,
        device: None,
        listener,
        door: None,
        identity,
        root: arguments[0].clone().into(),
        oom_score: File::options().read(true).write(true).open("/proc/self/oom_score_adj").ok(),
        command_filter: None,
        // Allows everything.
        spare_filter: Some(vec![SockFilter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 }]),
    })
}
