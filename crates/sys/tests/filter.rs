//! The compiled seccomp profiles in real processes.
//!
//! A refused call proves something only if it gets through without the filter, so each is tried twice: in a child
//! without and in a child with it. Children are forked and make nothing but raw system calls before they exit with the
//! error number (0 for success).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc;

use sloplet_seccomp::Profile;
use sloplet_sys::filter;

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The call's error number, 0 for success.
    Errno(i32),
    /// The signal that ended it.
    Signal(i32),
}

const SUCCESS: Outcome = Outcome::Errno(0);
const EPERM: Outcome = Outcome::Errno(libc::EPERM);
const ENOSYS: Outcome = Outcome::Errno(libc::ENOSYS);
const NOWHERE: *const libc::c_char = c"/nonexistent/filter-test".as_ptr();

/// Makes a call in a child, under a profile or none. The call returns as the C library's do.
fn try_call(profile: Option<Profile>, call: &dyn Fn() -> i64) -> Outcome {
    // SAFETY: the child of a threaded process may only do what a signal handler may: it makes system calls and exits.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        0 => {
            let installed = profile.is_none_or(|p| filter::no_new_privs().and(filter::install(p.program())).is_ok());
            let code = match installed {
                false => 255,
                true if call() >= 0 => 0,
                true => io::Error::last_os_error().raw_os_error().unwrap_or(254),
            };
            // SAFETY: ends the child without running what the parent registered for its own end.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` is valid for a write; the child is ours and not yet reaped.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            if libc::WIFSIGNALED(status) {
                return Outcome::Signal(libc::WTERMSIG(status));
            }
            let code = libc::WEXITSTATUS(status);
            assert!(code < 254, "the filter could not be installed");
            Outcome::Errno(code)
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A system call that takes at most five arguments, none of which lets the kernel write to our memory.
macro_rules! call {
    ($name:ident $(, $argument:expr)* $(,)?) => {
        // SAFETY: the arguments are numbers, null, an address that is never mapped, or strings that live forever.
        (stringify!($name), Box::new(|| unsafe { libc::syscall(libc::$name $(, $argument)*) }) as Box<dyn Fn() -> i64>)
    };
}

const NULL: usize = 0;
/// An address where nothing is.
const BAD: usize = 8;

