//! xz through the `xz` program: the Rust decoders have no memory limit, and a header may ask for 4 GiB.

use std::fs::File;
use std::io::{self, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::error::ImageError;

/// `xz -9` needs 65 MiB.
const MEMORY_LIMIT: &str = "--memlimit-decompress=256MiB";

/// A running `xz -dc`; killed when dropped before its end.
pub(crate) struct XzProcess {
    child: Child,
    output: ChildStdout,
}

impl XzProcess {
    pub(crate) fn start(input: File) -> Result<XzProcess, ImageError> {
        let fail = |e: io::Error| {
            let hint =
                if e.kind() == io::ErrorKind::NotFound { " (install xz-utils, or unpack with `unxz`)" } else { "" };
            ImageError::Program { program: "xz", reason: format!("cannot decompress: {e}{hint}") }
        };
        let mut child = Command::new("xz")
            .args(["--decompress", "--stdout", "--quiet", MEMORY_LIMIT])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(fail)?;
        let Some(output) = child.stdout.take() else {
            return Err(fail(io::Error::other("no output")));
        };
        Ok(XzProcess { child, output })
    }
}

impl Read for XzProcess {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.output.read(buf)?;
        if n == 0 && !buf.is_empty() && !self.child.wait()?.success() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "xz: damaged, or it needs more than 256 MiB of memory",
            ));
        }
        Ok(n)
    }
}

impl Drop for XzProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
