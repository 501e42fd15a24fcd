//! `sloplet exec`

use serde_json::{Value, json};
use sloplet_wire::TerminalSize;

use super::create::variables;
use super::run::{NOT_EXECUTABLE, NOT_FOUND, TIMED_OUT};
use crate::api::{Refused, Server, encode};
use crate::cli::Exec;
use crate::relay::output::Sink;
use crate::relay::signals::{Guard, Signals};
use crate::relay::{self, Control, input};
use crate::terminal::{self, RawMode};

/// The user ended it.
const INTERRUPTED: u8 = 130;

/// A single word with spaces in it is meant as a line for the shell: no program is called so.
fn words(command: Vec<String>) -> Vec<String> {
    match <[String; 1]>::try_from(command) {
        Ok([line]) if line.trim().contains([' ', '\n', '\t']) && !line.starts_with('/') => {
            vec!["sh".into(), "-c".into(), line]
        }
        Ok([word]) => vec![word],
        Err(command) => command,
    }
}

pub async fn run(server: &Server, mut options: Exec) -> anyhow::Result<u8> {
    options.command = words(options.command);
    let mut process = json!({"command": options.command});
    let mut env = variables(&options.env)?;
    if options.tty {
        let kind = std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".into());
        env.entry("TERM".into()).or_insert(kind);
    }
    process["env"] = serde_json::to_value(env)?;
    let mut set = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            process[name] = value.into();
        }
    };
    set("cwd", options.workdir);
    set("user", options.user);
    set("tag", options.tag);
    set("timeout", options.timeout.map(|span| span.to_string()));
    if options.detach {
        let started = server.post(&format!("/sandboxes/{}/processes", encode(&options.name)), &process).await;
        return match started {
            Ok(started) => {
                say!("{}", started["pid"]);
                Ok(0)
            }
            Err(error) => refused(error, &options.command[0]),
        };
    }
    attend(server, &options.name, process, options.interactive, options.tty).await
}

/// Runs a command and stays with it until it ends.
pub async fn attend(server: &Server, name: &str, mut process: Value, ask: bool, tty: bool) -> anyhow::Result<u8> {
    // Before the size is read, lest a change be missed, and before the command can make anybody think that it listens.
    let signals = Signals::listen()?;
    if tty {
        let TerminalSize { columns, rows } = terminal::size();
        process["tty"] = json!({"columns": columns, "rows": rows});
    }
    let forward = input::wanted(ask || tty);
    process["stdin"] = forward.into();
    let program = process["command"][0].as_str().unwrap_or_default().to_owned();
    let mut far = match server.attach(name, &json!({"start": {"process": process, "keep": false}})).await {
        Ok(far) => far,
        Err(error) => return refused(error, &program),
    };
    let raw = if tty { RawMode::enter()? } else { None };
    if forward {
        far.feed(input::read());
    }
    let mut sink = Sink::new(u64::MAX, false);
    let mut guard = Guard::new(Remote { server, sandbox: name, pid: far.pid }, signals, None);
    let relayed = relay::relay(&mut far, &mut guard, &mut sink).await;
    drop(raw);
    match relayed.exit {
        Some(exit) if exit.timed_out => {
            complain!("sloplet: the time of the command was over: it was killed (--timeout)");
            Ok(TIMED_OUT)
        }
        Some(exit) => Ok(exit.shell_code() as u8),
        None if guard.interrupted => Ok(INTERRUPTED),
        None => Err(relayed.lost.unwrap_or_else(|| anyhow::anyhow!("the connection to the server was lost"))),
    }
}

/// The command never started.
fn refused(error: anyhow::Error, program: &str) -> anyhow::Result<u8> {
    // About the program, and not, say, about its user or its working directory.
    let code = match error.downcast_ref::<Refused>() {
        Some(refused) if refused.message.starts_with(&format!("{program}: ")) => match refused.status {
            404 => NOT_FOUND,
            _ => NOT_EXECUTABLE,
        },
        _ => return Err(error),
    };
    complain!("sloplet: {}", terminal::harmless(&error.to_string()));
    Ok(code)
}

/// A command in a server's sandbox. Signals take a way of their own: they must not wait behind input that nobody reads.
struct Remote<'a> {
    server: &'a Server,
    sandbox: &'a str,
    pid: u32,
}

impl Remote<'_> {
    async fn post(&self, what: &str, body: &Value) {
        let path = format!("/sandboxes/{}/processes/{}/{what}", encode(self.sandbox), self.pid);
        let _ = self.server.post(&path, body).await;
    }
}

impl Control for Remote<'_> {
    async fn signal(&self, number: i32) {
        let name = if number == 3 { "SIGQUIT" } else { "SIGINT" };
        self.post("signal", &json!({"signal": name, "group": true})).await;
    }

    async fn resize(&self, size: TerminalSize) {
        self.post("resize", &json!({"columns": size.columns, "rows": size.rows})).await;
    }
}
