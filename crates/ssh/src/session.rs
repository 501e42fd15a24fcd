//! A shell, a command, or SFTP.

use std::mem::discriminant;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use russh::server::{Handle, Msg};
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use sloplet_client::{Agent, ClientError, Process, ProcessEvent, Stdin};
use sloplet_engine::Command;
use sloplet_wire::{Builtin, Exit, TerminalSize};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use crate::forward;
use crate::guest::Guest;
use crate::uploads::Uploads;

/// The one subsystem.
pub(crate) const SFTP: &str = "sftp";

/// What clients take for "the connection failed", and not for a command's own code.
const FAILED: u32 = 255;

/// Pieces of input that wait for a process to read.
const QUEUE: usize = 64;

/// Variables that a client may set, and bytes of one.
const VARIABLES: usize = 64;
const VARIABLE: usize = 4096;

/// How long SFTP may take to put things in order when its client has gone.
const FAREWELL: Duration = Duration::from_secs(10);

/// Standard error, among the extended kinds of data.
const STDERR: u32 = 1;

const HANGUP: i32 = 1;

/// Whether a client may set a variable: those of language and terminal, which clients send by themselves.
pub(crate) fn takes_variable(name: &str) -> bool {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    plain && (matches!(name, "LANG" | "TERM" | "COLORTERM") || name.starts_with("LC_"))
}

/// What a client asked for.
enum What {
    Shell,
    Command(Vec<u8>),
    Sftp,
}

/// How.
#[derive(Default)]
struct How {
    terminal: Option<TerminalSize>,
    env: Vec<String>,
}

impl How {
    fn set(&mut self, name: &str, value: &str) {
        let fits = name.len() + value.len() < VARIABLE && !value.contains('\0') && self.env.len() < VARIABLES;
        if takes_variable(name) && fits {
            self.env.push(format!("{name}={value}"));
        }
    }
}

fn size(columns: u32, rows: u32) -> TerminalSize {
    // A client without a window says 0.
    let cells = |count: u32, usual: u16| if count == 0 { usual } else { u16::try_from(count).unwrap_or(u16::MAX) };
    TerminalSize { columns: cells(columns, 80), rows: cells(rows, 24) }
}

/// Serves a session to its end.
pub(crate) async fn run(channel: Channel<Msg>, handle: Handle, guest: &Guest) {
    let (mut incoming, outgoing) = channel.split();
    let Some((what, how)) = begin(&mut incoming).await else { return };
    let id = outgoing.id();
    let ended = match start(guest, what, how).await {
        Ok(started) => attend(incoming, &outgoing, started).await,
        Err(reason) => {
            let text = format!("sloplet: {}\r\n", harmless(&reason));
            let _ = outgoing.make_writer_ext(Some(STDERR)).write_all(text.as_bytes()).await;
            Some(Err(FAILED))
        }
    };
    let _ = handle.eof(id).await;
    let _ = match ended {
        Some(Ok(exit)) => match exit.signal {
            Some(signal) => handle.exit_signal_request(id, name_of(signal), false, String::new(), String::new()).await,
            None => handle.exit_status_request(id, exit.shell_code() as u32).await,
        },
        Some(Err(code)) => handle.exit_status_request(id, code).await,
        None => Ok(()),
    };
    let _ = handle.close(id).await;
}

/// Hears what is wanted.
async fn begin(incoming: &mut ChannelReadHalf) -> Option<(What, How)> {
    let mut how = How::default();
    loop {
        match incoming.wait().await? {
            ChannelMsg::RequestPty { term, col_width, row_height, .. } => {
                how.terminal = Some(size(col_width, row_height));
                let plain = !term.is_empty() && term.len() <= 64 && term.bytes().all(|byte| byte.is_ascii_graphic());
                how.set("TERM", if plain { &term } else { "xterm" });
            }
            ChannelMsg::WindowChange { col_width, row_height, .. } if how.terminal.is_some() => {
                how.terminal = Some(size(col_width, row_height));
            }
            ChannelMsg::SetEnv { variable_name, variable_value, .. } => how.set(&variable_name, &variable_value),
            ChannelMsg::RequestShell { .. } => return Some((What::Shell, how)),
            ChannelMsg::Exec { command, .. } => return Some((What::Command(command), how)),
            ChannelMsg::RequestSubsystem { name, .. } if name == SFTP => return Some((What::Sftp, how)),
            ChannelMsg::Close => return None,
            _ => {}
        }
    }
}

