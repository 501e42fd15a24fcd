//! What a newcomer would like to be told after a command: what it was not let reach, and what of the host it did not see.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, PoisonError};

use sloplet_engine::outward::{Denied, DeniedDo};

use crate::terminal::harmless;

/// What is remembered of what was refused.
const REMEMBERED: usize = 100;

/// How much of that is told.
const TOLD: usize = 3;

/// What a sandbox was not let reach, each once.
#[derive(Clone, Default)]
pub struct Refusals(Arc<Mutex<BTreeSet<Denied>>>);

impl Refusals {
    /// Hears of each.
    pub fn listener(&self) -> DeniedDo {
        let heard = self.0.clone();
        Arc::new(move |denied| {
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            if heard.len() < REMEMBERED {
                heard.insert(denied);
            }
        })
    }

    /// One line about them, with the rules that would allow them.
    pub fn line(&self) -> Option<String> {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A name that was looked up and one that was connected to are the same to whoever reads this.
        let places: BTreeSet<(&str, bool, Option<u16>)> = heard
            .iter()
            .filter(|one| {
                one.port.is_some() || !heard.iter().any(|other| other.place == one.place && other.port.is_some())
            })
            .map(|one| (one.place.as_str(), one.by_rule, one.port))
            .collect();
        let (first, rest) = (places.iter().take(TOLD), places.len().saturating_sub(TOLD));
        let told: Vec<String> = first.map(|(place, by_rule, port)| shown(place, *by_rule, *port)).collect();
        let more = if rest > 0 { format!(", and {rest} more (see 'sloplet audit')") } else { String::new() };
        (!told.is_empty()).then(|| harmless(&format!("it was not let reach {}{more}", told.join(", "))))
    }
}

fn shown(place: &str, by_rule: bool, port: Option<u16>) -> String {
    let rule = match port {
        Some(port) if port != 80 && port != 443 => match place.contains(':') {
            true => format!("[{place}]:{port}"),
            false => format!("{place}:{port}"),
        },
        _ => place.to_owned(),
    };
    match by_rule {
        true => format!("{rule} (a rule says no)"),
        false => format!("{rule} (--allow '{rule}' would let it)"),
    }
}

/// About a file of this folder that the command names and cannot have seen.
pub fn unseen(command: &[OsString], folder: &Path) -> Option<String> {
    let named = command.iter().map(Path::new).find(|word| {
        let plain = word.components().all(|part| matches!(part, Component::CurDir | Component::Normal(_)));
        plain && !word.as_os_str().is_empty() && !word.to_string_lossy().starts_with('-') && folder.join(word).is_file()
    })?;
    Some(harmless(&format!(
        "'{}' is a file of the host, and this folder is not inside: '--mount .' shows it there, read-only, as /workspace",
        named.display()
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn what_was_denied_is_told_once_with_the_rule_that_would_allow_it() {
        let refusals = Refusals::default();
        assert_eq!(refusals.line(), None);
        let hear = refusals.listener();
        let denied = |place: &str, port, by_rule| Denied { place: place.into(), port, by_rule };
        hear(denied("api.github.com", None, false));
        hear(denied("api.github.com", None, false));
        assert_eq!(
            refusals.line().unwrap(),
            "it was not let reach api.github.com (--allow 'api.github.com' would let it)"
        );
        hear(denied("10.0.0.5", Some(22), false));
        hear(denied("example.com", Some(443), true));
        hear(denied("::1", Some(9), false));
        let line = refusals.line().unwrap();
        assert!(line.contains("10.0.0.5:22 (--allow '10.0.0.5:22' would let it)"), "{line}");
        assert!(line.contains("[::1]:9 (--allow") && line.ends_with(", and 1 more (see 'sloplet audit')"), "{line}");
    }

    #[test]
    fn a_file_that_is_only_on_the_host_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("agent.py"), "").unwrap();
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let said = unseen(&words(&["python3", "./agent.py"]), folder.path()).unwrap();
        assert!(said.contains("--mount .") && said.contains("agent.py"), "{said}");
        for other in
            [&["python3", "-c", "x"][..], &["cat", "/etc/passwd"], &["cat", "../agent.py"], &["cat", "other"], &[""]]
        {
            assert_eq!(unseen(&words(other), folder.path()), None);
        }
    }
}
