//! A secret's value.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use sloplet_policy::secret::Source;
use zeroize::Zeroizing;

/// Longest value. Keys are tens of bytes, tokens and certificates a few thousand.
const LONGEST: usize = 64 * 1024;

/// How long a command may take; it may have to ask a person or a server.
const COMMAND_WITHIN: Duration = Duration::from_secs(30);

/// A secret's value: never printed, and zeroed when it is gone.
///
/// Copies that libraries make on the way to the wire are not zeroed.
#[derive(Clone)]
pub struct SecretValue(Zeroizing<Vec<u8>>);

/// A value that could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// The variable is not there.
    #[error("the environment has no variable {0}: set it where sloplet is started")]
    Unset(String),
    /// The file could not be read.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The command could not be started or read.
    #[error("could not run '{program}': {source}")]
    Command {
        /// Which.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The command failed. What it printed may be secret and is not shown.
    #[error("'{program}' failed with {status}: run it by hand to see why")]
    Failed {
        /// Which.
        program: String,
        /// How.
        status: ExitStatus,
    },
    /// The command took too long.
    #[error("'{0}' took longer than {limit:?}", limit = COMMAND_WITHIN)]
    TooSlow(String),
    /// No value at all.
    #[error("{0} gives an empty value")]
    Empty(String),
    /// Too long.
    #[error("{0} gives more than {LONGEST} bytes: a secret is shorter")]
    TooLong(String),
}

impl SecretValue {
    /// Takes a value.
    pub fn new(value: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(value.into()))
    }

    /// The value itself.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Gets the value from where it is kept. Blocks; a command may take seconds.
    pub fn resolve(source: &Source) -> Result<Self, ValueError> {
        let (mut value, from) = match source {
            Source::Env { var } => {
                use std::os::unix::ffi::OsStringExt;
                let value = std::env::var_os(var).ok_or_else(|| ValueError::Unset(var.clone()))?;
                (Zeroizing::new(value.into_vec()), format!("variable {var}"))
            }
            Source::File { path } => {
                let failed = |source| ValueError::File { path: path.clone(), source };
                let file = File::open(path).map_err(failed)?;
                (read(file).map_err(failed)?, path.display().to_string())
            }
            Source::Command { argv } => {
                let program = argv.first().cloned().unwrap_or_default();
                (run(argv, &program, COMMAND_WITHIN)?, program)
            }
        };
        if !matches!(source, Source::Env { .. }) && value.last() == Some(&b'\n') {
            value.pop();
            if value.last() == Some(&b'\r') {
                value.pop();
            }
        }
        match value.len() {
            0 => Err(ValueError::Empty(from)),
            length if length > LONGEST => Err(ValueError::TooLong(from)),
            _ => Ok(Self(value)),
        }
    }
}

fn read(from: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    // The whole room at once: a vector that grows leaves copies behind.
    let mut value = Zeroizing::new(Vec::with_capacity(LONGEST + 2));
    from.take(LONGEST as u64 + 2).read_to_end(&mut value)?;
    Ok(value)
}

fn run(argv: &[String], program: &str, within: Duration) -> Result<Zeroizing<Vec<u8>>, ValueError> {
    let failed = |source| ValueError::Command { program: program.to_owned(), source };
    let mut command = Command::new(program);
    command.args(argv.get(1..).unwrap_or_default());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    let output = child.stdout.take().ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(read(output)));
    let deadline = Instant::now() + within;
    let value = receiver.recv_timeout(within);
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if value.is_err() || Instant::now() >= deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(ValueError::TooSlow(program.to_owned()));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    if !status.success() {
        return Err(ValueError::Failed { program: program.to_owned(), status });
    }
    value.map_err(|_| ValueError::TooSlow(program.to_owned()))?.map_err(failed)
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(…)")
    }
}

impl fmt::Display for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(argv: &[&str]) -> Source {
        Source::Command { argv: argv.iter().map(|&word| word.to_owned()).collect() }
    }

    #[test]
    fn values_come_from_files_and_commands() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "line one\nline two\n\n").unwrap();
        let value = SecretValue::resolve(&Source::File { path: path.clone() }).unwrap();
        assert_eq!(value.expose(), b"line one\nline two\n");
        assert_eq!(SecretValue::resolve(&command(&["printf", "a b"])).unwrap().expose(), b"a b");
        std::fs::write(&path, "\n").unwrap();
        assert!(matches!(SecretValue::resolve(&Source::File { path: path.clone() }), Err(ValueError::Empty(_))));
        std::fs::write(&path, vec![b'x'; LONGEST + 1]).unwrap();
        assert!(matches!(SecretValue::resolve(&Source::File { path }), Err(ValueError::TooLong(_))));
    }

    #[test]
    fn failures_say_what_failed_and_no_value() {
        let unset = Source::Env { var: "SLOPLET_NO_SUCH_VARIABLE".into() };
        assert!(matches!(SecretValue::resolve(&unset), Err(ValueError::Unset(_))));
        let error = SecretValue::resolve(&command(&["sh", "-c", "echo sk-secret; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("'sh' failed") && !error.contains("sk-secret"), "{error}");
        assert!(matches!(SecretValue::resolve(&command(&["/no/such/program"])), Err(ValueError::Command { .. })));
    }

    #[test]
    fn a_command_that_hangs_is_ended() {
        let argv = ["sleep", "1000"].map(String::from);
        assert!(matches!(run(&argv, "sleep", Duration::from_millis(20)), Err(ValueError::TooSlow(_))));
    }

    #[test]
    fn a_value_does_not_print() {
        let value = SecretValue::new("sk-secret");
        assert!(!format!("{value} {value:?}").contains("secret"));
    }
}
