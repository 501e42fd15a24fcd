//! Joins the standard streams with a socket.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Bytes that are moved at once.
const PIECE: usize = 64 * 1024;

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connects to the second argument and moves bytes until the other side has closed.
pub(super) fn run(argv: &[CString]) -> u8 {
    let wanted = argv.get(1).map_or(&b""[..], |word| word.as_bytes());
    let joined = if wanted.starts_with(b"/") {
        UnixStream::connect(Path::new(std::ffi::OsStr::from_bytes(wanted)))
            .and_then(|socket| join(socket.try_clone()?, socket, |socket| socket.shutdown(Shutdown::Write)))
    } else {
        address(wanted)
            .and_then(|address| TcpStream::connect_timeout(&address, PATIENCE))
            .and_then(|socket| join(socket.try_clone()?, socket, |socket| socket.shutdown(Shutdown::Write)))
    };
    match joined {
        Ok(()) => 0,
        Err(error) => {
            let _ = io::stderr().write_all(error.to_string().as_bytes());
            1
        }
    }
}

fn address(text: &[u8]) -> io::Result<SocketAddr> {
    let text = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    text.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "neither an address and a port nor a path"))
}

/// When the other side closes, this is over; the end of the input is only told to it.
fn join<S: Read + Write + Send + 'static>(
    mut reader: S,
    mut writer: S,
    finish: fn(&S) -> io::Result<()>,
) -> io::Result<()> {
    io::stderr().write_all(b"+")?;
    std::thread::Builder::new().spawn(move || {
        let _ = pass(&mut io::stdin().lock(), &mut writer);
        let _ = finish(&writer);
    })?;
    // What comes after it cannot be read any more is nobody's mistake.
    let _ = pass(&mut reader, &mut io::stdout().lock());
    Ok(())
}

fn pass(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                to.write_all(&buffer[..count])?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
