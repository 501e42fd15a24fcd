//! Where sloplet keeps what it keeps.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use rustix::process::geteuid;
use sloplet_sys::private;

/// Writes a file, and its folder if need be, whole or not at all: others read it at the same time.
pub fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let draft = file.with_extension(format!("{}.draft", std::process::id()));
    fs::write(&draft, content)?;
    fs::rename(&draft, file)
}

/// Folders on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// What outlives a reboot: images.
    pub data: PathBuf,
    /// Records of what is running, in a folder for each data folder.
    pub run: PathBuf,
}

impl Places {
    /// Records of what is running for this data folder; makes the folders that are missing, for this user alone.
    pub fn own_run(&self) -> io::Result<PathBuf> {
        private::make(&self.run)?;
        let own = private::run_folder(&self.run, &self.data)?;
        private::make(&own)?;
        Ok(own)
    }

    /// What LLM calls cost, if the operator has other prices than those that were built in.
    pub fn prices(&self) -> PathBuf {
        self.data.join("prices.toml")
    }

    /// The usual places: of the system for root, of the user otherwise. `SLOPLET_DATA` and `SLOPLET_RUN` override them.
    pub fn usual() -> Self {
        let root = geteuid().is_root();
        let given = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let from_env = |name: &str| given(name).map(|path| std::path::absolute(&path).unwrap_or(path));
        let data = from_env("SLOPLET_DATA").unwrap_or_else(|| {
            if root {
                return "/var/lib/sloplet".into();
            }
            let shared = from_env("XDG_DATA_HOME").or_else(|| from_env("HOME").map(|home| home.join(".local/share")));
            shared.map_or_else(|| format!("/var/tmp/sloplet-{}", geteuid().as_raw()).into(), |dir| dir.join("sloplet"))
        });
        let run = from_env("SLOPLET_RUN").unwrap_or_else(|| {
            if root {
                return "/run/sloplet".into();
            }
            let own = from_env("XDG_RUNTIME_DIR").map(|dir| dir.join("sloplet"));
            own.unwrap_or_else(|| format!("/tmp/sloplet-{}", geteuid().as_raw()).into())
        });
        Self { data, run }
    }
}
