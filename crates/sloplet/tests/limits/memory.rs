//! `--memory`, for every kind of memory that is charged.

use std::fs;
use std::process::Command;

use crate::common::{Host, Sloplet};
use crate::for_everybody;

const ANONYMOUS: &str = "memory = bytearray(160 << 20); print('whole')";

const MEMFD: &str = "
import os
fd = os.memfd_create('bomb')
for _ in range(160): os.write(fd, b'x' * (1 << 20))
print('whole')";

const SHARED_MAPPING: &str = "
import mmap
memory = mmap.mmap(-1, 160 << 20)
for at in range(0, len(memory), 4096): memory[at] = 1
print('whole')";

/// Several in-memory files, none of which is beyond its own file system's size.
const TMPFS: &str = "
import sys
for path in ['/dev/shm/bomb', '/tmp/bomb']:
    file = open(path, 'wb', 0)
    try:
        for _ in range(int(sys.argv[1])): file.write(b'x' * (1 << 20))
    except OSError as error:
        print(path, error)
print('whole')";

/// Killed at 64 MiB with a word about why; whole at 512 MiB.
fn bites(sloplet: &Sloplet, options: &[&str], program: &[&str]) {
    let with = |memory| [&["--memory", memory], options].concat();
    let command = [&["python3", "-c"], program].concat();
    let killed = sloplet.run(&with("64MiB"), &command).expect_code(137);
    let message = "sloplet: the memory limit of 64MiB was reached: the kernel killed a process inside (--memory)\n";
    assert_eq!((killed.out().as_str(), killed.stderr.as_str()), ("", message), "{}: {killed}", sloplet.name);
    let whole = sloplet.run(&with("512MiB"), &command).expect_code(0);
    assert_eq!(whole.word(), "whole", "{}: {whole}", sloplet.name);
}

#[test]
fn anonymous_memory() {
    for_everybody(|sloplet| bites(sloplet, &[], &[ANONYMOUS]));
}

#[test]
fn memory_shared_between_processes() {
    for_everybody(|sloplet| bites(sloplet, &[], &[SHARED_MAPPING]));
}

#[test]
fn files_without_a_name() {
    for_everybody(|sloplet| bites(sloplet, &[], &[MEMFD]));
}

#[test]
fn files_in_memory() {
    // 32 MiB of /dev/shm and 32 MiB of disk, each within its own bound, do not fit into 64 MiB together with a program.
    for_everybody(|sloplet| bites(sloplet, &["--disk", "32MiB"], &[TMPFS, "32"]));
}

/// Fills the buffers of connections that nobody reads from, until `argv[1]` MiB are on their way or no more go in.
const TCP: &str = "
import socket, sys
wanted, queued, kept = int(sys.argv[1]) << 20, 0, []
listener = socket.create_server(('127.0.0.1', 0))
while queued < wanted and len(kept) < 1000:
    sender = socket.socket()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
    sender.connect(listener.getsockname())
    receiver = listener.accept()[0]
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    sender.settimeout(0.02)
    kept += [sender, receiver]
    try:
        while queued < wanted: queued += sender.send(bytes(1 << 16))
    except TimeoutError: pass
print(queued >> 20)";

#[test]
fn buffers_of_tcp_connections() {
    for_everybody(|sloplet| {
        let fill = |memory| sloplet.run(&["--memory", memory], &["python3", "-c", TCP, "200"]);
        let few = fill("64MiB");
        let queued = few.word().parse::<u64>().unwrap_or(0);
        assert!(few.code == 137 || queued < 64, "{}: {queued} MiB in buffers of a 64 MiB sandbox: {few}", sloplet.name);
        let many = fill("4GiB").expect_code(0);
        assert_eq!(many.word(), "200", "{}: {many}", sloplet.name);
    });
}

#[test]
fn shared_memory_has_a_bound_of_its_own() {
    for_everybody(|sloplet| {
        let script = "head -c 100M /dev/zero >/dev/shm/bomb; echo $? $(stat -c %s /dev/shm/bomb)";
        let full = sloplet.sh(&["--memory", "128MiB"], script).expect_code(0).expect_said("No space left on device");
        assert_eq!(full.word(), format!("1 {}", 64 << 20), "{full}");
        let whole = sloplet.sh(&["--memory", "512MiB"], script).expect_code(0);
        assert_eq!(whole.word(), format!("0 {}", 100 << 20), "{whole}");
    });
}

#[test]
fn the_sandbox_outlives_a_child_that_took_too_much() {
    for_everybody(|sloplet| {
        let script = "python3 -c \"$BOMB\"; echo still alive after $?; python3 -c 'print(7 * 6)'";
        let bomb = format!("BOMB={ANONYMOUS}");
        let ended = sloplet.sh(&["--memory", "64MiB", "--env", &bomb], script).expect_code(0);
        assert_eq!(ended.out(), "still alive after 137\n42\n", "{}: {ended}", sloplet.name);
        assert!(!ended.stderr.contains("sloplet:"), "the command itself did not fail: {ended}");
        let told = sloplet.sh(&["--memory", "64MiB", "--env", &bomb, "--json"], script).expect_code(0).json();
        assert_eq!(told["oom_kills"], 1, "{told}");
    });
}

#[test]
fn the_agent_is_not_the_one_that_is_killed() {
    for_everybody(|sloplet| {
        // Many small ones: no child is as large as the agent may be.
        let script = "for i in $(seq 60); do (x=$(head -c 4000000 /dev/zero | tr '\\0' x); sleep 2; echo $#x >/dev/null) & done; wait; exit 3";
        let ended = sloplet.sh(&["--memory", "48MiB", "--json"], script);
        let told = ended.json();
        assert!(told["oom_kills"].as_u64().unwrap() > 0, "{ended}");
        // Its exit status came from the agent: either it went on to the end, or it was told to be killed itself.
        assert!(told["exit_code"] == 3 || told["signal"] == 9, "{ended}");
    });
}

#[test]
fn swap_is_not_a_way_out() {
    let host = Host::alone();
    let file = host.dir().join("swap");
    let made = Command::new("sh")
        .args(["-c", "fallocate -l 512M \"$0\" && chmod 600 \"$0\" && mkswap -q \"$0\" && swapon \"$0\""])
        .arg(&file)
        .output()
        .unwrap();
    assert!(made.status.success(), "cannot add swap: {made:?}");
    let _off = SwapOff(&file);
    for sloplet in [host.root(), host.user()] {
        bites(&sloplet, &[], &[ANONYMOUS]);
    }
}

struct SwapOff<'a>(&'a std::path::Path);

impl Drop for SwapOff<'_> {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(self.0).output();
        let _ = fs::remove_file(self.0);
    }
}
