//! Changes as a patch that `git apply` and `patch -p1` take.
//!
//! Names and contents are hostile: names are quoted as git quotes them, so that nothing in one can be taken for a line of the
//! patch; contents stay behind the first column, or are armoured.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use ring::digest;
use similar::{Algorithm, DiffOp, DiffTag};
use sloplet_image::changes::{Changes, Node, NodeKind};

/// Most bytes of a patch, and of a file in it.
pub const MOST: usize = 64 << 20;

/// Files that are longer, or have more lines, are compared as a whole, not line by line: each line costs memory.
const TEXT: usize = 2 << 20;
const LINES: usize = 200_000;

/// Lines around a change.
const CONTEXT: usize = 3;

/// How long the shortest ways from one file to another are looked for, all together; after that longer ones will do.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no patch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PatchError {
    /// It would be too long.
    #[error("with '{0}' the patch would be longer than 64 MiB: name a folder, or copy files with `sloplet cp`")]
    TooLong(String),
    /// More changes than are told.
    #[error("more than 100000 files have changed: name a folder")]
    TooMany,
    /// A file cannot be read.
    #[error("cannot read '{0}': {1}")]
    Unreadable(String, io::Error),
}

/// The patch for the folder `root`, in whose terms the paths in it are; for a file, in those of the folder it is in.
pub fn patch(changes: &Changes, root: &Path) -> Result<Vec<u8>, PatchError> {
    if changes.truncated {
        return Err(PatchError::TooMany);
    }
    let own = changes.list.iter().find(|change| change.path == root);
    let is_file = |node: &Option<Node>| node.as_ref().is_some_and(|node| node.kind != NodeKind::Directory);
    let root = match own {
        Some(change) if is_file(&change.before) || is_file(&change.after) => root.parent().unwrap_or(root),
        _ => root,
    };
    let (mut out, mut left_out, until) = (Vec::new(), Vec::new(), Instant::now() + PATIENCE);
    for change in &changes.list {
        let Ok(path) = change.path.strip_prefix(root) else { continue };
        let shown = || change.path.to_string_lossy().escape_debug().to_string();
        let why = if path.components().any(|part| part.as_os_str() == ".git") {
            continue; // git keeps its own books
        } else if path.as_os_str().is_empty() {
            continue; // a folder is what is in it
        } else if [&change.before, &change.after].into_iter().flatten().any(|node| node.kind == NodeKind::Other) {
            "it is neither a file nor a link"
        } else {
            ""
        };
        if !why.is_empty() {
            left_out.extend_from_slice(format!("# left out: {}: {why}\n", shown()).as_bytes());
            continue;
        }
        let read = |node: &Option<Node>| match node.as_ref().filter(|node| node.kind != NodeKind::Directory) {
            None => Ok(None),
            Some(node) => match node.content(MOST as u64) {
                Ok(Some(content)) => Ok(Some(Blob { mode: mode(node), content })),
                Ok(None) => Err(PatchError::TooLong(shown())),
                Err(error) => Err(PatchError::Unreadable(shown(), error)),
            },
        };
        let (before, after) = (read(&change.before)?, read(&change.after)?);
        let name = path.as_os_str().as_bytes();
        match (&before, &after) {
            // git has no word for a file that becomes a link.
            (Some(old), Some(new)) if old.is_link() != new.is_link() => {
                section(name, before.as_ref(), None, until, &mut out);
                section(name, None, after.as_ref(), until, &mut out);
            }
            _ => section(name, before.as_ref(), after.as_ref(), until, &mut out),
        }
        if out.len() > MOST {
            return Err(PatchError::TooLong(shown()));
        }
    }
    left_out.append(&mut out);
    Ok(left_out)
}

/// A file as git keeps it.
struct Blob {
    mode: u32,
    content: Vec<u8>,
}

impl Blob {
    fn is_link(&self) -> bool {
        self.mode == 0o120_000
    }

    fn is_text(&self) -> bool {
        let lines = || self.content.iter().filter(|byte| **byte == b'\n').count();
        self.content.len() <= TEXT && !self.content.contains(&0) && lines() <= LINES
    }

