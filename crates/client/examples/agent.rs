//! An agent on descriptor 0, as the present user, with files below the folder given. For tests.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use sloplet_agent::{Config, Identity, serve};

fn main() -> std::io::Result<()> {
    let root: PathBuf = std::env::args_os().nth(1).unwrap_or_else(|| "/".into()).into();
    let me = std::fs::metadata("/proc/self")?;
    let identity = Identity::Fixed { uid: me.uid(), gid: me.gid(), name: "me".into(), home: root.clone() };
    let stream = std::io::stdin().as_fd().try_clone_to_owned()?;
    let stream = Some(stream);
    serve(Config {
        stream,
        pipes: None,
        device: None,
        listener: None,
        door: None,
        identity,
        root,
        oom_score: None,
        command_filter: None,
        spare_filter: None,
    })
}
