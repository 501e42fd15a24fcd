//! Asking whoever sits at the terminal about rules that say `ask`.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};

use sloplet_egress::{Answer, Ask, Pending, Request};
use tokio::sync::oneshot;

use crate::terminal::harmless;

/// The person at the terminal. Without one, the answer is no.
pub struct Terminal;

impl Ask for Terminal {
    fn ask(&self, request: Request) -> Pending<'static, Answer> {
        let (answer, answered) = oneshot::channel();
        // A thread of its own, which nobody waits for: who is asked may never answer.
        std::thread::spawn(move || {
            let _ = answer.send(ask(&request).unwrap_or(Answer::Deny));
        });
        Box::pin(async move { answered.await.unwrap_or(Answer::Deny) })
    }
}

fn ask(request: &Request) -> std::io::Result<Answer> {
    let mut terminal = File::options().read(true).write(true).open("/dev/tty")?;
    let place = request.name.clone().or_else(|| request.address.map(|address| address.to_string())).unwrap_or_default();
    let question = format!("the sandbox wants to reach {place}:{} (rule '{}')", request.port, request.rule);
    write!(terminal, "sloplet: {}: allow? [y]es, [a]lways, [N]o ", harmless(&question))?;
    let mut line = String::new();
    BufReader::new(terminal).read_line(&mut line)?;
    Ok(match line.trim().to_lowercase().as_str() {
        "y" | "yes" => Answer::Once,
        "a" | "always" => Answer::Always,
        _ => Answer::Deny,
    })
}
