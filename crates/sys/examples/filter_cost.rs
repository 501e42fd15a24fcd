//! What a profile costs: installing it, and each call under it. `cargo run --release --example filter_cost`

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use sloplet_seccomp::{Profile, SockFilter};
use sloplet_sys::filter;

const INSTALLS: usize = 301;
const CALLS: u32 = 300_000;

fn main() -> io::Result<()> {
    println!("getpid {:.1} ns, personality {:.1} ns without a filter", getpid(), personality());
    // The least there is, to compare with: a single "return allow".
    let nothing = [SockFilter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 }];
    let profiles = Profile::ALL.map(|profile| (profile.name(), profile.program()));
    for (name, program) in [("nothing", &nothing[..])].into_iter().chain(profiles) {
        let mut micros = (0..INSTALLS).map(|_| in_child(|| install(program))).collect::<io::Result<Vec<f64>>>()?;
        micros.sort_by(f64::total_cmp);
        let under = |cost: fn() -> f64| in_child(|| install(program).map(|_| cost()));
        println!(
            "{name}: {} instructions, install p50 {:.1} us p95 {:.1} us, then getpid {:.1} ns, personality {:.1} ns",
            program.len(),
            micros[INSTALLS / 2],
            micros[INSTALLS * 95 / 100],
            under(getpid)?,
            under(personality)?,
        );
    }
    Ok(())
}

fn install(program: &[SockFilter]) -> io::Result<f64> {
    filter::no_new_privs()?;
    let start = Instant::now();
    filter::install(program)?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

/// A call that is always allowed, so that the kernel need not run the filter.
fn getpid() -> f64 {
    // SAFETY: takes nothing.
    per_call(|| unsafe { libc::syscall(libc::SYS_getpid) })
}

/// A call that is decided by its argument.
fn personality() -> f64 {
    // SAFETY: this value only asks.
    per_call(|| unsafe { libc::syscall(libc::SYS_personality, 0xffff_ffffu64) })
}

fn per_call(call: impl Fn() -> i64) -> f64 {
    let start = Instant::now();
    for _ in 0..CALLS {
        black_box(call());
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}

/// Measures in a child, since a filter stays.
fn in_child(measure: impl Fn() -> io::Result<f64>) -> io::Result<f64> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    // SAFETY: this process has one thread, so the child may do what it likes.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let sent = measure().and_then(|value| theirs.write_all(&value.to_ne_bytes()));
            std::process::exit(i32::from(sent.is_err()));
        }
        pid => {
            drop(theirs);
            let mut value = [0; 8];
            let read = ours.read_exact(&mut value);
            // SAFETY: the child is ours; its status is not wanted.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            read.map(|()| f64::from_ne_bytes(value))
        }
    }
}
