//! Work that takes long and that nobody waits for: folders with many files go away here.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::new_secret;

/// The name of a folder that is on its way out begins so. Nothing that is in use has such a name.
const LEAVING: &str = ".leaving-";

type Task = Box<dyn FnOnce() + Send>;

/// One task after the other, on a thread of its own that begins with the first; clones share it. What is left when the
/// process ends is collected at the next start.
#[derive(Clone, Default)]
pub struct Aside(Arc<Mutex<Option<Sender<Task>>>>);

impl Aside {
    /// Has something done later.
    pub fn later(&self, task: impl FnOnce() + Send + 'static) {
        let mut worker = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut task: Task = Box::new(task);
        if let Some(tasks) = &*worker {
            match tasks.send(task) {
                Ok(()) => return,
                // It panicked: the next one has a thread of its own.
                Err(back) => task = back.0,
            }
        }
        let (tasks, queue) = mpsc::channel::<Task>();
        let _ = tasks.send(task);
        let spawned = std::thread::Builder::new().name("aside".into()).spawn(move || {
            while let Ok(task) = queue.recv() {
                task();
            }
        });
        match spawned {
            Ok(_) => *worker = Some(tasks),
            Err(error) => tracing::warn!(%error, "no thread for what is to be done later: the next start does it"),
        }
    }
}

/// Moves a folder out of sight, to a name beside it that nobody can guess. One rename, however much is in it.
pub fn take_away(folder: &Path) -> std::io::Result<PathBuf> {
    let away = folder.with_file_name(format!("{LEAVING}{}", new_secret()));
    std::fs::rename(folder, &away)?;
    Ok(away)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_in_turn_and_outlive_one_that_panics() {
        let aside = Aside::default();
        let (done, all) = mpsc::channel();
        for number in 0..3 {
            let done = done.clone();
            aside.later(move || done.send(number).unwrap());
        }
        assert_eq!(all.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
        aside.later(|| panic!("a task that fails"));
        // The thread may still be about to end; a task that it took with it is not awaited for ever.
        let started = std::time::Instant::now();
        loop {
            let done = done.clone();
            aside.later(move || {
                let _ = done.send(3);
            });
            if all.recv_timeout(std::time::Duration::from_millis(100)) == Ok(3) {
                break;
            }
            assert!(started.elapsed() < std::time::Duration::from_secs(30));
        }
    }

    #[test]
    fn a_folder_is_taken_away_with_all_that_is_in_it() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("many");
        std::fs::create_dir_all(folder.join("deep")).unwrap();
        let away = take_away(&folder).unwrap();
        assert!(!folder.exists() && away.join("deep").exists());
        assert_eq!(away.parent(), folder.parent());
        assert!(take_away(&folder).is_err());
    }
}
