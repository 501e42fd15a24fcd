//! `--disk` and `--inodes`.

use serde_json::Value;

use crate::common::{Ended, Host, Sloplet};
use crate::for_everybody;

const MIB: u64 = 1 << 20;

/// Writes until it is refused; says how much was written and why no more was.
const FILL: &str = "
import errno, json, os, sys
limit, total, reason = int(sys.argv[1]) << 20, 0, 'all'
file = open(os.path.join(sys.argv[2], 'fill'), 'wb', 0)
try:
    while total < limit: total += file.write(b'x' * 65536)
except OSError as error:
    reason = errno.errorcode[error.errno]
print(json.dumps({'written': total, 'reason': reason}))";

fn told(ended: &Ended) -> Value {
    serde_json::from_slice(&ended.stdout).unwrap_or_else(|_| panic!("{ended}"))
}

fn fill(sloplet: &Sloplet, options: &[&str], mebibytes: &str, folder: &str) -> (u64, String) {
    let ended = sloplet.run(options, &["python3", "-c", FILL, mebibytes, folder]).expect_code(0);
    let told = told(&ended);
    (told["written"].as_u64().unwrap(), told["reason"].as_str().unwrap().to_owned())
}

#[test]
fn a_disk_in_memory_is_full_at_its_size() {
    for_everybody(|sloplet| {
        for folder in ["/tmp", "/home/user", "/var/tmp"] {
            let (written, reason) = fill(sloplet, &["--disk", "16MiB"], "64", folder);
            assert_eq!(reason, "ENOSPC", "{} in {folder}", sloplet.name);
            assert!((14 * MIB..=16 * MIB).contains(&written), "{} in {folder}: {written}", sloplet.name);
        }
        assert_eq!(fill(sloplet, &["--disk", "128MiB"], "64", "/tmp"), (64 * MIB, "all".to_owned()));
    });
}

#[test]
fn folders_do_not_add_up_to_more_than_the_disk() {
    for_everybody(|sloplet| {
        let script = "for dir in /tmp /home/user /var/tmp /run/user /; do
            [ -w $dir ] && head -c 64M /dev/zero >$dir/fill 2>/dev/null; done
            find / -xdev -name fill -printf '%s\\n' | awk '{ sum += $1 } END { print sum }'
            find / -name fill -not -path '/proc/*' -printf '%s\\n' 2>/dev/null | awk '{ sum += $1 } END { print sum }'";
        let ended = sloplet.sh(&["--disk", "16MiB"], script).expect_code(0);
        for sum in ended.out().lines() {
            assert!(sum.parse::<u64>().unwrap() <= 16 * MIB, "{}: {ended}", sloplet.name);
        }
    });
}

#[test]
fn a_disk_larger_than_memory_is_a_disk() {
    // For an ordinary user it is memory, which he is told by `doctor`; root gets an image on a loop device.
    let host = Host::shared();
    let leaks = host.leaks();
    let root = host.root();
    let (written, reason) = fill(&root, &["--memory", "256MiB", "--disk", "1GiB"], "2048", "/tmp");
    assert_eq!(reason, "ENOSPC");
    assert!((900 * MIB..=1024 * MIB).contains(&written), "{written}");
    assert_eq!(fill(&root, &["--memory", "128MiB", "--disk", "1GiB"], "300", "/tmp"), (300 * MIB, "all".to_owned()));
    leaks.assert_none_new();
}

#[test]
fn files_are_counted() {
    let program = "
import errno, sys
count, reason = 0, 'all'
try:
    while count < int(sys.argv[1]):
        open(f'/tmp/{count}', 'w').close()
        count += 1
except OSError as error:
    reason = errno.errorcode[error.errno]
print(count, reason)";
    for_everybody(|sloplet| {
        // On a disk in memory and, as root, on an image.
        for place in [&["--disk", "16MiB"][..], &["--disk", "64MiB", "--memory", "64MiB"]] {
            let run = |inodes: &str, files: &str| {
                let options = [place, &["--inodes", inodes]].concat();
                sloplet.run(&options, &["python3", "-c", program, files]).expect_code(0)
            };
            let few = run("500", "2000");
            let (count, reason) =
                few.out().trim().split_once(' ').map(|(n, why)| (n.to_owned(), why.to_owned())).unwrap();
            assert_eq!(reason, "ENOSPC", "{}: {few}", sloplet.name);
            // ext4 rounds up to whole groups.
            assert!((300..=1024).contains(&count.parse().unwrap()), "{}: {few}", sloplet.name);
            assert_eq!(run("4000", "2000").word(), "2000 all");
        }
    });
}

#[test]
fn sparse_files_promise_much_and_hold_little() {
    let program = "
import errno, os
fd = os.open('/tmp/sparse', os.O_CREAT | os.O_RDWR)
try:
    os.ftruncate(fd, 1 << 60)
    print('blocks', os.fstat(fd).st_blocks)
except OSError as error:
    print(errno.errorcode[error.errno])
    os.ftruncate(fd, 1 << 30)
total = 0
try:
    for at in range(0, 1 << 30, 1 << 16): total += os.pwrite(fd, b'x' * 65536, at)
    print('all')
except OSError as error:
    print(errno.errorcode[error.errno], total)";
    for_everybody(|sloplet| {
        for place in [&["--disk", "16MiB"][..], &["--disk", "64MiB", "--memory", "64MiB"]] {
            let ended = sloplet.python(place, program);
            if sloplet.account.is_some() && place.len() > 2 {
                // A disk in memory as large as the memory: whichever is met first.
                assert!(ended.code == 137 || ended.code == 0, "{ended}");
                continue;
            }
            let out = ended.out();
            let lines: Vec<&str> = out.lines().collect();
            assert!(["blocks 0", "EFBIG", "ENOSPC"].contains(&lines[0]), "{}: {ended}", sloplet.name);
            let (reason, total) = lines[1].split_once(' ').unwrap();
            assert_eq!(reason, "ENOSPC", "{}: {ended}", sloplet.name);
            assert!(total.parse::<u64>().unwrap() <= 64 * MIB, "{}: {ended}", sloplet.name);
        }
    });
}

#[test]
fn room_comes_back_when_files_go() {
    for_everybody(|sloplet| {
        let script =
            "for i in 1 2 3 4 5; do head -c 12M /dev/zero >/tmp/fill && rm /tmp/fill || exit 1; done; echo fine";
        let ended = sloplet.sh(&["--disk", "16MiB"], script).expect_code(0);
        assert_eq!(ended.word(), "fine", "{ended}");
    });
}
