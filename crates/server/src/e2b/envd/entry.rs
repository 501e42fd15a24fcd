//! Files as E2B's clients see them.

use std::collections::BTreeMap;

use serde::Serialize;
use sloplet_wire::{Entry, FileKind};

/// The attributes that are a file's metadata.
pub const METADATA: &str = "e2b.";

/// `EntryInfo`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryInfo {
    name: String,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    path: String,
    /// As a string: numbers of 64 bits are.
    size: String,
    mode: u32,
    permissions: String,
    owner: String,
    group: String,
    modified_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_symlink: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

impl EntryInfo {
    /// Of what the agent found.
    pub fn new(entry: &Entry) -> Self {
        let path = clean(&String::from_utf8_lossy(&entry.path));
        let is_symlink = entry.kind == FileKind::Symlink;
        let end = entry.rare.as_ref().and_then(|rare| rare.end.as_ref());
        // A symlink counts as what it leads to.
        let (kind, mode) = match (is_symlink, end) {
            (true, Some(end)) => (Some(end.kind), end.mode),
            (true, None) => (None, 0),
            (false, _) => (Some(entry.kind), entry.mode),
        };
        let symlink_target = is_symlink.then(|| match end {
            Some(end) => String::from_utf8_lossy(&end.path).into_owned(),
            None => path.clone(),
        });
        Self {
            name: name(&path).to_owned(),
            kind: kind.and_then(type_name),
            size: entry.size.to_string(),
            mode: mode & 0o777,
            permissions: permissions(entry.kind, entry.mode),
            owner: entry.owner.clone().unwrap_or_else(|| entry.uid.to_string()),
            group: entry.group.clone().unwrap_or_else(|| entry.gid.to_string()),
            modified_time: timestamp(entry.modified_ns),
            symlink_target,
            is_symlink,
            metadata: metadata(entry),
            path,
        }
    }

    /// Its absolute path.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// What a client has attached to a file.
pub fn metadata(entry: &Entry) -> BTreeMap<String, String> {
    let attributes = entry.rare.iter().flat_map(|rare| &rare.attributes);
    let mine = attributes.filter_map(|attribute| {
        let name = attribute.name.strip_prefix(METADATA.as_bytes()).filter(|name| !name.is_empty())?;
        Some((std::str::from_utf8(name).ok()?.to_owned(), String::from_utf8_lossy(&attribute.value).into_owned()))
    });
    mine.collect()
}

fn type_name(kind: FileKind) -> Option<&'static str> {
    match kind {
        FileKind::File => Some("FILE_TYPE_FILE"),
        FileKind::Directory => Some("FILE_TYPE_DIRECTORY"),
        FileKind::Symlink => Some("FILE_TYPE_SYMLINK"),
        FileKind::Other => None,
    }
}

/// The last component.
pub fn name(path: &str) -> &str {
    match path.rsplit('/').next() {
        Some("") | None => path,
        Some(name) => name,
    }
}

/// An absolute path without `.`, `..` and superfluous slashes.
pub fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// As Go writes a mode, since E2B's clients show it: `-rw-r--r--`, `drwxr-xr-x`, `Lrwxrwxrwx`, `dtrwxrwxrwx`.
fn permissions(kind: FileKind, mode: u32) -> String {
    let mut out = String::new();
    match kind {
        FileKind::Directory => out.push('d'),
        FileKind::Symlink => out.push('L'),
        FileKind::File | FileKind::Other => {}
    }
    for (bit, letter) in [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')] {
        if mode & bit != 0 {
            out.push(letter);
        }
    }
    if kind == FileKind::Other {
        out.push('?');
    }
    if out.is_empty() {
        out.push('-');
    }
    for (position, letter) in "rwxrwxrwx".chars().enumerate() {
        out.push(if mode & (0o400 >> position) != 0 { letter } else { '-' });
    }
    out
}

/// Nanoseconds since 1970 in the form of RFC 3339.
pub fn timestamp(nanoseconds: i64) -> String {
    let (seconds, fraction) = (nanoseconds.div_euclid(1_000_000_000), nanoseconds.rem_euclid(1_000_000_000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years begin in March here, so that a leap day is the last one: eras of 400 years, years of 365.2425 days.
    let from_march = days + 719_468;
    let (era, day_of_era) = (from_march.div_euclid(146_097), from_march.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:09}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sloplet_wire::{Attribute, LinkEnd, Rare};

    fn entry(kind: FileKind, rare: Option<Rare>) -> Entry {
        Entry {
            path: b"/home/user/./a//b".to_vec().into(),
            kind,
            size: 5,
            mode: 0o644,
            uid: 1000,
            gid: 7,
            modified_ns: 0,
            link_target: None,
            owner: Some("user".into()),
            group: None,
            rare: rare.map(Box::new),
        }
    }

    #[test]
    fn a_file_is_described_in_full() {
        let attribute = |name: &str| Attribute { name: name.as_bytes().to_vec().into(), value: b"v".to_vec().into() };
        let rare = Rare { end: None, attributes: vec![attribute("e2b.author"), attribute("other"), attribute("e2b.")] };
        let info = serde_json::to_value(EntryInfo::new(&entry(FileKind::File, Some(rare)))).unwrap();
        let right = serde_json::json!({
            "name": "b", "type": "FILE_TYPE_FILE", "path": "/home/user/a/b", "size": "5", "mode": 0o644,
            "permissions": "-rw-r--r--", "owner": "user", "group": "7",
            "modifiedTime": "1970-01-01T00:00:00.000000000Z", "metadata": {"author": "v"},
        });
        assert_eq!(info, right);
    }

    #[test]
    fn a_symlink_counts_as_its_end() {
        let end = LinkEnd { path: b"/x".to_vec().into(), kind: FileKind::Directory, mode: 0o755 };
        let info = EntryInfo::new(&entry(FileKind::Symlink, Some(Rare { end: Some(end), attributes: vec![] })));
        assert_eq!(
            (info.kind, info.mode, info.symlink_target.as_deref()),
            (Some("FILE_TYPE_DIRECTORY"), 0o755, Some("/x"))
        );
        let broken = EntryInfo::new(&entry(FileKind::Symlink, None));
        assert_eq!((broken.kind, broken.symlink_target.as_deref()), (None, Some("/home/user/a/b")));
    }

    #[test]
    fn modes_and_times_are_written_as_go_does() {
        assert_eq!(permissions(FileKind::Directory, 0o1777), "dtrwxrwxrwx");
        assert_eq!(permissions(FileKind::File, 0o4755), "urwxr-xr-x");
        assert_eq!(permissions(FileKind::Symlink, 0o777), "Lrwxrwxrwx");
        assert_eq!(timestamp(951_782_400_000_000_001), "2000-02-29T00:00:00.000000001Z");
        assert_eq!(timestamp(1_735_689_599_999_999_999), "2024-12-31T23:59:59.999999999Z");
        assert_eq!(timestamp(-1), "1969-12-31T23:59:59.999999999Z");
    }

    #[test]
    fn paths_are_cleaned() {
        for (given, clean_) in [("/", "/"), ("/a/../../b/", "/b"), ("//a/./b", "/a/b"), ("/..", "/")] {
            assert_eq!(clean(given), clean_, "{given}");
        }
        assert_eq!((name("/"), name("/a/b")), ("/", "b"));
    }
}
