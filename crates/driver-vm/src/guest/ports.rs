//! The machine's ports: streams to the host, each with one other end at a time.
//!
//! A port looks closed while nobody has its other end. What was under way then is thrown away, so that the next one begins
//! with something whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

/// How often it is looked whether somebody has come.
const LOOK: Duration = Duration::from_millis(10);

/// Opens the port that the host calls `name`.
pub fn open(name: &str) -> io::Result<File> {
    for _ in 0..500 {
        for entry in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
            let path = Path::new("/dev").join(entry.file_name());
            if fs::read_to_string(entry.path().join("name")).unwrap_or_default().trim() == name && path.exists() {
                let flags = OFlags::NONBLOCK.bits() as i32;
                return OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
            }
        }
        std::thread::sleep(LOOK);
    }
    Err(io::Error::other(format!("there is no port '{name}'")))
}

/// Connects every visitor of the port with a stream that `session` gives, one after the other, in a thread of its own.
pub fn serve(name: &'static str, session: impl Fn() -> Option<UnixStream> + Send + 'static) -> io::Result<()> {
    let port = Arc::new(open(name)?);
    let run = move || {
        loop {
            while !connected(&port) {
                std::thread::sleep(LOOK);
            }
            // Whoever cannot be led further sees a stream that says nothing, and comes again.
            let Some((stream, other)) =
                session().and_then(|stream| stream.try_clone().ok().map(|other| (stream, other)))
            else {
                std::thread::sleep(LOOK * 10);
                continue;
            };
            let over = Arc::new(AtomicBool::new(false));
            let (outward, ended) = (port.clone(), over.clone());
            let writer = std::thread::spawn(move || {
                let _ = outwards(other, &outward, &ended);
            });
            let _ = inwards(&port, &stream);
            over.store(true, Ordering::Relaxed);
            let _ = stream.shutdown(Shutdown::Both);
            let _ = writer.join();
            // Whoever is still there speaks to nobody: it has to come again.
            while connected(&port) {
                std::thread::sleep(LOOK);
            }
        }
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Waits until the port can be read or written, or its other end is gone; a while at most.
fn wait(port: &File, flags: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(port, flags)];
    let limit = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    match poll(&mut fds, Some(&limit)) {
        Ok(_) => fds[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}

fn connected(port: &File) -> bool {
    let mut fds = [PollFd::new(port, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().contains(PollFlags::HUP)
}

/// From the host to the stream.
fn inwards(mut port: &File, mut stream: &UnixStream) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match port.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => stream.write_all(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(port, PollFlags::IN);
                // The other side of the stream may be gone; nothing else would tell.
                if stream_ended(stream) {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn stream_ended(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// From the stream to the host.
fn outwards(mut stream: UnixStream, mut port: &File, over: &AtomicBool) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        let mut rest = &buffer[..count];
        while !rest.is_empty() && !over.load(Ordering::Relaxed) {
            match port.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if wait(port, PollFlags::OUT).contains(PollFlags::HUP) {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
