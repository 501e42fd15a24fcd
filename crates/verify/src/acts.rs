//! What drills have done inside: bombs, floods, daemons. Each prints what it achieved.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, MemfdFlags, RenameFlags, memfd_create, renameat_with};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use sloplet_sys::attempt::leave_session;
use sloplet_sys::clone::{SingleThreaded, exit_now};

/// Carries it out; returns the exit status.
pub fn act(name: &str, words: &[&str]) -> u8 {
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let path = Path::new(words.first().copied().unwrap_or("/tmp"));
    let done = match name {
        "fork" => fork(number(0)),
        "fork-bomb" => bomb(),
        "allocate" => allocate(words.first().copied().unwrap_or_default(), number(1)),
        "fill" => fill(path, number(1)),
        "files" => files(path, number(1)),
        "extend" => extend(path),
        "descriptors" => Ok(descriptors()),
        "zombies" => zombies(number(0)),
        "flood" => flood(number(0)),
        "line" => line(),
        "daemon" => daemon(number(1)),
        "spin" => Ok(spin(number(0))),
        "exchange" => exchange(path, words.get(1).copied().unwrap_or_default(), number(2)),
        "listen" => listen(),
        "random" => random(),
        "stop" => stop(),
        "kill-all" => kill_all(number(0)),
        "connect" => connect(number(0)),
        "call" => crate::calls::act(words.first().copied().unwrap_or_default()),
        "variable" => std::env::var(words.first().copied().unwrap_or_default()).map_err(io::Error::other),
        "search" => search(&words.concat()),
        "cat" => fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        "put" => fs::write(path, words.get(1).copied().unwrap_or_default()).map(|()| "written".to_owned()),
        "set-id" => set_id(path),
        "serve" => serve(words),
        "ask-server" => ask_server(words.first().copied()),
        _ => return 2,
    };
    let (text, code) = match done {
        Ok(text) => (text, 0),
        Err(error) => (format!("error: {error}"), 1),
    };
    let _ = writeln!(io::stdout(), "{text}");
    code
}

/// As many processes as wanted, all at once; tells how many there were.
fn fork(count: u64) -> io::Result<String> {
    let thread = SingleThreaded::prove()?;
    let mut made = Vec::new();
    let mut refused = None;
    for _ in 0..count {
        match thread.fork_plainly() {
            Ok(Some(pid)) => made.push(pid),
            Ok(None) => {
                std::thread::sleep(Duration::from_secs(20));
                exit_now(0)
            }
            Err(error) => {
                refused = error.raw_os_error();
                break;
            }
        }
    }
    for pid in made.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    Ok(format!("{} {}", made.len(), refused.unwrap_or(0)))
}

fn bomb() -> io::Result<String> {
    let thread = SingleThreaded::prove()?;
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        let _ = thread.fork_plainly();
    }
    exit_now(0)
}

/// Memory of a kind, used and not only promised.
fn allocate(kind: &str, mib: u64) -> io::Result<String> {
    let piece = vec![0x5au8; 1 << 20];
    let mut held: Vec<Vec<u8>> = Vec::new();
    let mut file = match kind {
        "memfd" => Some(File::from(memfd_create("sloplet", MemfdFlags::CLOEXEC)?)),
        "shm" => Some(File::create(format!("/dev/shm/sloplet-{}", std::process::id()))?),
        _ => None,
    };
    let mut count = 0;
    for _ in 0..mib {
        match &mut file {
            Some(file) => {
                if file.write_all(&piece).is_err() {
                    break;
                }
            }
            None => held.push(piece.clone()),
        }
        count += 1;
    }
    if kind == "shm" {
        let _ = fs::remove_file(format!("/dev/shm/sloplet-{}", std::process::id()));
    }
    Ok(format!("{count}"))
}

