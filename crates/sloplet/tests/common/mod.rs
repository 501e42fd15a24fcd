//! Real sandboxes through the real binary.
//!
//! A test starts with [`Host::alone`] (it counts what is left on the host, or needs the machine's attention) or
//! [`Host::shared`], and gets from it the binary as root and as an ordinary user:
//!
//! ```ignore
//! let host = Host::shared();
//! for sloplet in [host.root(), host.user()] {
//!     let ended = sloplet.run(&["--memory", "64MiB"], &["sh", "-c", "echo hi"]);
//!     assert_eq!((ended.code, ended.out().as_str()), (0, "hi\n"), "{ended}");
//! }
//! ```
//!
//! Every invocation has a time limit after which its process group is killed and the test fails; it runs in control
//! groups of the test's own, so that [`leaks::Leaks`] can tell its leftovers from other people's processes.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

pub mod built;
pub mod cgroups;
pub mod database;
pub mod docker;
pub mod http;
pub mod invocation;
pub mod kept;
pub mod leaks;
pub mod machines;
pub mod server;
pub mod spawners;
pub mod tools;
pub mod wait;
pub mod world;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use cgroups::TestGroups;
pub use invocation::{Ended, Invocation, Running};
pub use server::Server;
pub use wait::{PATIENCE, until, until_within};
pub use world::World;

/// The ordinary user of the tests.
pub const USER: &str = "sloplet-test";

/// An ordinary user that no table of the host knows, and so without subordinate ids.
const STRANGER: u32 = 54_321;

/// Whether the thousand-fold runs are to be left out.
pub fn fast() -> bool {
    std::env::var("SLOPLET_TEST_MODE").is_ok_and(|mode| mode == "fast")
}

/// A number of rounds for each mode.
pub fn rounds(all: usize, fast_mode: usize) -> usize {
    if fast() { fast_mode } else { all }
}

/// The machine, as one test uses it: private folders, a copy of the binary that everybody can execute, control groups.
/// Dropping it removes all of that.
pub struct Host {
    place: Arc<Place>,
}

/// What belongs to one test.
pub struct Place {
    pub dir: PathBuf,
    pub binary: PathBuf,
    pub groups: TestGroups,
    // Last: the turn ends when everything is removed.
    _turn: File,
}

impl Host {
    /// Waits until no other test runs, and lets none start.
    pub fn alone() -> Self {
        Self::take(FlockOperation::LockExclusive)
    }

    /// Runs next to other tests, but not next to one that wants to be alone.
    pub fn shared() -> Self {
        Self::take(FlockOperation::LockShared)
    }