/// A call and its name.
type Attempt = (&'static str, Box<dyn Fn() -> i64>);

/// Calls that any user reaches; they fail for their arguments or do no harm in a child that ends at once.
fn refused_to_anyone() -> Vec<Attempt> {
    vec![
        call!(SYS_unshare, libc::CLONE_NEWUSER),
        call!(SYS_setns, -1, 0),
        call!(SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0),
        call!(SYS_process_vm_readv, libc::getpid(), NULL, 0, NULL, 0, 0),
        call!(SYS_pidfd_getfd, -1, 0, 0),
        call!(SYS_name_to_handle_at, -1, BAD, BAD, BAD, 0),
        call!(SYS_personality, 0x0040000),
        call!(SYS_ioctl, -1, 0x5412, NULL),
        call!(SYS_ioctl, -1, 0x541c, NULL),
        call!(SYS_ioctl, -1, 0x5423, NULL),
        call!(SYS_ioctl, -1, 0x5412u64 | 1 << 32, NULL),
    ]
}

/// Calls that need a capability to be reached.
fn refused_to_root() -> Vec<Attempt> {
    vec![
        call!(SYS_mount, NOWHERE, NOWHERE, NOWHERE, 0, NULL),
        call!(SYS_umount2, NOWHERE, 0),
        call!(SYS_pivot_root, NOWHERE, NOWHERE),
        call!(SYS_fsopen, BAD, 0),
        call!(SYS_fsconfig, -1, 0, NULL, NULL, 0),
        call!(SYS_fsmount, -1, 0, 0),
        call!(SYS_fspick, -1, BAD, 0),
        call!(SYS_open_tree, -1, BAD, 0),
        call!(SYS_move_mount, -1, BAD, -1, BAD, 0),
        call!(SYS_mount_setattr, -1, BAD, 0, NULL, 0),
        call!(SYS_open_by_handle_at, -1, BAD, 0),
        call!(SYS_reboot, 0, 0, 0, NULL), // wrong magic numbers
        call!(SYS_swapon, BAD, 0),
        call!(SYS_swapoff, BAD),
        call!(SYS_syslog, 10, NULL, 0),
        call!(SYS_clock_settime, libc::CLOCK_MONOTONIC, BAD),
        call!(SYS_clock_adjtime, libc::CLOCK_REALTIME, BAD),
        call!(SYS_settimeofday, BAD, NULL),
        call!(SYS_sethostname, BAD, -1),
        call!(SYS_setdomainname, BAD, -1),
    ]
}

/// Calls that a kernel may be built or set up without.
fn refused_if_built() -> Vec<Attempt> {
    vec![
        call!(SYS_bpf, -1, NULL, 0),
        call!(SYS_perf_event_open, BAD, 0, -1, -1, 0),
        call!(SYS_io_uring_setup, 1, BAD),
        call!(SYS_io_uring_enter, -1, 0, 0, 0, NULL),
        call!(SYS_io_uring_register, -1, 0, NULL, 0),
        call!(SYS_userfaultfd, -1),
        call!(SYS_keyctl, 999, 0, 0, 0, 0),
        call!(SYS_add_key, BAD, BAD, NULL, 0, 0),
        call!(SYS_request_key, BAD, BAD, NULL, 0),
        call!(SYS_kcmp, libc::getpid(), libc::getpid(), -1, 0, 0),
        call!(SYS_init_module, BAD, 1, BAD),
        call!(SYS_finit_module, -1, BAD, 0),
        call!(SYS_delete_module, BAD, 0),
        call!(SYS_kexec_load, 0, 999, NULL, 0),
        call!(SYS_kexec_file_load, -1, -1, 0, NULL, 0),
        call!(SYS_acct, NOWHERE),
        call!(SYS_quotactl, -1, NOWHERE, 0, NULL),
        call!(SYS_fanotify_init, -1, 0),
        call!(SYS_memfd_secret, -1),
        call!(SYS_get_mempolicy, NULL, NULL, 0, NULL, 0),
        call!(SYS_set_mempolicy, 99, NULL, 0),
        call!(SYS_move_pages, 0, 0, NULL, NULL, NULL, -1),
    ]
}

#[test]
fn refused_calls_are_reachable_without_the_filter_only() {
    let must_reach = refused_to_anyone().into_iter().chain(if is_root() { refused_to_root() } else { Vec::new() });
    let mut inconclusive = Vec::new();
    for (must_reach, (name, call)) in
        must_reach.map(|probe| (true, probe)).chain(refused_if_built().into_iter().map(|probe| (false, probe)))
    {
        let without = try_call(None, &call);
        if without == EPERM || without == ENOSYS {
            assert!(!must_reach, "{name} is {without:?} even without a filter");
            inconclusive.push(name);
        }
        for profile in [Profile::Container, Profile::Process, Profile::ProcessUnixSockets] {
            assert_eq!(try_call(Some(profile), &call), EPERM, "{name}, {}, was {without:?}", profile.name());
        }
    }
    println!("not reachable on this kernel in any case: {inconclusive:?}");
}

#[test]
fn clone_makes_processes_but_no_namespaces() {
    let clone = |flags: i32| {
        move || {
            // SAFETY: no stack and no shared memory, so this is a fork; the copy ends at once.
            let pid = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) };
            if pid == 0 {
                // SAFETY: as above.
                unsafe { libc::_exit(0) }
            }
            pid
        }
    };
    for profile in Profile::ALL {
        assert_eq!(try_call(Some(profile), &clone(0)), SUCCESS);
        assert_eq!(try_call(None, &clone(libc::CLONE_NEWUSER)), SUCCESS);
        assert_eq!(try_call(Some(profile), &clone(libc::CLONE_NEWUSER)), EPERM);
        let (_, clone3) = call!(SYS_clone3, NULL, 0);
        assert_eq!(try_call(None, &clone3), Outcome::Errno(libc::EINVAL));
        assert_eq!(try_call(Some(profile), &clone3), ENOSYS);
    }
}