fn fill(path: &Path, bytes: u64) -> io::Result<String> {
    let mut file = File::create(path)?;
    let piece = vec![0x5au8; 1 << 16];
    let mut written = 0;
    while written < bytes {
        match file.write(&piece) {
            Ok(count) if count > 0 => written += count as u64,
            _ => break,
        }
    }
    let _ = fs::remove_file(path);
    Ok(written.to_string())
}

fn files(folder: &Path, count: u64) -> io::Result<String> {
    fs::create_dir_all(folder)?;
    let mut made = 0;
    while made < count && File::create(folder.join(made.to_string())).is_ok() {
        made += 1;
    }
    let _ = fs::remove_dir_all(folder);
    Ok(made.to_string())
}

/// A file of 1 EiB, without content, and a byte at its end.
fn extend(path: &Path) -> io::Result<String> {
    let result = File::create(path).and_then(|file| file.set_len(1 << 60));
    let _ = fs::remove_file(path);
    Ok(result.map_or_else(|error| format!("refused: {error}"), |()| "extended".to_owned()))
}

fn descriptors() -> String {
    let mut held: Vec<OwnedFd> = Vec::new();
    while held.len() < 2_000_000 {
        match rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC) {
            Ok(fd) => held.push(fd),
            Err(_) => break,
        }
    }
    held.len().to_string()
}

/// Orphans that end at once: somebody has to reap them.
fn zombies(count: u64) -> io::Result<String> {
    let thread = SingleThreaded::prove()?;
    let mut made = 0;
    for _ in 0..count {
        match thread.fork_plainly() {
            Ok(Some(pid)) => {
                if let Some(pid) = Pid::from_raw(pid) {
                    let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
                }
                made += 1;
            }
            Ok(None) => {
                let _ = thread.fork_plainly();
                exit_now(0)
            }
            // Reaping takes a moment.
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    Ok(made.to_string())
}

fn flood(mib: u64) -> io::Result<String> {
    let piece = vec![b'x'; 1 << 20];
    let mut out = io::stdout().lock();
    for _ in 0..mib {
        out.write_all(&piece)?;
    }
    Ok(String::new())
}

/// What a terminal or a reader of text might choke on.
fn line() -> io::Result<String> {
    io::stdout().write_all(b"\x1b]0;title\x07\x1b[2J\xff\xfe\xc3\x28 \x00 end\n")?;
    Ok(String::new())
}

/// A process that left its session, its parent and every signal behind.
fn daemon(seconds: u64) -> io::Result<String> {
    let thread = SingleThreaded::prove()?;
    if thread.fork_plainly()?.is_some() {
        return Ok("started".to_owned());
    }
    leave_session();
    if thread.fork_plainly()?.is_some() {
        exit_now(0);
    }
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let _ = thread.replace_standard_fds(std::os::fd::AsFd::as_fd(&null));
    std::thread::sleep(Duration::from_secs(seconds));
    exit_now(0)
}

/// Processor time, in milliseconds, that could be had in so many milliseconds.
fn spin(milliseconds: u64) -> String {
    let cpu = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
    };
    let (started, before) = (Instant::now(), cpu());
    let mut value = 1u64;
    while started.elapsed() < Duration::from_millis(milliseconds) {
        for _ in 0..10_000 {
            value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
    }
    format!("{} {}", cpu() - before, value & 1)
}

/// Swaps a folder and a symlink to `target` for so many milliseconds: whoever resolves a path in two steps gets lost.
fn exchange(folder: &Path, target: &str, milliseconds: u64) -> io::Result<String> {
    let (plain, link) = (folder.join("plain"), folder.join("link"));
    fs::create_dir_all(&plain)?;
    fs::write(plain.join("canary"), "inside")?;
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(target, &link)?;
    let _ = writeln!(io::stdout(), "ready");
    let until = Instant::now() + Duration::from_millis(milliseconds);
    let mut swaps = 0u64;
    while Instant::now() < until {
        swap(&plain, &link, &folder.join("aside"))?;
        swaps += 1;
    }
    Ok(swaps.to_string())
}

/// Exchanges two names: at once where the kernel can, else (gVisor) by way of a third.
fn swap(plain: &Path, link: &Path, aside: &Path) -> io::Result<()> {
    match renameat_with(CWD, plain, CWD, link, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            fs::rename(plain, aside)?;
            if fs::rename(link, plain).is_err() {
                // Somebody has made a folder there meanwhile.
                fs::remove_dir_all(plain)?;
                fs::rename(link, plain)?;
            }
            fs::rename(aside, link)
        }
        Err(error) => Err(error.into()),
    }
}

fn listen() -> io::Result<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let _ = writeln!(io::stdout(), "{}", listener.local_addr()?.port());
    std::thread::sleep(Duration::from_secs(20));
    Ok(String::new())
}

