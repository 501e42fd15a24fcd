//! `sloplet patch`

use std::io::IsTerminal;

use anyhow::Context;
use http_body_util::BodyExt;
use hyper::Method;

use crate::api::{Server, encode, full};
use crate::relay::output::{Sink, Stream};

pub async fn run(
    server: &Server,
    name: &str,
    path: Option<&str>,
    user: Option<&str>,
    baseline: Option<&str>,
) -> anyhow::Result<u8> {
    let options = [("path", path), ("user", user), ("baseline", baseline)];
    let said = options.iter().filter_map(|(name, value)| Some(format!("{name}={}", encode((*value)?))));
    let query = said.collect::<Vec<_>>().join("&");
    let at = format!("/sandboxes/{}/patch?{query}", encode(name));
    let mut body = server.send(Method::GET, &at, "application/json", full("")).await?.into_body();
    let (mut sink, terminal) = (Sink::new(u64::MAX, false), std::io::stdout().is_terminal());
    let mut shown = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame.context("the transfer broke off")?.into_data() else { continue };
        match terminal {
            // Character by character, which may be in two pieces.
            true => shown.extend_from_slice(&bytes),
            false => sink.write(Stream::Out, bytes).await?,
        }
    }
    sink.flush().await;
    if terminal {
        String::from_utf8_lossy(&shown).lines().for_each(|line| say!("{}", coloured(line)));
    }
    Ok(0)
}

/// A line for a person: nothing in it steers the terminal.
fn coloured(line: &str) -> String {
    let plain: String = line.chars().flat_map(escaped).collect();
    let colour = match line.as_bytes() {
        [b'+', ..] if !line.starts_with("+++ ") => "32",
        [b'-', ..] if !line.starts_with("--- ") => "31",
        [b'@', b'@', ..] => "36",
        _ if line.starts_with("diff --git ") => "1",
        _ => return plain,
    };
    if std::env::var_os("NO_COLOR").is_some() { plain } else { format!("\x1b[{colour}m{plain}\x1b[0m") }
}

fn escaped(c: char) -> Box<dyn Iterator<Item = char>> {
    match c {
        '\t' | '"' | '\'' | '\\' => Box::new(std::iter::once(c)),
        c => Box::new(c.escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_does_not_steer_the_terminal() {
        let shown = coloured("+a\x1b]0;x\x07\t\"q\"\u{202e}");
        assert!(shown.contains("+a\\u{1b}]0;x\\u{7}\t\"q\"\\u{202e}"), "{shown}");
        assert_eq!(coloured(" same"), " same");
    }
}
