//! What a confined server may have done for it outside its confinement.
//!
//! Whoever takes a server over can ask its monitor and its spawners for anything. So each of them checks requests by itself,
//! against what the operator said when the server started: this.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use crate::protect::Protected;

/// The folders of a server, and what it must never show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Realm {
    /// The data folder: images, volumes, the database. All of it is the server's own.
    pub data: PathBuf,
    /// The run folder of that data folder.
    pub run: PathBuf,
    /// The home of the user who started the server: it may be listed nowhere.
    pub home: Option<PathBuf>,
    /// Where the host describes devices for sandboxes (CDI).
    pub cdi: Vec<PathBuf>,
    /// Paths that the operator listed as never to be shown.
    pub protect: Vec<PathBuf>,
}

static REALM: OnceLock<Realm> = OnceLock::new();

/// Where programs and libraries are, which may be shown read-only.
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot"];

impl Realm {
    /// Makes this the realm of this process and of those that it forks.
    pub fn install(self) {
        let _ = REALM.set(self);
    }

    /// The realm of this process, if it works for a confined server.
    pub fn get() -> Option<&'static Self> {
        REALM.get()
    }

    /// As arguments of a program.
    pub fn words(&self) -> Vec<OsString> {
        let home = self.home.clone().unwrap_or_default();
        let cdi = std::env::join_paths(&self.cdi).unwrap_or_default().into();
        let all = [&self.data, &self.run, &home, &cdi].into_iter().chain(&self.protect);
        all.map(|path| path.as_os_str().to_owned()).collect()
    }

    /// The opposite; `None` without arguments.
    pub fn from_words(mut words: impl Iterator<Item = OsString>) -> Option<Self> {
        let (data, run, home) = (words.next()?.into(), words.next()?.into(), words.next()?);
        let home = (!home.is_empty()).then(|| home.into());
        let cdi = std::env::split_paths(&words.next()?).collect();
        Some(Self { data, run, home, cdi, protect: words.map(PathBuf::from).collect() })
    }

    /// Refuses a folder that is not in the run folder, or in that of virtual machines beside it.
    pub fn check_run(&self, folder: &Path) -> io::Result<()> {
        let mut machines = self.run.as_os_str().to_owned();
        machines.push(sloplet_machines());
        let inside = folder.starts_with(&self.run) || folder.starts_with(Path::new(&machines));
        if inside && is_plain(folder) { Ok(()) } else { Err(refused(folder, "it is not in the server's run folder")) }
    }

    /// Refuses what is not in the data folder. `real` is the path of something open, or is opened without following links.
    pub fn check_data(&self, real: &Path) -> io::Result<()> {
        if self.is_own(real) { Ok(()) } else { Err(refused(real, "it is not in the server's data folder")) }
    }

    /// Refuses what is neither the server's own nor a program or library of the host nor unprotected.
    pub fn check_system(&self, real: &Path) -> io::Result<()> {
        let is_system = SYSTEM.iter().any(|system| real.starts_with(system)) && is_plain(real);
        if is_system || self.describes(real.as_os_str()) {
            return Ok(());
        }
        self.check_shown(real)
    }

    /// Refuses what may not be shown inside a sandbox: keys of the host, the system itself, what the operator listed.
    pub fn check_shown(&self, real: &Path) -> io::Result<()> {
        self.judge(real, &self.protect)
    }

    /// The same for what is masked before it is shown: the operator's list does not count.
    pub fn check_masked(&self, real: &Path) -> io::Result<()> {
        self.judge(real, &[])
    }

    /// Refuses a device that the host does not describe for sandboxes.
    pub fn check_device(&self, real: &Path) -> io::Result<()> {
        if real == Path::new("/dev/kvm") || self.is_own(real) || self.describes(real.as_os_str()) {
            return Ok(());
        }
        Err(refused(real, "no CDI file of this host names it"))
    }

    fn judge(&self, real: &Path, listed: &[PathBuf]) -> io::Result<()> {
        if self.is_own(real) {
            return Ok(());
        }
        if !is_plain(real) {
            return Err(refused(real, "it is not a plain absolute path"));
        }
        let own = [self.data.clone(), self.run.clone()];
        let protected = Protected::for_host(self.home.as_deref(), &own).with(listed);
        protected.judge(real, real).map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error.to_string()))
    }

    /// Whether a CDI file names a path. The files are the administrator's own.
    fn describes(&self, path: &OsStr) -> bool {
        let files = self.cdi.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
        let is_text = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "json" || kind == "yaml");
        let files = files.map(|file| file.path()).filter(|path| is_text(path) && path.is_file());
        let wanted = path.as_encoded_bytes();
        let parts = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b',');
        let mut texts = files.filter_map(|file| std::fs::read(file).ok());
        texts.any(|text| text.split(parts).any(|word| word == wanted))
    }

    fn is_own(&self, path: &Path) -> bool {
        let data = std::fs::canonicalize(&self.data).unwrap_or_else(|_| self.data.clone());
        (path.starts_with(&data) || path.starts_with(&self.data)) && is_plain(path)
    }
}

/// What the name of a run folder ends with if virtual machines are recorded in it.
fn sloplet_machines() -> &'static str {
    "-vm"
}

fn is_plain(path: &Path) -> bool {
    path.is_absolute() && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

fn refused(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("'{}' is refused: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn realm() -> Realm {
        let protect = vec!["/srv/secret".into()];
        let cdi = vec!["/etc/cdi".into(), "/run/cdi".into()];
        Realm { data: "/var/lib/x".into(), run: "/run/x/1-2".into(), home: Some("/home/me".into()), cdi, protect }
    }

    #[test]
    fn a_server_that_was_taken_over_is_shown_nothing_of_the_host_itself() {
        let realm = realm();
        for path in
            ["/", "/etc", "/etc/shadow", "/root", "/home/me/.ssh", "/dev/sda", "/proc/1", "/srv/secret/a", "/run/x"]
        {
            assert!(realm.check_shown(Path::new(path)).is_err(), "{path}");
            assert!(realm.check_data(Path::new(path)).is_err(), "{path}");
            assert!(realm.check_device(Path::new(path)).is_err(), "{path}");
        }
        for path in ["/var/lib/x/../../../etc/shadow", "relative", "/srv/../etc"] {
            assert!(realm.check_shown(Path::new(path)).is_err(), "{path}");
            assert!(realm.check_data(Path::new(path)).is_err(), "{path}");
            assert!(realm.check_system(Path::new(path)).is_err(), "{path}");
        }
        realm.check_shown(Path::new("/srv/project")).unwrap();
        realm.check_shown(Path::new("/var/lib/x/volumes/a")).unwrap();
        realm.check_masked(Path::new("/srv/secret/a.csv")).unwrap();
        realm.check_system(Path::new("/usr/bin")).unwrap();
    }

    #[test]
    fn doors_are_in_the_run_folder_alone() {
        let realm = realm();
        realm.check_run(Path::new("/run/x/1-2/owner")).unwrap();
        realm.check_run(Path::new("/run/x/1-2-vm/owner")).unwrap();
        for path in ["/run/x/1-3/owner", "/run/x/1-2/../1-3", "/run/systemd", "/run/x/1-2-vmx/owner"] {
            assert!(realm.check_run(Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn it_travels_as_arguments() {
        let realm = realm();
        assert_eq!(Realm::from_words(realm.words().into_iter()), Some(realm));
        assert_eq!(Realm::from_words(std::iter::empty()), None);
    }
}