fn connect(port: u64) -> io::Result<String> {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port as u16));
    std::net::TcpStream::connect_timeout(&address, Duration::from_secs(2)).map(|_| "connected".to_owned())
}

fn random() -> io::Result<String> {
    let mut bytes = [0u8; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Stops everything within reach, the agent first.
fn stop() -> io::Result<String> {
    let first = kill_process(Pid::INIT, Signal::STOP);
    Ok(format!("{first:?}"))
}

/// Finds a text in any file, variable or command line within reach; fails if there is none.
fn search(text: &str) -> io::Result<String> {
    let found = crate::probes::search(Path::new("/"), text.as_bytes(), &mut 20_000, 0);
    if let Some(path) = found {
        return Ok(path.display().to_string());
    }
    for entry in fs::read_dir("/proc")?.flatten() {
        for file in ["environ", "cmdline"] {
            let path = entry.path().join(file);
            if fs::read(&path).is_ok_and(|bytes| crate::part::contains(&bytes, text.as_bytes())) {
                return Ok(path.display().to_string());
            }
        }
    }
    Err(io::Error::other("nowhere"))
}

/// `kill -9 -1`; as another user if one is named.
fn kill_all(user: u64) -> io::Result<String> {
    if user > 0 {
        let id = user as u32;
        rustix::thread::set_thread_res_gid(
            rustix::thread::Gid::from_raw(id),
            rustix::thread::Gid::from_raw(id),
            rustix::thread::Gid::from_raw(id),
        )?;
        let uid = rustix::thread::Uid::from_raw(id);
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    sloplet_sys::spawn::send_signal(-1, 9)?;
    Ok("sent".to_owned())
}

/// Becomes a server that ends with whoever started it.
fn serve(words: &[&str]) -> io::Result<String> {
    use std::os::unix::process::CommandExt;
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.args(["serve", "--listen", "127.0.0.1:0", "--destroy-on-exit"]);
    if let Some((weakness, options)) = words.split_first() {
        command.args(options);
        if !weakness.is_empty() {
            command.args(["--weaken", weakness]);
        }
    }
    Err(command.exec())
}

/// Asks this user's server for its sandboxes, as the commands do.
fn ask_server(weakness: Option<&str>) -> io::Result<String> {
    if weakness.is_some_and(|name| sloplet_policy::weakness::for_test(name).is_ok()) {
        sloplet_sys::private::trust_anybody();
    }
    let folder = |name| std::env::var_os(name).map(std::path::PathBuf::from).unwrap_or_default();
    let search = sloplet_remote::Search { data: folder("SLOPLET_DATA"), run: folder("SLOPLET_RUN"), autostart: false };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asking = async { sloplet_remote::Server::find(&search).await?.get("/sandboxes").await };
    let asked = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(10), asking).await })?;
    asked.map(|answer| answer.to_string()).map_err(io::Error::other)
}

/// A file with the set-user-ID bit.
fn set_id(path: &Path) -> io::Result<String> {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, "#!/bin/true\n")?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o4755))?;
    Ok(format!("{:o}", fs::metadata(path)?.permissions().mode() & 0o7777))
}
