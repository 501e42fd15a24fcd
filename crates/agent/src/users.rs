//! Users and groups, as the sandbox's own `/etc/passwd` and `/etc/group` have them.
//!
//! Both files belong to whoever is root inside: they are read within bounds and lines that make no sense are skipped.

use std::collections::BTreeMap;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use sloplet_wire::{ErrorCode, Failure};

use crate::Identity;
use crate::context::path_bytes;
use crate::failure::fail;
use crate::files::resolve::Root;

/// Read of each file; real ones are a few KiB.
const MAX_DATABASE_BYTES: usize = 1024 * 1024;

/// Supplementary groups taken.
const MAX_GROUPS: usize = 1024;

/// Longest name taken.
const MAX_NAME_BYTES: usize = 256;

/// A user, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    /// None for a bare number.
    pub(crate) name: Option<String>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) home: Vec<u8>,
    /// The shell that is listed for them, if it makes sense.
    pub(crate) shell: Option<Vec<u8>>,
}

/// Finds `asked` (`name`, `uid` or `uid:gid`), or the default user.
pub(crate) fn find(identity: &Identity, root: &Root, asked: Option<&str>) -> Result<User, Failure> {
    match identity {
        Identity::Fixed { uid, gid, name, home } => {
            let same = |asked: &str| asked == name || asked == uid.to_string() || asked == format!("{uid}:{gid}");
            match asked {
                Some(other) if !same(other) => {
                    Err(fail(ErrorCode::NoUser, format!("no user {other:?}: this sandbox has {name:?} only")))
                }
                _ => Ok(User {
                    name: Some(name.clone()),
                    uid: *uid,
                    gid: *gid,
                    groups: Vec::new(),
                    home: path_bytes(home).to_vec(),
                    shell: None,
                }),
            }
        }
        Identity::Switch { default_user } => {
            let asked = asked.unwrap_or(default_user);
            look_up(asked, &read(root, b"/etc/passwd"), || read(root, b"/etc/group"))
        }
    }
}

/// Names of owners, for listings.
#[derive(Debug)]
pub(crate) struct Names {
    users: BTreeMap<u32, String>,
    groups: BTreeMap<u32, String>,
}

impl Names {
    pub(crate) fn load(root: &Root) -> Self {
        let table = |path: &[u8]| {
            let mut names = BTreeMap::new();
            for line in lines(&read(root, path)) {
                if let (Some(name), Some(id)) = (text(line.first()), number(line.get(2))) {
                    names.entry(id).or_insert_with(|| name.to_owned());
                }
            }
            names
        };
        Self { users: table(b"/etc/passwd"), groups: table(b"/etc/group") }
    }

    pub(crate) fn user(&self, uid: u32) -> Option<String> {
        self.users.get(&uid).cloned()
    }

    pub(crate) fn group(&self, gid: u32) -> Option<String> {
        self.groups.get(&gid).cloned()
    }
}

fn look_up(asked: &str, passwd: &[u8], group: impl FnOnce() -> Vec<u8>) -> Result<User, Failure> {
    let missing = || fail(ErrorCode::NoUser, format!("no user {asked:?} in /etc/passwd"));
    let (who, asked_gid) = match asked.split_once(':') {
        Some((who, gid)) => (who, Some(id(gid).ok_or_else(missing)?)),
        None => (asked, None),
    };
    if who.is_empty() {
        return Err(missing());
    }
    let listed = lines(passwd).find(|line| text(line.first()) == Some(who)).or_else(|| {
        let uid = id(who)?;
        lines(passwd).find(|line| number(line.get(2)) == Some(uid))
    });
    let Some(line) = listed else {
        // A bare number need not be listed. It gets the group of the same number and no home.
        let uid = id(who).ok_or_else(missing)?;
        let gid = asked_gid.unwrap_or(uid);
        return Ok(User { name: None, uid, gid, groups: vec![gid], home: b"/".to_vec(), shell: None });
    };
    let (Some(uid), Some(own_gid)) = (number(line.get(2)), number(line.get(3))) else {
        return Err(fail(ErrorCode::Invalid, format!("the line of user {asked:?} in /etc/passwd is malformed")));
    };
    let gid = asked_gid.unwrap_or(own_gid);
    let path = |field: usize| {
        let path = line.get(field).filter(|path| path.starts_with(b"/") && !path.contains(&0));
        path.map(|path| path.to_vec())
    };
    let (home, shell) = (path(5).unwrap_or_else(|| b"/".to_vec()), path(6));
    let mut groups = vec![gid];
    if asked_gid.is_none() {
        let name = line.first().copied().unwrap_or_default();
        for line in lines(&group()) {
            let member = line.get(3).is_some_and(|members| members.split(|byte| *byte == b',').any(|m| m == name));
            if let (true, Some(gid)) = (member, number(line.get(2)))
                && !groups.contains(&gid)
                && groups.len() < MAX_GROUPS
            {
                groups.push(gid);
            }
        }
    }
    Ok(User { name: text(line.first()).map(str::to_owned), uid, gid, groups, home, shell })
}