    fn take(turn: FlockOperation) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests make sandboxes as root and as an ordinary user that root creates: use ./test, or run cargo test as root"
        );
        // Whoever waits to be alone stands in the door: nobody overtakes, however many come.
        let door = File::create("/tmp/sloplet-test.door").expect("the door of the tests");
        flock(&door, FlockOperation::LockExclusive).expect("a place in the door");
        let lock = File::create("/tmp/sloplet-test.lock").expect("the lock of the tests");
        flock(&lock, turn).expect("a turn");
        drop(door);
        let dir = tempfile::Builder::new().prefix("sloplet-test-").tempdir_in("/tmp").expect("a folder").keep();
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        // Target folders may lie in a home that only its owner can enter. A link is cheaper than a copy.
        let (built, binary) = (Path::new(env!("CARGO_BIN_EXE_sloplet")), dir.join("sloplet"));
        fs::hard_link(built, &binary).or_else(|_| fs::copy(built, &binary).map(drop)).expect("a copy of the binary");
        let user = Account::of_tests();
        for (name, uid) in [("root", 0), ("user", user.uid), ("stranger", STRANGER)] {
            let own = dir.join(name);
            fs::create_dir(&own).unwrap();
            fs::set_permissions(&own, Permissions::from_mode(0o755)).unwrap();
            chown(&own, Some(uid), Some(uid)).unwrap();
        }
        let name = dir.file_name().unwrap().to_str().unwrap();
        let groups = TestGroups::make(name, &[("user", user.uid), ("stranger", STRANGER)]);
        Self { place: Arc::new(Place { dir, binary, groups, _turn: lock }) }
    }

    /// A private folder, for everybody to read, removed at the end.
    pub fn dir(&self) -> &Path {
        &self.place.dir
    }

    /// The binary that all invocations use.
    pub fn binary(&self) -> &Path {
        &self.place.binary
    }

    /// sloplet as root.
    pub fn root(&self) -> Sloplet {
        Sloplet::new(&self.place, "root", None, "root")
    }

    /// sloplet as the ordinary user, to whom control groups are delegated.
    pub fn user(&self) -> Sloplet {
        Sloplet::new(&self.place, "user", Some(Account::of_tests()), "user")
    }

    /// sloplet as an ordinary user without subordinate ids, to whom control groups are delegated.
    pub fn stranger(&self) -> Sloplet {
        let account = Account { uid: STRANGER, gid: STRANGER, home: self.place.dir.join("stranger") };
        Sloplet::new(&self.place, "stranger", Some(account), "stranger")
    }

    /// sloplet as the ordinary user without delegated control groups.
    pub fn user_without_cgroups(&self) -> Sloplet {
        Sloplet::new(&self.place, "user", Some(Account::of_tests()), "plain")
    }

    /// What is there now, to be compared with what is there at the end.
    pub fn leaks(&self) -> leaks::Leaks {
        leaks::Leaks::before(&self.place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A failed test may have left a server's sandboxes, which would live on.
        leaks::kill_all(self);
        self.groups.remove();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The binary, as somebody.
#[derive(Clone)]
pub struct Sloplet {
    /// Who: for messages of assertions.
    pub name: &'static str,
    /// `None` is root.
    pub account: Option<Account>,
    /// `SLOPLET_DATA`.
    pub data: PathBuf,
    /// `SLOPLET_RUN`.
    pub run_dir: PathBuf,
    /// The files of the [`World`] that it finds outside; `None` is the machine's own.
    world: Option<PathBuf>,
    /// Variables, besides the usual.
    pub variables: Vec<(String, String)>,
    group: &'static str,
    place: Arc<Place>,
}

impl Sloplet {
    fn new(place: &Arc<Place>, name: &'static str, account: Option<Account>, group: &'static str) -> Self {
        let own = place.dir.join(name);
        let (data, run_dir, place) = (own.join("data"), own.join("run"), place.clone());
        Self { name, account, data, run_dir, world: None, variables: Vec::new(), group, place }
    }

    /// The program.
    pub fn binary(&self) -> &Path {
        &self.place.binary
    }

    /// The same with one more variable.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// `sloplet run <options> -- <command>`, to its end.
    pub fn run(&self, options: &[&str], command: &[&str]) -> Ended {
        self.invoke_run(options, command).finish()
    }

    /// `sloplet run <options> -- sh -c <script>`, to its end.
    pub fn sh(&self, options: &[&str], script: &str) -> Ended {
        self.run(options, &["sh", "-c", script])
    }

    /// `sloplet run <options> -- python3 -c <program>`, to its end.
    pub fn python(&self, options: &[&str], program: &str) -> Ended {
        self.run(options, &["python3", "-c", program])
    }

    /// `sloplet run <options> -- <command>`, to be started.
    pub fn invoke_run(&self, options: &[&str], command: &[&str]) -> Invocation {
        let words: Vec<&str> = ["run"].iter().chain(options).chain(&["--"]).chain(command).copied().collect();
        self.invoke(&words)
    }

    /// `sloplet <words>`, to be started.
    pub fn invoke(&self, words: &[&str]) -> Invocation {
        let binary = self.place.binary.to_str().unwrap().to_owned();
        self.other_program(&[&[binary.as_str()], words].concat())
    }

    /// Any program as the same user with the same environment in the same control groups, outside of any sandbox.
    pub fn other_program(&self, words: &[&str]) -> Invocation {
        // Joined as root, before the change of user.
        let mut script = String::new();
        for tasks in self.place.groups.joins(self.group) {
            script.push_str(&format!("echo 0 >'{}' || exit 99; ", tasks.display()));
        }
        let home = match &self.account {
            None => PathBuf::from("/root"),
            Some(account) => {
                let Account { uid, gid, .. } = account;
                script.push_str(&format!("set -- setpriv --reuid {uid} --regid {gid} --clear-groups -- \"$@\"; "));
                account.home.clone()
            }
        };
        if let Some(world) = &self.world {
            let mount = |name: &str| format!("mount --bind {}/{name} /etc/{name} || exit 98; ", world.display());
            let mounts = mount("hosts") + &mount("resolv.conf");
            script.push_str(&format!("set -- unshare --mount sh -c '{mounts} exec \"$@\"' sh \"$@\"; "));
        }
        script.push_str("exec \"$@\"");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script, "sh"]).args(words).current_dir("/").env_clear();
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", home);
        command.env("SLOPLET_DATA", &self.data).env("SLOPLET_RUN", &self.run_dir).env("RUST_BACKTRACE", "0");
        if let Some(world) = &self.world {
            command.env("SSL_CERT_FILE", world.join("ca.pem"));
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Invocation::new(command, words.join(" "))
    }

    /// A new folder on the host that belongs to this user.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.place.dir.join(self.name).join(name);
        fs::create_dir_all(&path).unwrap();
        let (uid, gid) = self.account.as_ref().map_or((0, 0), |account| (account.uid, account.gid));
        chown(&path, Some(uid), Some(gid)).unwrap();
        path
    }
}

