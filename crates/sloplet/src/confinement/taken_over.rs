//! What somebody who took the server over would try, for tests: debug builds only.
//!
//! `sloplet __taken-over OUTSIDE [--unconfined]` confines itself as a server does, tries everything, and prints a line for each
//! attempt: its name, and `done` or why it failed. `OUTSIDE` is a folder with a file `secret` and a socket `service`.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::mount::{MountFlags, mount};
use rustix::net::SocketType;
use rustix::process::{PidfdFlags, getppid, pidfd_open, test_kill_process};
use sloplet_driver_namespaces::Namespaces;
use sloplet_engine::{Driver, Places, Wanted};
use sloplet_image::{Store, outside};
use sloplet_monitor::perform;
use sloplet_policy::{Bind, Spec};
use sloplet_spawner::{door, launcher, owner};
use sloplet_sys::clone::{Namespaces as Kinds, SingleThreaded};

use super::{Wishes, apply};
use crate::setup;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "__taken-over";

type Attempt<'a> = (&'a str, Box<dyn FnOnce() -> anyhow::Result<()> + 'a>);

/// Tries everything.
pub fn main(words: &[String]) -> anyhow::Result<()> {
    let [beyond, rest @ ..] = words else { anyhow::bail!("give a folder outside") };
    let beyond = Path::new(beyond);
    let places = setup::places(None)?;
    places.own_run()?;
    // What a server has read before.
    let image = Store::open(&places.data)?.resolve("host")?;
    if rest.is_empty() {
        apply(&places, &Wishes::default())?;
    }
    let parent = getppid().context("no parent")?;
    let descriptor = || -> io::Result<OwnedFd> { Ok(pidfd_open(parent, PidfdFlags::empty())?) };
    let attempts: Vec<Attempt<'_>> = vec![
        ("read-passwords", Box::new(|| Ok(fs::read("/etc/shadow").map(drop)?))),
        ("read-a-file", Box::new(|| Ok(fs::read(beyond.join("secret")).map(drop)?))),
        ("write-a-file", Box::new(|| Ok(fs::write(beyond.join("written"), "")?))),
        ("remove-a-file", Box::new(|| Ok(fs::remove_file(beyond.join("written"))?))),
        ("change-the-kernel", Box::new(|| keep_setting(Path::new("/proc/sys/kernel/core_pattern")))),
        ("connect-to-a-service", Box::new(|| Ok(UnixStream::connect(beyond.join("service")).map(drop)?))),
        ("send-a-signal", Box::new(|| Ok(test_kill_process(parent)?))),
        ("look-into-a-process", Box::new(|| Ok(fs::read_link(format!("/proc/{parent}/exe")).map(drop)?))),
        ("mount", Box::new(|| mount_memory(&places))),
        ("ask-for-a-socket", Box::new(|| Ok(door::knock(beyond, "service", SocketType::STREAM).map(drop)?))),
        ("ask-for-a-listener", Box::new(|| Ok(door::open_door(beyond, "mine", SocketType::STREAM).map(drop)?))),
        ("ask-for-passwords", Box::new(|| bring(&places, Path::new("/etc/shadow")))),
        ("ask-for-a-signal", Box::new(|| Ok(perform::<()>(&launcher::END, &(), vec![descriptor()?]).map(drop)?))),
        ("ask-to-clean-elsewhere", Box::new(|| Ok(owner::collect(beyond).map(drop)?))),
        ("ask-a-spawner-for-the-host", Box::new(|| show(&places, &image, "/etc"))),
    ];
    for (name, attempt) in attempts {
        report(name, attempt());
    }
    // What a server must still be able to do.
    show(&places, &image, &beyond.display().to_string()).context("an ordinary folder is not shown any more")?;
    // Last: whoever succeeds is somebody else from then on.
    report(
        "new-namespaces",
        SingleThreaded::prove().and_then(|thread| thread.unshare(Kinds::USER)).map_err(Into::into),
    );
    Ok(())
}

fn report(name: &str, attempt: anyhow::Result<()>) {
    match attempt {
        Ok(()) => say!("{name} done"),
        Err(error) => say!("{name} {}", crate::one_line(&error)),
    }
}

/// Writes what is there already.
fn keep_setting(path: &Path) -> anyhow::Result<()> {
    Ok(fs::write(path, fs::read(path)?)?)
}

fn mount_memory(places: &Places) -> anyhow::Result<()> {
    let place = places.data.join("mounted");
    fs::create_dir_all(&place)?;
    mount("none", &place, "tmpfs", MountFlags::empty(), None)?;
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH)?;
    Ok(())
}

fn bring(places: &Places, path: &Path) -> anyhow::Result<()> {
    let copy = places.data.join("brought");
    let _ = fs::remove_file(&copy);
    anyhow::ensure!(sloplet_monitor::is_confined(), "there is no monitor to ask");
    Ok(outside::bring(path, None, false, &copy).map(drop)?)
}

/// Has a spawner show a folder in a sandbox, past all that the engine checks.
fn show(places: &Places, image: &sloplet_image::Image, folder: &str) -> anyhow::Result<()> {
    let bind = Bind { from: PathBuf::from(folder), ..format!("{folder}:/shown").parse()? };
    let spec = Spec { mounts: vec![bind], ..Spec::default() };
    let driver = Namespaces::new(Path::new(setup::PROGRAM), &places.own_run()?, &places.data, 1);
    let wanted = Wanted {
        id: "taken",
        spec: &spec,
        image,
        egress: false,
        files: &[],
        memory: None,
        claimable: false,
        ear: false,
    };
    setup::runtime()?.block_on(async {
        let machine = driver.create(wanted).await?;
        machine.destroy().await?;
        driver.shut_down();
        Ok(())
    })
}