fn lines(database: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    database.split(|byte| *byte == b'\n').map(|line| line.splitn(8, |byte| *byte == b':').collect())
}

fn text<'a>(field: Option<&&'a [u8]>) -> Option<&'a str> {
    let name = std::str::from_utf8(field?).ok()?;
    (!name.is_empty() && name.len() <= MAX_NAME_BYTES).then_some(name)
}

fn number(field: Option<&&[u8]>) -> Option<u32> {
    id(std::str::from_utf8(field?).ok()?)
}

fn id(text: &str) -> Option<u32> {
    // The largest number means "unchanged" to the kernel.
    text.parse().ok().filter(|id| *id != u32::MAX && text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The file's content, empty if it cannot be had: then there are no names, and numbers still work.
fn read(root: &Root, path: &[u8]) -> Vec<u8> {
    try_read(root, path).unwrap_or_default()
}

fn try_read(root: &Root, path: &[u8]) -> Result<Vec<u8>, Errno> {
    // Non-blocking, because it may be a FIFO or a leased file by now.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = root.open_below(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let mut content = vec![0; (stat.st_size as usize).min(MAX_DATABASE_BYTES)];
    let mut filled = 0;
    while filled < content.len() {
        match rustix::io::read(&file, &mut content[filled..])? {
            0 => break,
            len => filled += len,
        }
    }
    content.truncate(filled);
    Ok(content)
}

/// Looks a user up in databases from an image; see [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub fn fuzzed(asked: &str, passwd: &[u8], group: &[u8]) {
    if let Ok(user) = look_up(asked, passwd, || group.to_vec()) {
        assert!(user.groups.len() <= MAX_GROUPS, "{} groups", user.groups.len());
        assert!(!user.home.contains(&0), "{:?}", user.home);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1001::/home/user:/bin/bash\nodd:x:99999999999:1::/:\n\
        short:x\n\xff\xfe:x:5:5::/:/\nmax:x:4294967295:1::/:\nrelative:x:7:7::home:/bin/sh";
    const GROUP: &[u8] = b"root:x:0:\nwheel:x:10:root,user\nuser:x:1001:user\nbad:x:y:user\nmany:x:11:usera,user";

    fn found(asked: &str) -> Result<User, ErrorCode> {
        look_up(asked, PASSWD, || GROUP.to_vec()).map_err(|failure| failure.code)
    }

    #[test]
    fn names_numbers_and_pairs_are_found() {
        let user = User {
            name: Some("user".into()),
            uid: 1000,
            gid: 1001,
            groups: vec![1001, 10, 11],
            home: b"/home/user".to_vec(),
            shell: Some(b"/bin/bash".to_vec()),
        };
        assert_eq!(found("user"), Ok(user.clone()));
        assert_eq!(found("1000"), Ok(user.clone()));
        let pair = User { gid: 5, groups: vec![5], ..user };
        assert_eq!(found("1000:5"), Ok(pair));
        let unlisted = User { name: None, uid: 4000, gid: 4000, groups: vec![4000], home: b"/".to_vec(), shell: None };
        assert_eq!(found("4000"), Ok(unlisted));
        assert_eq!(found("relative").unwrap().home, b"/");
    }

    #[test]
    fn nonsense_is_refused() {
        for asked in ["", "nobody", ":", "1000:", ":5", "user:x", "4294967295", "-1", "+5", "1e3", "99999999999"] {
            assert_eq!(found(asked), Err(ErrorCode::NoUser), "{asked:?}");
        }
        for asked in ["odd", "short", "max"] {
            assert_eq!(found(asked), Err(ErrorCode::Invalid), "{asked:?}");
        }
    }
}
