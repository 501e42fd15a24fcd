//! Asking whoever sits at the terminal about rules that say `ask`.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};

use sloplet_egress::{Answer, Ask, Pending, Request};
use tokio::sync::oneshot;

use crate::terminal::harmless;

/// Nobody can be asked: with a terminal of its own, the command hears all that is typed.
pub struct Silent;

impl Ask for Silent {
    fn ask(&self, request: Request) -> Pending<'static, Answer> {
        complain!("sloplet: {}: nobody was asked, the terminal is the command's: the answer is no\r", wish(&request));
        Box::pin(async { Answer::Deny })
    }
}

/// What is wanted, in words.
fn wish(request: &Request) -> String {
    let place = request.name.clone().or_else(|| request.address.map(|address| address.to_string())).unwrap_or_default();
    harmless(&format!("the sandbox wants to reach {place}:{} (rule '{}')", request.port, request.rule))
}

/// The person at the terminal. Without one, the answer is no, and that is told.
pub struct Terminal;

impl Ask for Terminal {
    fn ask(&self, request: Request) -> Pending<'static, Answer> {
        let (answer, answered) = oneshot::channel();
        // A thread of its own, which nobody waits for: who is asked may never answer.
        std::thread::spawn(move || {
            let _ = answer.send(ask(&request).unwrap_or_else(|_| {
                complain!(
                    "sloplet: {}: nobody was asked, there is no terminal: the answer is no ('sloplet create' has 'approve')",
                    wish(&request)
                );
                Answer::Deny
            }));
        });
        Box::pin(async move { answered.await.unwrap_or(Answer::Deny) })
    }
}

fn ask(request: &Request) -> std::io::Result<Answer> {
    let mut terminal = File::options().read(true).write(true).open("/dev/tty")?;
    write!(terminal, "sloplet: {}: allow? [y]es, [a]lways, [N]o ", wish(request))?;
    let mut line = String::new();
    BufReader::new(terminal).read_line(&mut line)?;
    Ok(match line.trim().to_lowercase().as_str() {
        "y" | "yes" => Answer::Once,
        "a" | "always" => Answer::Always,
        _ => Answer::Deny,
    })
}
