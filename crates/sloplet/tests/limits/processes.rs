//! `--pids`, and processes that nobody waits for.

use std::fs;
use std::process::Command;

use crate::common::{Host, rounds};
use crate::for_everybody;

/// Forks as often as it is told and says how far it came.
const FORKS: &str = "
import os, signal, sys
children = []
try:
    for _ in range(int(sys.argv[1])):
        pid = os.fork()
        if pid == 0: signal.pause()
        children.append(pid)
    print('all')
except OSError as error:
    print(len(children), error.strerror)
for pid in children: os.kill(pid, 9)";

const THREADS: &str = "
import sys, threading
stop, count = threading.Event(), 0
try:
    for _ in range(int(sys.argv[1])):
        threading.Thread(target=stop.wait).start()
        count += 1
    print('all')
except RuntimeError as error:
    print(count, error)
stop.set()";

#[test]
fn processes_and_threads_are_counted() {
    for_everybody(|sloplet| {
        for (program, refusal) in [(FORKS, "Resource temporarily unavailable"), (THREADS, "can't start new thread")] {
            let some = |pids: &str| sloplet.run(&["--pids", pids], &["python3", "-c", program, "60"]).expect_code(0);
            let few = some("30");
            let (count, why) = few.out().trim().split_once(' ').map(|(n, why)| (n.to_owned(), why.to_owned())).unwrap();
            assert!((20..30).contains(&count.parse().unwrap()), "{}: {few}", sloplet.name);
            assert_eq!(why, refusal, "{few}");
            assert_eq!(some("100").word(), "all");
        }
    });
}

#[test]
fn a_fork_bomb_is_contained_and_ends_with_its_time() {
    for_everybody(|sloplet| {
        let bomb = "bomb() { bomb | bomb & }; while :; do bomb; done 2>/dev/null";
        let running = sloplet.invoke_run(&["--pids", "64", "--timeout", "2s"], &["bash", "-c", bomb]).start();
        std::thread::sleep(std::time::Duration::from_secs(1));
        let host =
            Command::new("sh").args(["-c", "for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true || exit 1; done"]).status();
        assert!(host.unwrap().success(), "the host cannot fork any more");
        running.finish().expect_code(124).expect_said("(--timeout)");
    });
}

#[test]
fn a_sandbox_works_again_after_a_fork_bomb_of_a_child() {
    for_everybody(|sloplet| {
        // `timeout` kills the whole process group of the bomb.
        let script = "timeout -s KILL 1 python3 -c \"$BOMB\"; sleep 0.2; echo after $(echo the bomb)";
        let bomb = "BOMB=\nimport os\nwhile True:\n try: os.fork()\n except OSError: pass";
        let ended = sloplet.sh(&["--pids", "40", "--env", bomb], script).expect_code(0);
        assert_eq!(ended.word(), "after the bomb", "{}: {ended}", sloplet.name);
    });
}

/// Leaves orphans behind as fast as it can; they end at once and must be reaped by PID 1.
const ORPHANS: &str = r#"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int wanted = atoi(argv[1]), made = 0, entries = 0;
    while (made < wanted) {
        int pid = fork();
        if (pid < 0) { usleep(200); continue; } /* PID 1 is behind: wait for it */
        if (pid == 0) {
            while (fork() < 0) usleep(200);
            _exit(0);
        }
        waitpid(pid, 0, 0);
        made++;
    }
    usleep(300000);
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; (entry = readdir(proc));)
        if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9') entries++;
    printf("%d %d\n", made, entries);
}"#;

#[test]
fn orphans_are_reaped() {
    let host = Host::shared();
    let (source, program) = (host.dir().join("orphans.c"), host.dir().join("orphans"));
    fs::write(&source, ORPHANS).unwrap();
    let compiled = Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&source).status().expect("gcc");
    assert!(compiled.success());
    let (mount, count) = (format!("{}:/orphans", program.display()), rounds(20_000, 2_000).to_string());
    for sloplet in [host.root(), host.user()] {
        // With room for 60, orphans that stay zombies would end it at 60.
        let ended = sloplet.run(&["--pids", "60", "--mount", &mount], &["/orphans", &count]).expect_code(0);
        assert_eq!(ended.word(), format!("{count} 2"), "only the agent and the program are left: {ended}");
    }
}

#[test]
fn daemons_end_with_the_command() {
    for_everybody(|sloplet| {
        // They hold its output open, too: that must not keep the run.
        let script =
            "setsid sleep 1000 & (setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000' &) ; sleep 1000 & echo started";
        let ended = sloplet.sh(&[], script).expect_code(0);
        assert_eq!(ended.word(), "started", "{ended}");
        assert!(ended.took.as_secs() < 20, "{ended}");
    });
}

#[test]
fn the_host_has_all_its_processes_back() {
    let host = Host::shared();
    let leaks = host.leaks();
    let ended =
        host.root().sh(&["--pids", "300"], "for i in $(seq 200); do setsid sleep 1000 & done; echo $i").expect_code(0);
    assert_eq!(ended.word(), "200");
    leaks.assert_none_new();
}