#[test]
fn sockets_are_those_of_the_profile() {
    const NO_FAMILY: Outcome = Outcome::Errno(libc::EAFNOSUPPORT);
    const NO_PROTOCOL: Outcome = Outcome::Errno(libc::EPROTONOSUPPORT);
    let (inet, inet6, unix, netlink) = (libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK);
    let (stream, dgram, raw) = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::SOCK_DGRAM, libc::SOCK_RAW);
    // family, type, protocol, whether any kernel has it; in a container, in a process, the same with unix sockets
    for (socket, everywhere, container, process, with_unix) in [
        ((unix, stream, 0), true, SUCCESS, NO_FAMILY, SUCCESS),
        ((inet, stream, 0), true, SUCCESS, NO_FAMILY, NO_FAMILY),
        ((inet6, dgram, 17), false, SUCCESS, NO_FAMILY, NO_FAMILY),
        ((netlink, raw, 0), true, SUCCESS, NO_FAMILY, NO_FAMILY),
        ((netlink, raw, 9), false, NO_PROTOCOL, NO_FAMILY, NO_FAMILY),
        ((inet, raw, 1), is_root(), EPERM, NO_FAMILY, NO_FAMILY),
        ((inet, raw | libc::SOCK_CLOEXEC, 255), is_root(), EPERM, NO_FAMILY, NO_FAMILY),
        ((inet, stream, 262), false, NO_PROTOCOL, NO_FAMILY, NO_FAMILY),
        ((libc::AF_PACKET, raw, 0), false, NO_FAMILY, NO_FAMILY, NO_FAMILY),
        ((libc::AF_ALG, libc::SOCK_SEQPACKET, 0), false, NO_FAMILY, NO_FAMILY, NO_FAMILY),
        ((libc::AF_VSOCK, libc::SOCK_STREAM, 0), false, NO_FAMILY, NO_FAMILY, NO_FAMILY),
    ] {
        let (family, kind, protocol) = socket;
        // SAFETY: numbers only.
        let open = move || i64::from(unsafe { libc::socket(family, kind, protocol) });
        let without = try_call(None, &open);
        assert!(!everywhere || without == SUCCESS, "{socket:?} is {without:?} even without a filter");
        if without != SUCCESS && container == SUCCESS {
            println!("{socket:?} is {without:?} on this kernel in any case");
            continue;
        }
        assert_eq!(try_call(Some(Profile::Container), &open), container, "{socket:?}, was {without:?}");
        assert_eq!(try_call(Some(Profile::Process), &open), process, "{socket:?}, was {without:?}");
        assert_eq!(try_call(Some(Profile::ProcessUnixSockets), &open), with_unix, "{socket:?}, was {without:?}");
    }
    let pair = || {
        let mut ends = [0; 2];
        // SAFETY: `ends` is valid for two descriptors.
        i64::from(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) })
    };
    for profile in Profile::ALL {
        assert_eq!(try_call(Some(profile), &pair), SUCCESS);
    }
}

#[test]
fn the_tracing_profile_allows_tracing_and_nothing_else() {
    let (_, trace) = call!(SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0);
    let (_, unshare) = call!(SYS_unshare, libc::CLONE_NEWUSER);
    assert_eq!(try_call(Some(Profile::ContainerTracing), &trace), SUCCESS);
    assert_eq!(try_call(Some(Profile::ContainerTracing), &unshare), EPERM);
}

#[test]
fn a_process_has_no_ipc_of_the_host() {
    let (_, segment) = call!(SYS_shmget, 0, 0, 0); // no size: EINVAL
    assert_eq!(try_call(None, &segment), Outcome::Errno(libc::EINVAL));
    assert_eq!(try_call(Some(Profile::Container), &segment), Outcome::Errno(libc::EINVAL));
    assert_eq!(try_call(Some(Profile::Process), &segment), ENOSYS);
}

/// The 32-bit and the x32 entry lead to the same kernel with other numbers: a filter that checks only numbers is open.
#[cfg(target_arch = "x86_64")]
mod doors {
    use super::*;

    /// A call by the 32-bit entry, with the i386 number.
    fn int80(number: i64, argument: i64) -> i64 {
        let mut result = number;
        // SAFETY: the calls made here take numbers only. The entry keeps all registers but rax and r8 to r11. rbx, the
        // first argument, is reserved by the compiler and so put back.
        unsafe {
            std::arch::asm!(
                "xchg rbx, {argument}", "int 0x80", "xchg rbx, {argument}",
                argument = inout(reg) argument => _,
                inlateout("rax") result,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            );
        }
        let result = i64::from(result as i32);
        if result < 0 {
            // SAFETY: the address of this thread's errno is always valid.
            unsafe { *libc::__errno_location() = -result as i32 };
            return -1;
        }
        result
    }