/// Something that runs.
struct Started {
    process: Process,
    agent: Agent,
    /// What SFTP does is written down.
    uploads: Option<Arc<Mutex<Uploads>>>,
    /// The sandbox does not count as idle meanwhile.
    _in_use: sloplet_engine::life::Reached,
}

async fn start(guest: &Guest, what: What, how: How) -> Result<Started, String> {
    let reached = guest.reach().await?;
    let told = |error: ClientError| error.to_string();
    let argv: Vec<Vec<u8>> = match what {
        What::Shell => vec![b"sh".into()],
        What::Command(command) => vec![b"sh".into(), b"-c".into(), command],
        What::Sftp => {
            let process = reached.agent().exec(forward::of_user(&reached, Builtin::Sftp, &["sftp-server"]));
            let process = process.await.map_err(told)?;
            // What it is asked is written down, file by file; what it says is no command's output.
            guest.note(&reached, SFTP, 200);
            let uploads = Uploads::new(reached.sandbox.journal().clone(), guest.access.actor());
            let uploads = Some(Arc::new(Mutex::new(uploads)));
            return Ok(Started { process, agent: reached.agent().clone(), uploads, _in_use: reached });
        }
    };
    let command = Command {
        env: how.env,
        terminal: how.terminal,
        stdin: true,
        tag: Some(forward::TAG.into()),
        builtin: Some(Builtin::Shell),
        ..Command::new(argv)
    };
    let process = reached.sandbox.exec(command).await.map_err(told)?;
    Ok(Started { process, agent: reached.agent().clone(), uploads: None, _in_use: reached })
}

/// Moves bytes until the process has ended, or the client has gone: then there is nobody to tell.
async fn attend(
    incoming: ChannelReadHalf,
    outgoing: &ChannelWriteHalf<Msg>,
    started: Started,
) -> Option<Result<Exit, u32>> {
    let Started { mut process, agent, uploads, _in_use } = started;
    let pid = process.pid;
    let (input, queue) = mpsc::channel(QUEUE);
    let feeding = process.take_stdin().map(|stdin| tokio::spawn(feed(stdin, queue)));
    let over = tokio::select! {
        ended = outward(&mut process, outgoing, uploads.as_ref()) => Some(ended),
        () = inward(incoming, input, &agent, pid, uploads.as_ref()) => None,
    };
    match over {
        Some(Ok(exit)) => Some(Ok(exit)),
        Some(Err(error)) => {
            let text = format!("sloplet: the command's end is not known: {}\r\n", harmless(&error.to_string()));
            let _ = outgoing.make_writer_ext(Some(STDERR)).write_all(text.as_bytes()).await;
            Some(Err(FAILED))
        }
        None => {
            tokio::spawn(see_off(process, agent, feeding, uploads.is_some()));
            None
        }
    }
}

async fn outward(
    process: &mut Process,
    outgoing: &ChannelWriteHalf<Msg>,
    uploads: Option<&Arc<Mutex<Uploads>>>,
) -> Result<Exit, ClientError> {
    let (mut out, mut err) = (outgoing.make_writer(), outgoing.make_writer_ext(Some(STDERR)));
    loop {
        match process.next().await.unwrap_or(Err(ClientError::Closed))? {
            ProcessEvent::Stdout(bytes) => {
                if let Some(uploads) = uploads {
                    uploads.lock().unwrap_or_else(PoisonError::into_inner).answered(&bytes);
                }
                // A client that is gone is noticed elsewhere.
                let _ = out.write_all(&bytes).await;
            }
            ProcessEvent::Stderr(bytes) => drop(err.write_all(&bytes).await),
            ProcessEvent::Exited(exit) => return Ok(exit),
        }
    }
}

