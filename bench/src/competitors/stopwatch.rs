//! Times programs from within a mount namespace of its own, in which the cgroup2 tree of a host with cgroup v1
//! controllers is hidden; entering it is not part of what is timed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::program;

/// The hidden subcommand of this program.
pub const SUBCOMMAND: &str = "__stopwatch";

const HIDE_AND_SERVE: &str = "umount /sys/fs/cgroup/unified 2>/dev/null; exec \"$0\" __stopwatch";

/// The helper process.
pub struct Stopwatch {
    process: Child,
    // An `Option` so that it can be closed before waiting.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Stopwatch {
    /// Starts one.
    pub fn start() -> Result<Self> {
        let own = std::env::current_exe().context("finding this program")?;
        let mut process = Command::new(program::find("unshare")?)
            .args(["--mount", "sh", "-c", HIDE_AND_SERVE])
            .arg(own)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting unshare")?;
        let orders = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().context("no pipe")?);
        Ok(Self { process, orders, answers })
    }

    /// Runs a program to its end and returns how long it took.
    pub fn time(&mut self, words: &[&str]) -> Result<Duration> {
        let orders = self.orders.as_mut().context("the stopwatch is closed")?;
        writeln!(orders, "{}", serde_json::to_string(words)?).context("asking the stopwatch")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).context("asking the stopwatch")?;
        match answer.trim().parse() {
            Ok(nanoseconds) => Ok(Duration::from_nanos(nanoseconds)),
            Err(_) => bail!("{}", answer.trim()),
        }
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.process.wait();
    }
}

/// The helper process itself: a JSON array of words in, nanoseconds or an error out, line by line.
pub fn serve() -> ExitCode {
    for line in std::io::stdin().lines() {
        let Ok(line) = line else { return ExitCode::FAILURE };
        match time_words(&line) {
            Ok(time) => println!("{}", time.as_nanos()),
            Err(error) => println!("{}", format!("{error:#}").replace('\n', " ")),
        }
    }
    ExitCode::SUCCESS
}

fn time_words(line: &str) -> Result<Duration> {
    let words: Vec<String> = serde_json::from_str(line)?;
    let (program, arguments) = words.split_first().context("no program")?;
    program::time(Command::new(program).args(arguments))
}