    #[test]
    fn the_32_bit_entry_is_closed() {
        const GETPID: i64 = 20;
        const UNSHARE: i64 = 310;
        let getpid = || int80(GETPID, 0);
        let unshare = || int80(UNSHARE, libc::CLONE_NEWUSER.into());
        if try_call(None, &getpid) == SUCCESS {
            assert_eq!(try_call(None, &unshare), SUCCESS);
        } else {
            println!("this kernel has no 32-bit entry: the test shows nothing");
            return;
        }
        for profile in Profile::ALL {
            assert_eq!(try_call(Some(profile), &getpid), ENOSYS);
            assert_eq!(try_call(Some(profile), &unshare), ENOSYS);
        }
    }

    #[test]
    fn the_x32_entry_is_closed() {
        const X32: i64 = 0x4000_0000;
        // SAFETY: numbers only.
        let getpid = || unsafe { libc::syscall(X32 | libc::SYS_getpid) };
        // SAFETY: numbers only.
        let unshare = || unsafe { libc::syscall(X32 | libc::SYS_unshare, libc::CLONE_NEWUSER) };
        if try_call(None, &getpid) != SUCCESS {
            println!("this kernel has no x32: the filter's part is shown by the interpreter only");
        }
        for profile in Profile::ALL {
            assert_eq!(try_call(Some(profile), &getpid), ENOSYS);
            assert_eq!(try_call(Some(profile), &unshare), ENOSYS);
        }
    }
}

#[test]
fn without_privilege_no_new_privs_comes_first() {
    let become_nobody_and_install = |first: bool| {
        move || {
            // SAFETY: numbers only. Fails, harmlessly, for whoever is not root.
            unsafe { libc::syscall(libc::SYS_setuid, 65534) };
            if first && filter::no_new_privs().is_err() {
                return -1;
            }
            filter::install(Profile::Container.program()).map_or(-1, |()| 0)
        }
    };
    assert_eq!(try_call(None, &become_nobody_and_install(false)), Outcome::Errno(libc::EACCES));
    assert_eq!(try_call(None, &become_nobody_and_install(true)), SUCCESS);
}

#[test]
fn a_program_the_kernel_rejects_is_an_error() {
    filter::no_new_privs().unwrap();
    assert_eq!(filter::install(&[]).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    let too_long = vec![Profile::Container.program()[0]; 70_000];
    assert_eq!(filter::install(&too_long).unwrap_err().raw_os_error(), Some(libc::EINVAL));
}

/// Runs [`child_with_a_second_thread`] in a process of its own, since the filter stays.
#[test]
fn threads_that_were_there_before_are_filtered_too() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--ignored", "--exact", "child_with_a_second_thread", "--nocapture"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "the child of threads_that_were_there_before_are_filtered_too"]
fn child_with_a_second_thread() {
    let (report, reported) = mpsc::channel();
    let (go, wait) = mpsc::channel();
    let other = std::thread::spawn(move || {
        // SAFETY: numbers only; a thread of a process cannot make a user namespace, which is EINVAL.
        let unshare = || unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER) };
        report.send((unshare(), io::Error::last_os_error().raw_os_error())).unwrap();
        wait.recv().unwrap();
        (unshare(), io::Error::last_os_error().raw_os_error())
    });
    assert_eq!(reported.recv().unwrap(), (-1, Some(libc::EINVAL)));
    filter::no_new_privs().unwrap();
    filter::install(Profile::Container.program()).unwrap();
    go.send(()).unwrap();
    assert_eq!(other.join().unwrap(), (-1, Some(libc::EPERM)));
}

/// A program and its arguments under a profile; `None` if it is not installed.
fn tool(profile: Profile, program: &str, arguments: &[&str]) -> Option<(bool, String)> {
    let mut command = Command::new(program);
    command.args(arguments);
    // SAFETY: between fork and exec there are two system calls; the programs are constants.
    unsafe {
        command.pre_exec(move || {
            filter::no_new_privs()?;
            filter::install(profile.program())
        });
    }
    match command.output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            println!("{program} is not installed here");
            None
        }
        Err(error) => panic!("{program}: {error}"),
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
        }
    }
}

