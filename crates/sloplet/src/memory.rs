//! How much memory a server may use: what the machine has, or what its control groups leave it.

use std::fs;
use std::path::Path;

/// What a server holds for clients at most, unless its operator says otherwise.
const MOST: u64 = 512 << 20;

/// The least that is of use.
const LEAST: u64 = 16 << 20;

/// What a server with so much memory holds for clients: a quarter. It needs the rest for itself and its sandboxes' records.
pub fn usual_buffers(usable: u64) -> u64 {
    (usable / 4).clamp(LEAST, MOST)
}

/// The machine's memory, or the tightest limit of the control groups that this process is in.
pub fn usable() -> u64 {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let machine = machine(&read("/proc/meminfo")).unwrap_or(u64::MAX);
    machine.min(groups(&read("/proc/self/cgroup"), Path::new("/sys/fs/cgroup")).unwrap_or(u64::MAX))
}

/// The machine's memory, in the words of `/proc/meminfo`.
fn machine(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The tightest limit of the groups in `/proc/self/cgroup`, and of those around them. In a container the paths may not be there;
/// its own group is the root then.
fn groups(text: &str, mounts: &Path) -> Option<u64> {
    let mut tightest: Option<u64> = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (mount, file) = match controllers {
            "" => (mounts.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (mounts.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for folder in Path::new(path.trim_start_matches('/')).ancestors() {
            let limit = fs::read_to_string(mount.join(folder).join(file)).ok();
            // "max" is no limit; in version 1, a very large number is none.
            let limit = limit.and_then(|text| text.trim().parse().ok());
            tightest = tightest.into_iter().chain(limit).min();
        }
    }
    tightest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_a_quarter_of_what_the_tightest_group_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let (two, one) = (dir.path().join("a/b"), dir.path().join("memory/c"));
        fs::create_dir_all(&two).unwrap();
        fs::create_dir_all(&one).unwrap();
        fs::write(two.join("memory.max"), "max\n").unwrap();
        fs::write(dir.path().join("a/memory.max"), "134217728\n").unwrap();
        fs::write(one.join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        fs::write(dir.path().join("memory/memory.limit_in_bytes"), "268435456\n").unwrap();
        assert_eq!(groups("0::/a/b\n", dir.path()), Some(128 << 20));
        assert_eq!(groups("9:pids:/x\n5:memory:/c\n", dir.path()), Some(256 << 20));
        assert_eq!(groups("5:cpu,memory:/not/there\n", dir.path()), Some(256 << 20));
        assert_eq!(groups("0::/\n", dir.path()), None);
        assert_eq!(machine("MemFree: 1 kB\nMemTotal:       2048 kB\n"), Some(2 << 20));
        assert_eq!([0, 128 << 20, 8 << 30].map(usual_buffers), [16 << 20, 32 << 20, 512 << 20]);
    }
}