/// An ordinary user.
#[derive(Debug, Clone)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    pub home: PathBuf,
}

impl Account {
    /// The one of the tests; made if it is missing, with subordinate ids.
    pub fn of_tests() -> Self {
        if let Some(account) = Self::find() {
            return account;
        }
        let made = Command::new("useradd").args(["--create-home", "--shell", "/bin/sh", USER]).output();
        let account =
            Self::find().unwrap_or_else(|| panic!("there is no user '{USER}' and none can be made: {made:?}"));
        for table in ["/etc/subuid", "/etc/subgid"] {
            let text = fs::read_to_string(table).unwrap_or_default();
            if !text.lines().any(|line| line.starts_with(&format!("{USER}:"))) {
                fs::write(table, format!("{text}{USER}:2000000:65536\n")).expect("subordinate ids");
            }
        }
        account
    }

    fn find() -> Option<Self> {
        let passwd = fs::read_to_string("/etc/passwd").ok()?;
        let line = passwd.lines().find(|line| line.starts_with(&format!("{USER}:")))?;
        let fields: Vec<&str> = line.split(':').collect();
        Some(Self { uid: fields[2].parse().ok()?, gid: fields[3].parse().ok()?, home: fields[5].into() })
    }
}

/// A small image: programs of the host with their libraries.
pub fn small_image(host: &Host, programs: &[&str]) -> PathBuf {
    let tar = host.dir().join("small.tar");
    let script = r#"
        set -eu
        mkdir -p "$1" && cd "$1"
        mkdir -p etc home/user tmp proc dev sys bin root
        chmod 1777 tmp
        echo small >etc/image
        printf 'root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n' >etc/passwd
        printf 'root:x:0:\nuser:x:1000:\n' >etc/group
        for name in $3; do
            program=$(readlink -f "$(command -v $name)")
            cp "$program" bin/$name
            for library in $(ldd "$program" | grep -o '/[^ ]*'); do
                mkdir -p ".$(dirname "$library")"
                cp -Ln "$library" ".$library" || true
            done
        done
        chown 1000:1000 home/user
        tar -cf "$2" ."#;
    let made = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(host.dir().join("small"))
        .arg(&tar)
        .arg(programs.join(" "))
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    tar
}
