//! Packages of other languages, kept between runs of the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// How often, and how long apart, a registry is tried that may be out of reach for a moment.
const ATTEMPTS: usize = 6;
const PAUSE: Duration = Duration::from_secs(15);

/// A folder with the packages that a list names, installed once for each state of the list.
pub fn installed(name: &str, list: &Path, install: impl Fn(&Path) -> Command) -> PathBuf {
    let usual = || PathBuf::from("/var/cache/sloplet/tools");
    let tools = std::env::var_os("SLOPLET_TEST_TOOLS").map_or_else(usual, PathBuf::from);
    let text = fs::read(list).unwrap();
    let digest: u64 = text
        .iter()
        .fold(14_695_981_039_346_656_037, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211));
    let folder = tools.join(format!("{name}-{digest:016x}"));
    fs::create_dir_all(&tools).unwrap();
    let lock = fs::File::create(tools.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    for attempt in 1.. {
        if folder.join("complete").exists() {
            break;
        }
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let output = install(&folder).output().unwrap();
        if output.status.success() {
            fs::write(folder.join("complete"), "").unwrap();
            break;
        }
        assert!(attempt < ATTEMPTS, "{}", String::from_utf8_lossy(&output.stderr));
        std::thread::sleep(PAUSE);
    }
    folder
}

/// A folder with a Python of its own and these packages.
pub fn python(name: &str, interpreter: &str, list: &Path) -> PathBuf {
    installed(name, list, |folder| {
        let mut command = Command::new("sh");
        let script = "\"$2\" -m venv \"$0\" && \"$0/bin/pip\" install --quiet --requirement \"$1\"";
        command.args(["-c", script]).arg(folder).arg(list).arg(interpreter);
        command
    })
}
