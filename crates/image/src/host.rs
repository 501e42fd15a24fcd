//! The `host` image: the host's own programs, and nothing else of the host.
//!
//! `/usr` is shown read-only as it is. Everything else is one small layer made here: the symbolic links of the root
//! directory, empty `home`, `var`, `run` and so on, accounts made up, and from `/etc` only what
//! `host_allowlist` names, which is world-readable and holds no secret. Nothing of /home, /root, /var, /run, /srv or
//! /opt is in it.
//!
//! The layer is cached under a key over the stat of the allowlisted entries, so that a warm look-up costs about forty
//! stats. Changes deep inside an allowlisted directory that leave the directory itself unchanged go unnoticed.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use crate::error::ImageError;
use crate::host_allowlist::{ETC, ETC_PREFIXES, SECRET_SUFFIXES, SYSTEM_DIRS};
use crate::image::{HostBind, ImageConfig};

/// Changes whenever the layer's content would differ for the same host.
const FORMAT: &str = "host-1";

/// Larger files are no configuration.
const MAX_FILE_BYTES: u64 = 32 << 20;

/// `user` inside.
const USER_ID: u32 = 1000;

/// The system directories of a host, `/` but for tests.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    root: PathBuf,
}

impl Host {
    pub(crate) fn new(root: &Path) -> Self {
        Host { root: root.to_path_buf() }
    }

    /// Name of the prepared layer for the host as it is now.
    pub(crate) fn layer_name(&self) -> String {
        let mut key = Key::new();
        key.add(FORMAT.as_bytes());
        key.add(&rustix::process::geteuid().as_raw().to_le_bytes());
        let etc = self.root.join("etc");
        let system = SYSTEM_DIRS.iter().map(|name| self.root.join(name));
        for path in system.chain(ETC.iter().map(|name| etc.join(name))) {
            match std::fs::symlink_metadata(&path) {
                // Only a link's or file's own change matters for /bin and so on, never the programs in them.
                Ok(m) if m.is_dir() && path.parent() == Some(self.root.as_path()) => key.add(b"directory"),
                Ok(m) => key.stamp(&m),
                Err(_) => key.add(b"absent"),
            }
        }
        format!("host-{:032x}", key.0)
    }

    /// What is mounted read-only over the layer.
    pub(crate) fn binds(&self) -> Vec<HostBind> {
        let real = |name: &&str| std::fs::symlink_metadata(self.root.join(name)).is_ok_and(|m| m.is_dir());
        let system = SYSTEM_DIRS.iter().filter(|name| real(name)).copied();
        std::iter::once("usr")
            .chain(system)
            .map(|name| HostBind { source: self.root.join(name), target: Path::new("/").join(name) })
            .collect()
    }

    /// How programs start in it.
    pub(crate) fn config() -> ImageConfig {
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        ImageConfig {
            env: vec![("PATH".to_owned(), path.to_owned()), ("LANG".to_owned(), "C.UTF-8".to_owned())],
            workdir: Some("/home/user".to_owned()),
            user: Some("user".to_owned()),
            entrypoint: Vec::new(),
            cmd: vec!["/bin/sh".to_owned()],
            ..ImageConfig::default()
        }
    }

    /// Fills the empty directory `layer`; returns the bytes of all files.
    pub(crate) fn build(&self, layer: &Path) -> Result<u64, ImageError> {
        let mut builder = Builder { host: &self.root, layer, bytes: 0 };
        builder.directories()?;
        builder.system_links()?;
        for name in ETC {
            builder.copy_etc(Path::new(name), 0)?;
        }
        for name in self.versioned_etc()? {
            builder.copy_etc(&name, 0)?;
        }
        builder.made_up()?;
        builder.mode(Path::new(""), 0o755)?;
        Ok(builder.bytes)
    }