const PYTHON: &str = "
import asyncio, concurrent.futures, json, mmap, multiprocessing, os, pty, socket, sqlite3, subprocess, tempfile, threading
assert open('/proc/self/status').read().split('Seccomp:')[1].split()[0] == '2'
assert subprocess.check_output(['sh', '-c', 'echo a | cat']) == b'a\\n'
with concurrent.futures.ThreadPoolExecutor(4) as pool: assert list(pool.map(abs, [-1, 2])) == [1, 2]
with multiprocessing.get_context('fork').Pool(2) as pool: assert pool.map(abs, [-1, 2]) == [1, 2]
async def main():
    process = await asyncio.create_subprocess_exec('true'); assert await process.wait() == 0
asyncio.run(main())
with tempfile.TemporaryDirectory() as d:
    sqlite3.connect(d + '/x').execute('create table t(a)')
    os.mkfifo(d + '/fifo'); os.symlink('x', d + '/link')
mmap.mmap(-1, 4096); os.memfd_create('x'); os.sched_getaffinity(0); os.close(pty.openpty()[0])
";

const PYTHON_NETWORK: &str = "
import socket, threading
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
peer, _ = server.accept(); client.send(b'x'); assert peer.recv(1) == b'x'
socket.socket(socket.AF_INET, socket.SOCK_DGRAM); socket.if_nameindex()
";

const SHELL: &str = r#"set -euo pipefail
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
for i in 1 2 3; do echo $i; done | sort -r | head -1
mkfifo f; (echo through > f) & read -r x < f; [ "$x" = through ]; wait
cp -a /etc/passwd p; tar czf p.tgz p; rm p; tar xzf p.tgz; touch -d yesterday p; find . -name p -newer /etc/hostname >/dev/null
timeout 5 sleep 0.01; ulimit -n >/dev/null; nice true; df . >/dev/null; id >/dev/null"#;

const GIT: &str = r#"set -e; d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
git init -q .; echo a > a; git add a; git -c user.name=n -c user.email=e@example.org commit -qm m
git clone -q . clone; git -C clone log --oneline | grep -q m; git gc -q"#;

const COMPILE: &str = r#"set -e; d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
printf '#include <pthread.h>\n#include <stdio.h>\nvoid*f(void*x){return x;}\nint main(){pthread_t t;int r=pthread_create(&t,0,f,0);pthread_join(t,0);puts("ok");return r;}' > a.c
gcc -O2 -pthread a.c -o a && ./a | grep -q ok"#;

const NODE: &str = "
const { execFileSync } = require('child_process'); const { Worker } = require('worker_threads');
execFileSync('true'); require('fs').readFileSync('/etc/passwd'); require('crypto').randomBytes(8);
new Worker('require(\"os\").cpus()', { eval: true }).on('exit', (code) => process.exit(code));
";

#[test]
fn ordinary_tools_work_under_every_profile() {
    let mut worked = Vec::new();
    for profile in Profile::ALL {
        for (program, arguments) in [
            ("bash", &["-c", SHELL][..]),
            ("python3", &["-c", PYTHON]),
            ("bash", &["-c", GIT]),
            ("bash", &["-c", COMPILE]),
            ("node", &["-e", NODE]),
            ("curl", &["--version"]),
        ] {
            if let Some((success, text)) = tool(profile, program, arguments) {
                assert!(success, "{program} {arguments:?} under {}: {text}", profile.name());
                worked.push(program);
            }
        }
    }
    assert!(worked.contains(&"bash"), "nothing was tested");
}

#[test]
fn the_network_works_in_a_container_and_not_in_a_process() {
    let Some((success, text)) = tool(Profile::Container, "python3", &["-c", PYTHON_NETWORK]) else {
        return;
    };
    assert!(success, "{text}");
    let (success, text) = tool(Profile::Process, "python3", &["-c", PYTHON_NETWORK]).unwrap();
    assert!(!success && text.contains("Address family not supported"), "{text}");
}