    /// The name git has for it.
    fn id(blob: Option<&Self>) -> String {
        let Some(blob) = blob else { return "0".repeat(40) };
        let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
        context.update(format!("blob {}\0", blob.content.len()).as_bytes());
        context.update(&blob.content);
        context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn mode(node: &Node) -> u32 {
    match node.kind {
        NodeKind::Symlink => 0o120_000,
        _ if node.mode & 0o100 != 0 => 0o100_755,
        _ => 0o100_644,
    }
}

/// One file of the patch.
fn section(name: &[u8], before: Option<&Blob>, after: Option<&Blob>, until: Instant, out: &mut Vec<u8>) {
    let (old_mode, new_mode) = (before.map(|blob| blob.mode), after.map(|blob| blob.mode));
    let same = before.map(|blob| &blob.content) == after.map(|blob| &blob.content);
    if same && old_mode == new_mode {
        return;
    }
    let (a, b) = (quoted(b"a/", name), quoted(b"b/", name));
    push(out, &[b"diff --git ", &a, b" ", &b, b"\n"]);
    match (old_mode, new_mode) {
        (None, Some(mode)) => push(out, &[format!("new file mode {mode:o}\n").as_bytes()]),
        (Some(mode), None) => push(out, &[format!("deleted file mode {mode:o}\n").as_bytes()]),
        (Some(old), Some(new)) if old != new => {
            push(out, &[format!("old mode {old:o}\nnew mode {new:o}\n").as_bytes()])
        }
        _ => {}
    }
    if same {
        return;
    }
    let unchanged =
        old_mode.filter(|mode| Some(*mode) == new_mode).map_or_else(String::new, |mode| format!(" {mode:o}"));
    push(out, &[format!("index {}..{}{unchanged}\n", Blob::id(before), Blob::id(after)).as_bytes()]);
    let empty = Vec::new();
    let (old, new) = (before.map_or(&empty, |blob| &blob.content), after.map_or(&empty, |blob| &blob.content));
    if ![before, after].into_iter().flatten().all(Blob::is_text) {
        push(out, &[b"GIT binary patch\n"]);
        armour(new, out);
        armour(old, out);
        return;
    }
    if old.is_empty() && new.is_empty() {
        return;
    }
    // A name with a space ends with a tab, or readers would take what may follow it for a date.
    let end: &[u8] = if name.contains(&b' ') { b"\t" } else { b"" };
    for (sign, name, is_there) in [(b"--- ", &a, before.is_some()), (b"+++ ", &b, after.is_some())] {
        match is_there {
            true => push(out, &[sign, name, end, b"\n"]),
            false => push(out, &[sign, b"/dev/null\n"]),
        }
    }
    hunks(old, new, until, out);
}

fn push(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// A name, in quotes if something in it needs them.
fn quoted(side: &[u8], name: &[u8]) -> Vec<u8> {
    let plain = |byte: &u8| (0x20..0x7f).contains(byte) && *byte != b'"' && *byte != b'\\';
    if name.iter().all(plain) {
        return [side, name].concat();
    }
    let mut text = [b"\"", side].concat();
    for byte in name {
        match byte {
            b'"' | b'\\' => text.extend_from_slice(&[b'\\', *byte]),
            byte if plain(byte) => text.push(*byte),
            byte => text.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
        }
    }
    text.push(b'"');
    text
}

/// The changed lines, with some around them.
fn hunks(old: &[u8], new: &[u8], until: Instant, out: &mut Vec<u8>) {
    let old: Vec<&[u8]> = old.split_inclusive(|byte| *byte == b'\n').collect();
    let new: Vec<&[u8]> = new.split_inclusive(|byte| *byte == b'\n').collect();
    let all = similar::capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(until));
    for group in similar::group_diff_ops(all, CONTEXT) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let olds = first.old_range().start..last.old_range().end;
        let news = first.new_range().start..last.new_range().end;
        // Of no lines at all, the one before is named.
        let start = |range: &std::ops::Range<usize>| range.start + usize::from(!range.is_empty());
        let head = format!("@@ -{},{} +{},{} @@\n", start(&olds), olds.len(), start(&news), news.len());
        push(out, &[head.as_bytes()]);
        group.iter().for_each(|op| changed_lines(op, &old, &new, out));
    }
}

fn changed_lines(op: &DiffOp, old: &[&[u8]], new: &[&[u8]], out: &mut Vec<u8>) {
    let mut write = |sign: u8, lines: &[&[u8]]| {
        for line in lines {
            out.push(sign);
            out.extend_from_slice(line);
            if !line.ends_with(b"\n") {
                out.extend_from_slice(b"\n\\ No newline at end of file\n");
            }
        }
    };
    match op.tag() {
        DiffTag::Equal => write(b' ', &old[op.old_range()]),
        _ => {
            write(b'-', &old[op.old_range()]);
            write(b'+', &new[op.new_range()]);
        }
    }
}

/// Bytes as git writes them into a patch: compressed, in base 85.
fn armour(content: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
    push(out, &[format!("literal {}\n", content.len()).as_bytes()]);
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    let packed = encoder.write_all(content).and_then(|()| encoder.finish()).unwrap_or_default();
    for line in packed.chunks(52) {
        let length = line.len() as u8;
        out.push(if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 });
        for group in line.chunks(4) {
            let mut word = [0; 4];
            word[..group.len()].copy_from_slice(group);
            let (mut number, mut digits) = (u32::from_be_bytes(word), [0; 5]);
            for digit in digits.iter_mut().rev() {
                *digit = DIGITS[(number % 85) as usize];
                number /= 85;
            }
            out.extend_from_slice(&digits);
        }
        out.push(b'\n');
    }
    out.push(b'\n');
}

