//! Subordinate ids of an ordinary user, from `/etc/subuid` and `/etc/subgid`.

use std::fs;
use std::path::Path;

use rustix::process::getuid;
use sloplet_spawner::lease::RANGE;

/// First subordinate user and group id, if there are enough of both and the helpers that map them.
pub fn of_this_user() -> Option<(u32, u32)> {
    let helpers = ["newuidmap", "newgidmap"];
    let installed =
        |name: &&str| ["/usr/bin", "/bin", "/usr/sbin"].iter().any(|dir| Path::new(dir).join(name).exists());
    if !helpers.iter().all(installed) {
        return None;
    }
    let uid = getuid().as_raw();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then_some(name)
    });
    let first = |file: &str| first_of(&fs::read_to_string(file).ok()?, name, uid);
    Some((first("/etc/subuid")?, first("/etc/subgid")?))
}

fn first_of(table: &str, name: Option<&str>, uid: u32) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let owner = fields.next()?;
        let (first, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.trim().parse().ok()?);
        let ours = Some(owner) == name || owner == uid.to_string();
        (ours && count >= RANGE - 1).then_some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_by_name_or_number_and_must_be_long_enough() {
        let table = "ann:100000:65536\nbob:200000:100\n1007:300000:70000\nbroken\n";
        assert_eq!(first_of(table, Some("ann"), 1), Some(100_000));
        assert_eq!(first_of(table, Some("bob"), 1), None);
        assert_eq!(first_of(table, None, 1007), Some(300_000));
        assert_eq!(first_of(table, Some("eve"), 1), None);
    }
}
