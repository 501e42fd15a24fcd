//! What the fuzz targets in `fuzz/` may call of this crate, with what must hold for any text of a client or a vendor.

use std::collections::BTreeMap;

use crate::template::step::{self, Step, StepRequest};

/// A CDI specification: what is shown inside has an absolute path without `..`.
pub fn cdi(text: &str) {
    for yaml in [false, true] {
        let Some(devices) = crate::cdi::everything(text, yaml) else { continue };
        for shown in devices.nodes.iter().chain(&devices.files) {
            assert!(shown.to.starts_with('/') && shown.to.split('/').all(|part| part != ".."), "{shown:?}");
        }
    }
}

/// A step of a template: words on lines, the first of which is its kind.
pub fn template_step(text: &str) {
    let mut lines = text.split('\n').map(str::to_owned);
    let kind = lines.next().unwrap_or_default();
    let request = StepRequest { kind, args: lines.collect(), files_hash: Some("00".into()), force: false };
    if let Ok(step) = Step::parse(&request) {
        let described = step.describe();
        assert!(described.starts_with(&request.kind) && !described.contains('\0'));
    }
    let variables = BTreeMap::from([("A".to_owned(), "$A${A}".to_owned()), ("LONG".to_owned(), "x".repeat(64))]);
    let expanded = step::expand(text, &variables);
    assert!(expanded.len() <= text.len().saturating_mul(65), "{} from {}", expanded.len(), text.len());
    assert!(step::absolute("/home", text).starts_with('/'));
}

/// Two contents of a file inside: the patch leads from the one to the other.
pub fn patch(old: &[u8], new: &[u8]) {
    let patch = crate::patch::between(b"na me\n\"", old, new);
    assert!(patch.is_empty() || patch.starts_with(b"diff --git "));
    assert_eq!(old == new, patch.is_empty());
    let binary = patch.windows(16).any(|part| part == b"GIT binary patch");
    if !binary && !patch.is_empty() {
        let applied = applied(old, &patch);
        assert_eq!(applied.as_deref(), Some(new), "{}", String::from_utf8_lossy(&patch));
    }
}

/// Applies a patch of one file as `git apply` does; `None` if it does not fit.
fn applied(old: &[u8], patch: &[u8]) -> Option<Vec<u8>> {
    let mut rest = old.split_inclusive(|byte| *byte == b'\n');
    let (mut out, mut at, mut hunks) = (Vec::new(), 1, false);
    let lines: Vec<&[u8]> = patch.split_inclusive(|byte| *byte == b'\n').collect();
    for (number, line) in lines.iter().enumerate() {
        // A line that is the last one, without an end, says so in the line behind it.
        let ends = !lines.get(number + 1).is_some_and(|next| hunks && next.starts_with(b"\\"));
        let text = |line: &[u8]| line[1..line.len() - usize::from(!ends)].to_vec();
        match line.first()? {
            b'@' => {
                hunks = true;
                let place = std::str::from_utf8(line).ok()?.strip_prefix("@@ -")?.split(' ').next()?;
                let (first, count) = place.split_once(',').unwrap_or((place, "1"));
                let first = first.parse::<usize>().ok()? + usize::from(count == "0");
                while at < first {
                    out.extend_from_slice(rest.next()?);
                    at += 1;
                }
            }
            b' ' if hunks => {
                let line = rest.next().filter(|before| *before == text(line))?;
                out.extend_from_slice(line);
                at += 1;
            }
            b'-' if hunks => {
                rest.next().filter(|before| *before == text(line))?;
                at += 1;
            }
            b'+' if hunks => out.extend_from_slice(&text(line)),
            b'\\' if hunks => {}
            _ if hunks => return None,
            _ => {}
        }
    }
    rest.for_each(|line| out.extend_from_slice(line));
    Some(out)
}
