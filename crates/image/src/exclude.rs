//! What somebody wants left out of a snapshot: explicitly, and told in the snapshot.
//!
//! `*.log` is every name that fits, wherever it is; `build/` every folder of that name; `/var/cache`, and anything else with a slash
//! in it, a path from the root. `*` and `?` stand for anything but a slash, `**` for anything.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType};

use crate::beneath::{open_dir_beneath, remove_tree};

/// What to leave out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: Vec<u8>,
    from_root: bool,
    only_folders: bool,
}

impl Pattern {
    /// Reads one; what cannot be one is told.
    pub fn new(text: &str) -> Result<Self, String> {
        let only_folders = text.ends_with('/');
        let plain = text.trim_end_matches('/');
        let from_root = plain.contains('/');
        let plain = plain.trim_start_matches('/');
        let parts = || plain.split('/');
        if plain.is_empty()
            || plain.len() > 4000
            || plain.contains('\0')
            || parts().any(|p| matches!(p, "" | "." | ".."))
        {
            return Err(format!("'{}' is no pattern like '*.log', 'build/' or '/var/cache'", text.escape_debug()));
        }
        Ok(Self { text: plain.as_bytes().to_vec(), from_root, only_folders })
    }

    fn fits(&self, path: &[u8], name: &[u8], is_folder: bool) -> bool {
        (is_folder || !self.only_folders) && fits(&self.text, if self.from_root { path } else { name })
    }
}

/// Whether a text fits a pattern, in time that grows with the product of both at most.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    // For each place in the text: whether what was read of the pattern fits up to there.
    let mut at = vec![false; text.len() + 1];
    at[0] = true;
    let mut rest = pattern;
    while let Some((first, after)) = rest.split_first() {
        let mut next = vec![false; text.len() + 1];
        if *first == b'*' {
            let any = after.first() == Some(&b'*');
            rest = if any { &after[1..] } else { after };
            for place in 0..=text.len() {
                next[place] = at[place] || (place > 0 && next[place - 1] && (any || text[place - 1] != b'/'));
            }
        } else {
            rest = after;
            for place in 1..=text.len() {
                let byte = text[place - 1];
                next[place] = at[place - 1] && (*first == byte || (*first == b'?' && byte != b'/'));
            }
        }
        at = next;
    }
    at[text.len()]
}

/// Removes what fits from a folder that nobody else sees. Returns the bytes of the files that went.
pub(crate) fn remove(root: BorrowedFd<'_>, patterns: &[Pattern]) -> io::Result<u64> {
    if patterns.is_empty() { Ok(0) } else { walk(root, &[], patterns, false) }
}

/// Below a folder; all of it if it fits itself, only to be counted then.
fn walk(dir: BorrowedFd<'_>, path: &[u8], patterns: &[Pattern], all: bool) -> io::Result<u64> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    let mut bytes = 0;
    for name in names {
        let path = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
        let stat = rustix::fs::statat(dir, OsStr::from_bytes(&name), AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_folder = kind == FileType::Directory;
        let goes = all || patterns.iter().any(|pattern| pattern.fits(&path, &name, is_folder));
        if is_folder {
            bytes += walk(open_dir_beneath(dir, &name)?.as_fd(), &path, patterns, goes)?;
        } else if goes && kind == FileType::RegularFile {
            bytes += stat.st_size as u64;
        }
        if goes && !all {
            remove_tree(dir, OsStr::from_bytes(&name))?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_fits_goes_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for file in
            ["a/x.log", "a/b/y.log", "build/keep", "c/build/z", "c/build.txt", "var/cache/q", "srv/var/cache/q", ".env"]
        {
            fs::create_dir_all(at(file).parent().unwrap()).unwrap();
            fs::write(at(file), "four").unwrap();
        }
        let patterns = ["*.log", "build/", "/var/cache", "s?v/**/q"].map(|text| Pattern::new(text).unwrap());
        let root = crate::beneath::open_dir(dir.path()).unwrap();
        assert_eq!(remove(root.as_fd(), &patterns).unwrap(), 6 * 4);
        for gone in ["a/x.log", "a/b/y.log", "build", "c/build", "var/cache", "srv/var/cache/q"] {
            assert!(!at(gone).exists(), "{gone}");
        }
        for kept in ["a/b", "c/build.txt", "var", "srv/var/cache", ".env"] {
            assert!(at(kept).exists(), "{kept}");
        }
        for wrong in ["", "/", "..", "a/../b", "a//b", "./a"] {
            assert!(Pattern::new(wrong).is_err(), "{wrong}");
        }
        assert!(fits(b"a*b**c", b"axbx/xc") && !fits(b"a*c", b"a/c") && !fits(b"*", b"a/b") && fits(b"**", b"a/b"));
    }
}
