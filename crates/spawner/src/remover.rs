//! Removes folders in which sandboxes of an ordinary user left files of subordinate ids.
//!
//! Such files belong to the user only in a user namespace that maps those ids. So a short-lived process of the same
//! binary enters one, as a spawner does, and removes them there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sloplet_monitor::{Done, Task, is_confined, perform, task};
use sloplet_policy::Realm;
use sloplet_sys::clone::SingleThreaded;

use crate::idmap;
use crate::protocol::{During, Privilege, Problem};

/// The hidden subcommand that makes the binary remove a folder: first subordinate ids, then the folder.
pub const SUBCOMMAND: &str = "__remove";

const STEP: &str = "remove files of subordinate ids";

/// Has `program` remove the folder.
pub fn remove_with(program: &Path, first_uid: u32, first_gid: u32, folder: &Path) -> Result<(), Problem> {
    if is_confined() {
        return perform(&REMOVE, &(first_uid, first_gid, folder), Vec::new()).map(|((), _)| ()).during(STEP);
    }
    let ended = Command::new(program)
        .args([SUBCOMMAND, &first_uid.to_string(), &first_gid.to_string()])
        .arg(folder)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .during(STEP)?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(Problem::plain(STEP, String::from_utf8_lossy(&ended.stderr).trim().to_owned())),
    }
}

/// The same for a confined server, which cannot start programs that change their user.
pub static REMOVE: Task = Task {
    name: "remove",
    run: |input, _| {
        let (first_uid, first_gid, folder): (u32, u32, PathBuf) = task::input(input)?;
        if let Some(realm) = Realm::get() {
            // The folder itself is removed, whatever it links to.
            let parent = folder.parent().unwrap_or(&folder);
            realm.check_data(&std::fs::canonicalize(parent)?.join(folder.file_name().unwrap_or_default()))?;
        }
        let program = Path::new("/proc/self/exe");
        remove_with(program, first_uid, first_gid, &folder).map_err(|problem| std::io::Error::other(problem.detail))?;
        Done::with(&())
    },
};

/// What the subcommand does with the words after it.
pub fn run<'a>(mut words: impl Iterator<Item = &'a OsStr>) -> Result<(), Problem> {
    let usage = || Problem::plain(STEP, "it is called by sloplet itself");
    let id = |word: Option<&OsStr>| word.and_then(OsStr::to_str)?.parse().ok();
    let first_uid = id(words.next()).ok_or_else(usage)?;
    let first_gid = id(words.next()).ok_or_else(usage)?;
    let folder = Path::new(words.next().ok_or_else(usage)?);
    let thread = SingleThreaded::prove().during(STEP)?;
    idmap::enter_own_user_namespace(&thread, &Privilege::SubordinateIds { first_uid, first_gid })?;
    // Folders without permissions are no obstacle there, and no symlink below the folder is followed.
    std::fs::remove_dir_all(folder).during(STEP)
}