    fn versioned_etc(&self) -> Result<Vec<PathBuf>, ImageError> {
        let etc = self.root.join("etc");
        let listing = match std::fs::read_dir(&etc) {
            Ok(listing) => listing,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(ImageError::source(&etc, e)),
        };
        let mut names = Vec::new();
        for entry in listing {
            let name = entry.map_err(|e| ImageError::source(&etc, e))?.file_name();
            if ETC_PREFIXES.iter().any(|p| name.as_bytes().starts_with(p.as_bytes())) {
                names.push(PathBuf::from(name));
            }
        }
        Ok(names)
    }
}

/// FNV-1a, 128 bits. Nobody hostile chooses the input, and SHA-256 would first ask for the processor's features, which
/// costs more than all the rest in a nested virtual machine.
struct Key(u128);

impl Key {
    fn new() -> Self {
        Key(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }

    fn stamp(&mut self, m: &Metadata) {
        for number in [m.dev(), m.ino(), u64::from(m.mode()), m.size()] {
            self.add(&number.to_le_bytes());
        }
        for number in [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()] {
            self.add(&number.to_le_bytes());
        }
    }
}

struct Builder<'a> {
    host: &'a Path,
    layer: &'a Path,
    bytes: u64,
}

impl Builder<'_> {
    fn directories(&mut self) -> Result<(), ImageError> {
        let directories: [(&str, u32); 33] = [
            ("usr", 0o755),
            ("etc", 0o755),
            ("home", 0o755),
            ("home/user", 0o755),
            ("root", 0o700),
            ("tmp", 0o1777),
            ("run", 0o755),
            ("run/lock", 0o1777),
            ("opt", 0o755),
            ("srv", 0o755),
            ("mnt", 0o755),
            ("media", 0o755),
            ("boot", 0o755),
            ("proc", 0o555),
            ("sys", 0o555),
            ("dev", 0o755),
            ("workspace", 0o755),
            ("var", 0o755),
            ("var/tmp", 0o1777),
            ("var/log", 0o755),
            ("var/cache", 0o755),
            ("var/lib", 0o755),
            ("var/lib/misc", 0o755),
            ("var/spool", 0o755),
            ("var/mail", 0o755),
            ("var/opt", 0o755),
            ("var/local", 0o755),
            ("var/empty", 0o755),
            ("etc/default", 0o755),
            ("etc/ssl", 0o755),
            ("etc/opt", 0o755),
            ("etc/pki", 0o755),
            ("etc/pki/tls", 0o755),
        ];
        for (name, mode) in directories {
            self.directory(Path::new(name), mode)?;
        }
        for name in ["home/user", "workspace"] {
            self.give_to_user(name)?;
        }
        self.link("var/run", Path::new("/run"))?;
        self.link("var/lock", Path::new("/run/lock"))?;
        self.link("etc/mtab", Path::new("/proc/self/mounts"))
    }

    /// /bin and so on: the link as on the host, or an empty directory to mount the host's onto.
    fn system_links(&mut self) -> Result<(), ImageError> {
        for name in SYSTEM_DIRS {
            let path = self.host.join(name);
            let Ok(metadata) = std::fs::symlink_metadata(&path) else {
                continue;
            };
            if metadata.is_dir() {
                self.directory(Path::new(name), 0o755)?;
            } else if metadata.is_symlink() {
                let target = std::fs::read_link(&path).map_err(|e| ImageError::source(&path, e))?;
                if target.strip_prefix("/").unwrap_or(&target).starts_with("usr") {
                    self.link(name, &target)?;
                }
            }
        }
        Ok(())
    }

    /// Copies one entry of /etc, directories with what is in them. What others may not read is left out.
    fn copy_etc(&mut self, name: &Path, depth: usize) -> Result<(), ImageError> {
        let path = self.host.join("etc").join(name);
        let target = Path::new("etc").join(name);
        let Ok(metadata) = std::fs::symlink_metadata(&path) else {
            return Ok(());
        };
        let text = name.to_string_lossy().to_lowercase();
        if depth > 16 || SECRET_SUFFIXES.iter().any(|suffix| text.ends_with(suffix)) || text.contains("private") {
            return Ok(());
        }
        if depth == 0 && !self.parents_are_open(name) {
            return Ok(());
        }
        if metadata.is_symlink() {
            let link = std::fs::read_link(&path).map_err(|e| ImageError::source(&path, e))?;
            if stays_in_shown_places(name, &link) {
                self.make_parents(&target)?;
                self.link(&target, &link)?;
            }
        } else if metadata.is_dir() && metadata.mode() & 0o005 == 0o005 {
            let Ok(listing) = std::fs::read_dir(&path) else {
                return Ok(());
            };
            self.make_parents(&target)?;
            self.directory(&target, 0o755)?;
            let mut names = Vec::new();
            for entry in listing {
                names.push(entry.map_err(|e| ImageError::source(&path, e))?.file_name());
            }
            names.sort();
            for entry in names {
                self.copy_etc(&name.join(entry), depth + 1)?;
            }
        } else if metadata.is_file() {
            self.copy_file(&path, &target)?;
        }
        Ok(())
    }

    /// A file below a directory that others may not enter is not world-readable, whatever its own mode says.
    fn parents_are_open(&self, name: &Path) -> bool {
        name.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).all(|p| {
            std::fs::symlink_metadata(self.host.join("etc").join(p)).is_ok_and(|m| m.is_dir() && m.mode() & 1 == 1)
        })
    }

    fn copy_file(&mut self, path: &Path, target: &Path) -> Result<(), ImageError> {
        let Ok(file) = OpenOptions::new()
            .read(true)
            .custom_flags((rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32)
            .open(path)
        else {
            return Ok(());
        };
        // Looked at through the open file: what is checked is what is copied.
        let metadata = file.metadata().map_err(|e| ImageError::source(path, e))?;
        if !metadata.is_file() || metadata.mode() & 0o004 == 0 || metadata.len() > MAX_FILE_BYTES {
            return Ok(());
        }
        let mut content = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut content).map_err(|e| ImageError::source(path, e))?;
        if content.windows(16).any(|w| w == b"PRIVATE KEY-----") {
            return Ok(()); // world-readable by mistake
        }
        self.make_parents(target)?;
        let mode = if metadata.mode() & 0o111 != 0 { 0o755 } else { 0o644 };
        self.file(target, &content, mode)?;
        let times =
            std::fs::FileTimes::new().set_modified(metadata.modified().map_err(|e| ImageError::source(path, e))?);
        let made = self.layer.join(target);
        OpenOptions::new()
            .write(true)
            .open(&made)
            .and_then(|f| f.set_times(times))
            .map_err(|e| ImageError::store("set the time of", &made, e))
    }

    /// Accounts and settings that say nothing of the host.
    fn made_up(&mut self) -> Result<(), ImageError> {
        let shell = if self.host.join("usr/bin/bash").exists() || self.host.join("bin/bash").exists() {
            "/bin/bash"
        } else {
            "/bin/sh"
        };
        let passwd = format!(
            "root:x:0:0:root:/root:{shell}\nuser:x:{USER_ID}:{USER_ID}:user:/home/user:{shell}\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        );
        let group = format!("root:x:0:\ntty:x:5:\nuser:x:{USER_ID}:\nnogroup:x:65534:\n");
        let nsswitch = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n\
                        protocols: files\nservices: files\nethers: files\nrpc: files\n";
        let profile = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nexport PATH\n\
                       if [ -n \"$BASH_VERSION\" ] && [ -r /etc/bash.bashrc ]; then . /etc/bash.bashrc; fi\n";
        let bashrc = "case $- in *i*) PS1='\\u@\\h:\\w\\$ ' ;; esac\n";
        let files: [(&str, &str); 10] = [
            ("etc/passwd", &passwd),
            ("etc/group", &group),
            ("etc/nsswitch.conf", nsswitch),
            ("etc/hostname", "sloplet\n"),
            ("etc/hosts", "127.0.0.1 localhost sloplet\n::1 localhost ip6-localhost ip6-loopback\n"),
            ("etc/resolv.conf", ""),
            ("etc/profile", profile),
            ("etc/bash.bashrc", bashrc),
            ("etc/shells", "/bin/sh\n/bin/bash\n"),
            ("home/user/.profile", "[ -n \"$BASH_VERSION\" ] && [ -r ~/.bashrc ] && . ~/.bashrc\n"),
        ];
        for (name, content) in files {
            self.file(Path::new(name), content.as_bytes(), 0o644)?;
        }
        let bashrc = "case $- in *i*) alias ls='ls --color=auto' ll='ls -l' ;; esac\n";
        self.file(Path::new("home/user/.bashrc"), bashrc.as_bytes(), 0o644)?;
        self.give_to_user("home/user/.profile")?;
        self.give_to_user("home/user/.bashrc")
    }

    fn make_parents(&self, target: &Path) -> Result<(), ImageError> {
        let Some(parent) = target.parent() else { return Ok(()) };
        let path = self.layer.join(parent);
        if path.is_dir() {
            return Ok(());
        }
        self.make_parents(parent)?;
        self.directory(parent, 0o755)
    }

    fn directory(&self, name: &Path, mode: u32) -> Result<(), ImageError> {
        let path = self.layer.join(name);
        match std::fs::create_dir(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(ImageError::store("create", &path, e)),
            _ => self.mode(name, mode),
        }
    }

    fn mode(&self, name: &Path, mode: u32) -> Result<(), ImageError> {
        let path = self.layer.join(name);
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(|e| ImageError::store("chmod", &path, e))
    }

    fn link(&self, name: impl AsRef<Path>, target: &Path) -> Result<(), ImageError> {
        let path = self.layer.join(name);
        symlink(target, &path).map_err(|e| ImageError::store("create", &path, e))
    }

    fn file(&mut self, name: &Path, content: &[u8], mode: u32) -> Result<(), ImageError> {
        let path = self.layer.join(name);
        let mut file = File::create_new(&path).map_err(|e| ImageError::store("create", &path, e))?;
        file.write_all(content).map_err(|e| ImageError::store("write", &path, e))?;
        self.bytes += content.len() as u64;
        self.mode(name, mode)
    }

    fn give_to_user(&self, name: &str) -> Result<(), ImageError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let path = self.layer.join(name);
        std::os::unix::fs::lchown(&path, Some(USER_ID), Some(USER_ID)).map_err(|e| ImageError::store("chown", &path, e))
    }
}

/// A link is only text, yet its text may tell of the host (`/home/alice/…`): kept when it points to what is shown.
fn stays_in_shown_places(name: &Path, link: &Path) -> bool {
    let mut at = if link.is_absolute() { PathBuf::new() } else { Path::new("etc").join(name.parent().unwrap_or(name)) };
    for component in link.components() {
        match component {
            Component::ParentDir => {
                at.pop();
            }
            Component::Normal(part) => at.push(part),
            _ => {}
        }
    }
    ["usr", "etc", "proc"].iter().any(|shown| at.starts_with(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_unshown_places_are_dropped() {
        let stays = |name: &str, link: &str| stays_in_shown_places(Path::new(name), Path::new(link));
        assert!(stays("os-release", "../usr/lib/os-release"));
        assert!(stays("localtime", "/usr/share/zoneinfo/UTC"));
        assert!(stays("ssl/certs/a.0", "a.pem"));
        assert!(!stays("alternatives/x", "/home/alice/bin/x"));
        assert!(!stays("alternatives/x", "../../root/x"));
        assert!(!stays("x", "/etc/../home/alice"));
    }
}
