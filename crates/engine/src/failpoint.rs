//! Points at which a test can end the server, so that every step of every operation is the last one once.
//!
//! Release builds have none: [`reach`] does nothing there. In others the variable [`VARIABLE`] names a file. Each point that is
//! reached is added to it as a line; a file beside it, with the extension `armed`, says `NAME:COUNT`: the server kills itself
//! when it reaches that point so often. The name [`ANY`] counts every point.

/// The variable that names the file, in builds with debug assertions.
pub const VARIABLE: &str = "SLOPLET_TEST_FAILPOINTS";

/// Whether this build has points at which it can be ended.
pub const ENABLED: bool = cfg!(debug_assertions);

/// Stands for any point in the file that says where to die.
pub const ANY: &str = "*";

macro_rules! points {
    ($($point:ident $name:literal),+ $(,)?) => {
        /// A step that others can see. It is between what is done before and what is done after.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "their names say it")]
        pub enum Point { $($point),+ }

        impl Point {
            /// All there are.
            pub const ALL: &[Self] = &[$(Self::$point),+];

            /// Its name in the file.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$point => $name),+ }
            }
        }
    };
}

points! {
    // The record of a sandbox, and what else is remembered of it.
    BeforeRecord "before-record",
    AfterRecord "after-record",
    BeforeRecordRemoved "before-record-removed",
    AfterRecordRemoved "after-record-removed",
    AfterForgotten "after-forgotten",
    // Its machine.
    BeforeMachine "before-machine",
    AfterMachine "after-machine",
    AfterGreeting "after-greeting",
    AfterSettled "after-settled",
    BeforeFreeze "before-freeze",
    AfterFreeze "after-freeze",
    BeforeThaw "before-thaw",
    AfterThaw "after-thaw",
    BeforeDestroy "before-destroy",
    AfterDestroy "after-destroy",
    BeforeDeadline "before-deadline",
    AfterDeadline "after-deadline",
    BeforeExec "before-exec",
    AfterExec "after-exec",
    // Its files.
    BeforeCopy "before-copy",
    AfterCopy "after-copy",
    AfterImage "after-image",
    BeforeImageDropped "before-image-dropped",
    AfterImageDropped "after-image-dropped",
    BeforeSnapshotRecord "before-snapshot-record",
    AfterSnapshotRecord "after-snapshot-record",
    AfterSnapshotForgotten "after-snapshot-forgotten",
    // Pools, and their machines that wait.
    AfterPoolRecord "after-pool-record",
    AfterPoolForgotten "after-pool-forgotten",
    BeforeWarmRecord "before-warm-record",
    AfterWarmRecord "after-warm-record",
    AfterWarmReady "after-warm-ready",
    AfterWarmForgotten "after-warm-forgotten",
    AfterClaimed "after-claimed",
    // Volumes.
    AfterVolumeFolder "after-volume-folder",
    AfterVolumeDisk "after-volume-disk",
    AfterVolumeRecord "after-volume-record",
    AfterVolumeEmptied "after-volume-emptied",
    AfterVolumeForgotten "after-volume-forgotten",
    // Templates and their builds.
    AfterTemplateRecord "after-template-record",
    AfterBuildRecord "after-build-record",
    AfterBuildStarted "after-build-started",
    BeforeCacheRecord "before-cache-record",
    AfterCacheRecord "after-cache-record",
    AfterBuildImage "after-build-image",
    BeforeBuildFinished "before-build-finished",
    AfterBuildFinished "after-build-finished",
    AfterTemplateForgotten "after-template-forgotten",
    AfterBuildForgotten "after-build-forgotten",
    // A server that finds what an earlier one left.
    AfterAdoption "after-adoption",
    BeforeTakeOver "before-take-over",
    AfterTakeOver "after-take-over",
    AfterOrphan "after-orphan",
    AfterSweep "after-sweep",
}

/// Says that the server is at a point. It may be its last.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn reach(_: Point) {}

/// Says that the server is at a point. It may be its last.
#[cfg(debug_assertions)]
pub fn reach(point: Point) {
    use std::path::Path;
    use std::sync::{Mutex, OnceLock, PoisonError};
    static FILE: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let Some(file) = FILE.get_or_init(|| std::env::var_os(VARIABLE)) else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if is_last(Path::new(file), point.name()) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // Nobody is to see another step.
        std::thread::sleep(std::time::Duration::from_secs(60));
    }
}

/// Adds a point to those that were reached; whether the test wants it to be the last.
#[cfg(debug_assertions)]
fn is_last(file: &std::path::Path, name: &str) -> bool {
    use std::io::Write;
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(file);
    if opened.and_then(|mut file| file.write_all(format!("{name}\n").as_bytes())).is_err() {
        return false;
    }
    let Ok(armed) = std::fs::read_to_string(file.with_extension("armed")) else { return false };
    let Some((wanted, count)) = armed.trim().split_once(':') else { return false };
    let reached = std::fs::read_to_string(file).unwrap_or_default();
    let counts = |line: &&str| wanted == ANY || *line == wanted;
    (wanted == name || wanted == ANY) && count.parse() == Ok(reached.lines().filter(counts).count())
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn names_differ() {
        let mut names: Vec<&str> = Point::ALL.iter().map(|point| point.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Point::ALL.len());
    }

    #[test]
    fn the_point_that_is_armed_is_the_last_when_it_is_reached_so_often() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("reached");
        assert!(!is_last(&file, "a"), "nothing is armed");
        std::fs::remove_file(&file).unwrap();
        std::fs::write(file.with_extension("armed"), "a:2").unwrap();
        assert!(!is_last(&file, "a") && !is_last(&file, "b") && is_last(&file, "a") && !is_last(&file, "a"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a\nb\na\na\n");
        std::fs::write(file.with_extension("armed"), format!("{ANY}:6")).unwrap();
        assert!(!is_last(&file, "b") && is_last(&file, "c") && !is_last(&file, "c"), "the sixth of all");
    }
}
