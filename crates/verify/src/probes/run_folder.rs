//! A run folder that another user made first, to wait there for keys and secrets.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::SocketType;
use sloplet_policy::weakness;
use sloplet_sys::private;

use crate::drill::{Drill, DrillError, settle};
use crate::part::contains;
use crate::probe::{Finding, Kind, Pending, Probe};
use crate::program::SUBCOMMAND;

pub const PROBE: Probe = Probe {
    name: "run-folder",
    ids: &[65],
    tries: "make the server's run folder first, as another user, and wait there for a client with its key",
    why: "the folder may lie in /tmp, where anybody can guess its name and make it",
    needs: &[],
    kind: Kind::Drill(run),
};

/// The weakness, and the protection that it takes away.
const WEAKNESS: &str = "run-folder";

/// Somebody else.
const OTHER: u32 = 4321;

/// How long a client may take.
const PATIENCE: Duration = Duration::from_secs(20);

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let squat = Squat {
        folder: drill.canaries.folder().join("squatted"),
        program: drill.host_program.to_owned(),
        weaken: drill.spec.weaken.filter(|weakness| *weakness == WEAKNESS),
    };
    let finding = tokio::task::spawn_blocking(move || squat.judge()).await.map_err(io::Error::other)?;
    Ok(finding?)
}

struct Squat {
    folder: PathBuf,
    program: PathBuf,
    weaken: Option<&'static str>,
}

impl Squat {
    fn judge(&self) -> io::Result<Finding> {
        let key = "sk-of-the-canary";
        let own = self.wait(key, false)?;
        let foreign = self.wait(key, true)?;
        let _ = fs::remove_dir_all(&self.folder);
        let control = "in a folder of this user's alone, the client sends its key";
        if !contains(&own, key.as_bytes()) {
            return Ok(Finding::inconclusive("", "the client sent its key nowhere, not even to its own user"));
        }
        let detail = format!("in a folder that others can enter, {} bytes were sent", foreign.len());
        Ok(Finding::judge(foreign.is_empty(), control, detail))
    }

    /// Waits where the server would; what a client sends.
    fn wait(&self, key: &str, squatted: bool) -> io::Result<Vec<u8>> {
        let _ = fs::remove_dir_all(&self.folder);
        let (run, data) = (self.folder.join("run"), self.folder.join("data"));
        let inside = private::run_folder(&run, &data)?;
        for folder in [&run, &inside] {
            private::make(folder)?;
        }
        let listener = UnixListener::from(private::open_door(&inside, sloplet_remote::SOCKET, SocketType::STREAM)?);
        listener.set_nonblocking(true)?;
        if squatted {
            for folder in [&inside, &run] {
                open_to_others(folder)?;
            }
        }
        let mut command = Command::new(&self.program);
        command.args([SUBCOMMAND, "act", "ask-server"]);
        if let Some(weakness) = self.weaken {
            command.arg(weakness).env(weakness::VARIABLE, weakness);
        }
        command.env("SLOPLET_DATA", &data).env("SLOPLET_RUN", &run).env("SLOPLET_API_KEY", key);
        command.env_remove("SLOPLET_URL").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut client = command.spawn()?;
        let (mut caught, mut open) = (Vec::new(), Vec::new());
        let until = Instant::now() + PATIENCE;
        loop {
            let over = client.try_wait()?.is_some();
            listen(&listener, &mut open, &mut caught);
            if over {
                return Ok(caught);
            }
            if Instant::now() > until {
                let _ = client.kill();
                let _ = client.wait();
                return Err(ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// As another user would have made it, as far as this one can.
fn open_to_others(folder: &Path) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        chown(folder, Some(OTHER), Some(OTHER))?;
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777))
}

/// Takes what has come so far; who has sent a whole head is hung up on.
fn listen(listener: &UnixListener, open: &mut Vec<UnixStream>, caught: &mut Vec<u8>) {
    while let Ok((client, _)) = listener.accept() {
        if client.set_nonblocking(true).is_ok() {
            open.push(client);
        }
    }
    open.retain_mut(|client| {
        let mut text = Vec::new();
        let read = client.read_to_end(&mut text);
        caught.extend_from_slice(&text);
        !contains(&text, b"\r\n\r\n") && read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    });
}