/// Ends when the client closes the channel, or is gone.
async fn inward(
    mut incoming: ChannelReadHalf,
    input: mpsc::Sender<Bytes>,
    agent: &Agent,
    pid: u32,
    uploads: Option<&Arc<Mutex<Uploads>>>,
) {
    let mut input = Some(input);
    while let Some(message) = incoming.wait().await {
        match message {
            ChannelMsg::Data { data } => {
                if let Some(uploads) = uploads {
                    uploads.lock().unwrap_or_else(PoisonError::into_inner).asked(&data);
                }
                if let Some(input) = &input {
                    let _ = input.send(data).await;
                }
            }
            ChannelMsg::Eof => input = None,
            ChannelMsg::WindowChange { col_width, row_height, .. } => {
                let _ = agent.resize(pid, size(col_width, row_height)).await;
            }
            ChannelMsg::Signal { signal } => {
                if let Some(number) = number_of(&signal) {
                    let _ = agent.signal(pid, number, true).await;
                }
            }
            ChannelMsg::Close => return,
            _ => {}
        }
    }
}

/// Ends, and closes the input, when nobody sends any more.
async fn feed(mut stdin: Stdin, mut queue: mpsc::Receiver<Bytes>) {
    while let Some(bytes) = queue.recv().await {
        if stdin.write(bytes).await.is_err() {
            break;
        }
    }
    drop(stdin);
    // It takes no more; what still comes is thrown away, as if written to nobody.
    while queue.recv().await.is_some() {}
}

/// What is done about a process whose client has gone: it is told, as by a closed terminal. One that does not mind (`nohup`)
/// goes on, and what it writes goes nowhere. SFTP hears of it by the end of its input.
async fn see_off(mut process: Process, agent: Agent, feeding: Option<tokio::task::JoinHandle<()>>, is_sftp: bool) {
    let pid = process.pid;
    let end = async move {
        while let Some(Ok(event)) = process.next().await {
            if matches!(event, ProcessEvent::Exited(_)) {
                return;
            }
        }
    };
    if is_sftp {
        let _ = tokio::time::timeout(FAREWELL, end).await;
        return;
    }
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    let _ = agent.signal(pid, HANGUP, true).await;
    end.await;
}

/// Text of errors may hold what somebody inside chose.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1000).collect()
}

/// Signals that have a name in SSH, with their numbers.
const SIGNALS: [(i32, Sig); 12] = [
    (1, Sig::HUP),
    (2, Sig::INT),
    (3, Sig::QUIT),
    (4, Sig::ILL),
    (6, Sig::ABRT),
    (8, Sig::FPE),
    (9, Sig::KILL),
    (10, Sig::USR1),
    (11, Sig::SEGV),
    (13, Sig::PIPE),
    (14, Sig::ALRM),
    (15, Sig::TERM),
];

fn name_of(number: i32) -> Sig {
    let known = SIGNALS.into_iter().find(|(known, _)| *known == number);
    known.map_or_else(|| Sig::Custom(format!("{number}@sloplet")), |(_, signal)| signal)
}

fn number_of(signal: &Sig) -> Option<i32> {
    let named = |name: &str| match name {
        "USR2" => Some(12),
        "CONT" => Some(18),
        "TSTP" => Some(20),
        "WINCH" => Some(28),
        _ => None,
    };
    match signal {
        Sig::Custom(name) => named(name),
        signal => {
            SIGNALS.iter().find(|(_, known)| discriminant(known) == discriminant(signal)).map(|(number, _)| *number)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_of_language_and_terminal_are_taken() {
        let mut how = How::default();
        for name in ["LANG", "LC_ALL", "TERM", "LD_PRELOAD", "PATH", "LC_A=B", "BASH_ENV", ""] {
            how.set(name, "x");
        }
        assert_eq!(how.env, ["LANG=x", "LC_ALL=x", "TERM=x"]);
        how.set("LC_LONG", &"x".repeat(VARIABLE));
        (0..1000).for_each(|number| how.set(&format!("LC_{number}"), "x"));
        assert_eq!(how.env.len(), VARIABLES);
    }

    #[test]
    fn signals_keep_their_meaning() {
        for (number, signal) in SIGNALS {
            assert_eq!(number_of(&signal), Some(number));
            assert_eq!(discriminant(&name_of(number)), discriminant(&signal));
        }
        assert_eq!(number_of(&Sig::Custom("NONSENSE".into())), None);
        assert_eq!(size(0, 70_000), TerminalSize { columns: 80, rows: u16::MAX });
    }
}
