//! Open files, pipes, terminals, watches: what a sandbox can exhaust, and what it must not take from others.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::for_everybody;

/// Opens things until it is refused and says how many it got and why no more; the process ends with them.
fn exhaust(open: &str, limit: usize) -> String {
    format!(
        "
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def check(fd):
    if fd < 0: raise OSError(ctypes.get_errno(), '')
    return fd
count = 0
try:
    while count < {limit}:
        {open}
        count += 1
    print('all', count)
except OSError as error:
    print(errno.errorcode[error.errno], count)"
    )
}

/// What the host's root must still be able to do while a sandbox holds all that it can get.
fn host_can(open: &str) {
    let program = exhaust(open, 1);
    let output = Command::new("/usr/bin/python3").args(["-c", &program]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all 1\n", "the host itself cannot do any more: {open}");
}

#[track_caller]
fn refused(open: &str, reasons: &[&str]) {
    for_everybody(|sloplet| {
        // It keeps what it got until the host was looked at; then the sandbox must serve another program.
        let flood = format!(
            "{}\nimport sys; sys.stdout.flush(); os.mkdir('/told/full'); sys.stdin.read()",
            exhaust(open, 1_000_000)
        );
        let told = sloplet.folder("told");
        let _ = fs::remove_dir(told.join("full"));
        let mount = format!("{}:/told:rw", told.display());
        let script = "ulimit -n 1000000 2>/dev/null; python3 -c \"$0\" && echo and after";
        let command = ["sh", "-c", script, &flood];
        let running = sloplet.invoke_run(&["--mount", &mount, "--timeout", "50s"], &command).input_pipe().start();
        let since = Instant::now();
        while !told.join("full").exists() && since.elapsed() < Duration::from_secs(30) {
            thread::sleep(Duration::from_millis(10));
        }
        host_can(open);
        let ended = running.finish();
        let out = ended.out();
        let (first, rest) = out.split_once('\n').unwrap_or_default();
        assert!(reasons.contains(&first.split(' ').next().unwrap_or_default()), "{}: {ended}", sloplet.name);
        assert_eq!(rest, "and after\n", "{ended}");
        let some = sloplet.python(&[], &exhaust(open, 20)).expect_code(0);
        assert_eq!(some.word(), "all 20", "{some}");
    });
}

#[test]
fn open_files() {
    refused("os.open('/dev/null', 0)", &["EMFILE"]);
}

#[test]
fn pipes() {
    refused("os.pipe()", &["EMFILE", "ENFILE"]);
}

#[test]
fn full_pipes_are_charged_to_the_sandbox() {
    // Each holds 64 KiB: bounded by the descriptors, the kernel's share for each user, or the memory limit.
    for_everybody(|sloplet| {
        let flood = exhaust("r, w = os.pipe(); os.set_blocking(w, False); os.write(w, b'x' * 65536)", 100_000);
        let ended = sloplet.python(&["--memory", "64MiB"], &flood);
        let bounded = ended.code == 137 && ended.stderr.contains("(--memory)") || ended.out().starts_with('E');
        assert!(bounded, "{}: {ended}", sloplet.name);
        host_can("os.pipe()");
    });
}

#[test]
fn terminals() {
    refused("os.openpty()", &["ENOSPC", "EMFILE"]);
}

#[test]
fn watches() {
    refused("check(libc.inotify_init())", &["EMFILE"]);
}

#[test]
fn sockets() {
    refused("import socket; socket.socketpair()[0].detach()", &["EMFILE", "ENOBUFS"]);
}

#[test]
fn asynchronous_io_of_the_whole_host() {
    for_everybody(|sloplet| {
        // 206 is io_setup on x86-64, 0 on the architectures with the newer table.
        let open =
            "check(libc.syscall(206 if os.uname().machine == 'x86_64' else 0, 500, ctypes.byref(ctypes.c_ulong(0))))";
        let ended = sloplet.python(&[], &exhaust(open, 1)).expect_code(0);
        assert_eq!(ended.word(), "ENOSYS 0", "{}: {ended}", sloplet.name);
        host_can(open);
        // Whoever needs it says so, and that it has no bound.
        let ended = sloplet.python(&["--allow-aio"], "pass").expect_code(125);
        assert!(ended.stderr.contains("fs.aio-max-nr") && ended.stderr.contains("--best-effort"), "{ended}");
        let accepted = ["--allow-aio", "--best-effort"];
        let ended = sloplet.python(&accepted, &exhaust(open, 1)).expect_code(0);
        assert_eq!(ended.word(), "all 1", "{}: {ended}", sloplet.name);
        assert!(ended.stderr.contains("fs.aio-max-nr"), "it is told: {ended}");
        sloplet.python(&["--allow-aio", "--best-effort", "--isolation", "process"], "pass").expect_code(125);
    });
}

#[test]
fn terminals_of_one_sandbox_are_a_small_part_of_the_hosts() {
    for_everybody(|sloplet| {
        let ended = sloplet.python(&[], &exhaust("os.openpty()", 100)).expect_code(0);
        assert_eq!(ended.word(), "ENOSPC 64", "{}: {ended}", sloplet.name);
    });
}