/// The patch between two contents of a file; see [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub(crate) fn between(name: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let blob = |content: &[u8]| Blob { mode: 0o100_644, content: content.to_vec() };
    let mut out = Vec::new();
    section(name, Some(&blob(old)), Some(&blob(new)), Instant::now() + PATIENCE, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str, before: Option<&[u8]>, after: Option<&[u8]>) -> String {
        let blob = |content: &[u8]| Blob { mode: 0o100_644, content: content.to_vec() };
        let mut out = Vec::new();
        section(
            name.as_bytes(),
            before.map(blob).as_ref(),
            after.map(blob).as_ref(),
            Instant::now() + PATIENCE,
            &mut out,
        );
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn sections_are_what_git_writes() {
        // As `git diff --full-index` has it.
        let expected = "diff --git a/f b/f\nindex 78981922613b2afb6025042ff6bd878ac1994e85..61780798228d17af2d34fce4cfbdf35556832472 \
                        100644\n--- a/f\n+++ b/f\n@@ -1,1 +1,1 @@\n-a\n+b\n";
        assert_eq!(shown("f", Some(b"a\n"), Some(b"b\n")), expected);
        assert_eq!(shown("f", Some(b"a"), Some(b"a")), "");
        let new = shown("f", None, Some(b"x"));
        assert!(new.ends_with("--- /dev/null\n+++ b/f\n@@ -0,0 +1,1 @@\n+x\n\\ No newline at end of file\n"), "{new}");
        assert!(shown("f", Some(b""), None).ends_with("\n") && !shown("f", Some(b""), None).contains("+++"));
        // The same bytes as git's own armour of an empty file, but for the compression.
        assert!(shown("f", None, Some(b"\0")).contains("GIT binary patch\nliteral 1\n"));
    }

    #[test]
    fn no_name_can_be_taken_for_a_line_of_the_patch() {
        assert_eq!(quoted(b"a/", b"plain name"), b"a/plain name");
        assert_eq!(quoted(b"a/", "ü\n+++ b/x\"\\".as_bytes()), br#""a/\303\274\012+++ b/x\"\\""#);
        assert!(shown("sp ace", None, Some(b"x\n")).contains("+++ b/sp ace\t\n"));
    }

    #[test]
    fn what_has_too_many_lines_is_compared_as_a_whole() {
        let many = "\n".repeat(LINES + 1);
        assert!(shown("f", None, Some(many.as_bytes())).contains("GIT binary patch"));
    }
}
