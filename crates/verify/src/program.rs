//! The program that makes attempts, on the host and inside: this binary with a hidden subcommand.
//!
//! ```text
//! sloplet __probe run NAME…      attempts of probes; settings as JSON on standard input, an answer a line
//! sloplet __probe act NAME …     something that a drill wants done
//! sloplet __probe wait MARKER    a process to be attacked; prints an address in its memory; until its input ends
//! ```

use std::io::{Read, Write};

use crate::acts;
use crate::part::Parts;
use crate::probe::Kind;
use crate::probes;
use crate::settings::Settings;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "__probe";

/// Most bytes of settings.
const SETTINGS: u64 = 1 << 20;

/// Carries out what follows the subcommand; returns the exit status. Must be called before there are threads.
pub fn main(arguments: &[String]) -> u8 {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["run", names @ ..] => run(names),
        ["act", name, rest @ ..] => acts::act(name, rest),
        ["wait", _] => wait(),
        _ => 2,
    }
}

fn run(names: &[&str]) -> u8 {
    let mut text = String::new();
    if std::io::stdin().take(SETTINGS).read_to_string(&mut text).is_err() {
        return 2;
    }
    let Ok(settings) = serde_json::from_str::<Settings>(&text) else { return 2 };
    for probe in probes::ALL.iter().filter(|probe| names.contains(&probe.name)) {
        let Kind::Attempts { parts, .. } = &probe.kind else { continue };
        let mut all = Parts::default();
        parts(&settings, &mut all);
        all.run(probe.name, &settings, |answer| {
            let line = serde_json::to_string(&answer).unwrap_or_default();
            let _ = writeln!(std::io::stdout(), "{line}");
        });
    }
    0
}

/// Stands still, to be attacked.
fn wait() -> u8 {
    let memory = Box::new([0x5au8; 64]);
    let _ = writeln!(std::io::stdout(), "{}", std::ptr::from_ref(&*memory) as usize);
    let mut end = Vec::new();
    let _ = std::io::stdin().take(SETTINGS).read_to_end(&mut end);
    u8::from(memory[0] != 0x5a)
}
