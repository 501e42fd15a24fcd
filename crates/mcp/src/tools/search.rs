//! Searching files of the sandbox. They are searched here, in a stream of a bounded part of them: nothing is needed inside.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::Method;
use regex::bytes::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sloplet_remote::{encode, full};
use tokio::sync::mpsc;

use crate::answer::{Answer, TEXT, text};
use crate::call::Call;
use crate::catalogue::{About, Effect, Entry};
use crate::failure::Failure;

/// Most matches, and how many are found unless that is said.
const MOST: usize = 1000;
const USUAL: usize = 100;

/// Bytes that are looked at.
const LOOKED_AT: usize = 256 * 1024 * 1024;

/// How long it is looked for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of a line that are told.
const LINE: usize = 400;

/// Bytes of a line that is looked at as one.
const LONG_LINE: u64 = 64 * 1024;

/// The tools of this file.
pub fn entries() -> Vec<Entry> {
    let about = About {
        name: "search_files",
        group: "files",
        title: "Search files",
        description: "Search a folder of the sandbox for lines that match, or for files by their names alone. Answers with \
                      path, line number and line. Files that are not text, and .git, are left out.",
        effect: Effect::Reads,
        begins: false,
    };
    vec![Entry::new(about, search)]
}

/// Arguments of `search_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// What to look for in lines; leave it out to find files by their names.
    pattern: Option<String>,
    /// The pattern is a regular expression, not plain text.
    #[serde(default)]
    regex: bool,
    /// Upper and lower case are the same.
    #[serde(default)]
    ignore_case: bool,
    /// Which files, like *.py or src/**/*.rs; all if left out. Without a slash it is about the name alone.
    glob: Option<String>,
    /// The folder: absolute, or relative to the user's home; the home itself if left out.
    path: Option<String>,
    /// How many matches at most: 1 to 1000, 100 if left out.
    #[schemars(range(min = 1, max = 1000))]
    max_results: Option<usize>,
}

/// A match.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Match {
    /// The file, relative to the folder.
    path: String,
    /// The line's number; 0 where only the name was looked for.
    line: u64,
    /// The line.
    text: String,
}

/// What was found.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Found {
    /// In the order of the files.
    matches: Vec<Match>,
    /// Files that were looked at.
    files: u64,
    /// Not everything was looked at.
    truncated: bool,
}

struct Question {
    pattern: Option<Regex>,
    glob: Option<Regex>,
    most: usize,
}

async fn search(call: Call, asked: Search) -> Result<Answer<Found>, Failure> {
    if asked.pattern.as_deref().unwrap_or_default().is_empty() && asked.glob.is_none() {
        return Err(Failure::new("say what to look for: pattern, glob or both"));
    }
    let pattern = asked.pattern.filter(|pattern| !pattern.is_empty()).map(|pattern| {
        let source = if asked.regex { pattern } else { regex::escape(&pattern) };
        let built = RegexBuilder::new(&source).case_insensitive(asked.ignore_case).size_limit(1 << 20).build();
        built.map_err(|error| Failure::new(format!("pattern: {error}")))
    });
    let question = Question {
        pattern: pattern.transpose()?,
        glob: asked.glob.as_deref().map(glob).transpose()?,
        most: match asked.max_results.unwrap_or(USUAL) {
            most @ 1..=MOST => most,
            _ => return Err(Failure::new(format!("max_results: 1 to {MOST}"))),
        },
    };
    let path = asked.path.unwrap_or_else(|| ".".into());
    let address = call.path(&format!("/archive?path={}", encode(&path))).await?;
    let mut body = call.server().send(Method::GET, &address, "application/json", full("")).await?.into_body();
    let (sender, receiver) = mpsc::channel::<Bytes>(8);
    let looking =
        tokio::task::spawn_blocking(move || look(Chunks { receiver, rest: Bytes::new(), read: 0 }, &question));
    let (started, mut late, mut broke) = (Instant::now(), false, false);
    while let Some(frame) = body.frame().await {
        (late, broke) = (started.elapsed() > PATIENCE, frame.is_err());
        let Some(frame) = frame.ok().filter(|_| !late) else { break };
        if let Ok(bytes) = frame.into_data()
            && sender.send(bytes).await.is_err()
        {
            break;
        }
    }
    drop(sender);
    let mut found = looking.await.map_err(|error| Failure::new(format!("the search failed: {error}")))?;
    broke &= !found.truncated;
    found.truncated |= late || broke;
    let mut lines: Vec<String> = found.matches.iter().map(Match::line).collect();
    if lines.is_empty() {
        lines.push(format!("nothing found in {} files below {path}", found.files));
    }
    if broke {
        lines.push("[it ended at something that the sandbox's user may not read: search a folder below]".into());
    } else if found.truncated {
        lines.push("[not everything was looked at: search a folder below, or with a narrower glob]".into());
    }
    Ok(Answer::new(lines.join("\n"), found))
}

impl Match {
    fn line(&self) -> String {
        if self.line == 0 { self.path.clone() } else { format!("{}:{}: {}", self.path, self.line, self.text) }
    }
}

/// Looks through an archive until there is enough.
fn look(chunks: Chunks, question: &Question) -> Found {
    let mut found = Found::default();
    let mut archive = tar::Archive::new(chunks);
    let Ok(entries) = archive.entries() else { return found };
    let mut told = 0;
    for entry in entries {
        let Ok(entry) = entry else {
            found.truncated = true;
            break;
        };
        let Some(path) = entry.path().ok().and_then(|path| searched(&path, question)) else { continue };
        if !entry.header().entry_type().is_file() {
            continue;
        }
        found.files += 1;
        let before = found.matches.len();
        match &question.pattern {
            None => found.matches.push(Match { path, line: 0, text: String::new() }),
            Some(pattern) => lines(entry, &path, pattern, question.most, &mut found.matches),
        }
        told += found.matches[before..].iter().map(|one| one.path.len() + one.text.len() + 8).sum::<usize>();
        if found.matches.len() >= question.most || told > TEXT {
            found.truncated = true;
            break;
        }
    }
    found
}

/// The path of a file that is to be looked at.
fn searched(path: &Path, question: &Question) -> Option<String> {
    if path.components().any(|part| part.as_os_str() == ".git") {
        return None;
    }
    let path = text(path.as_os_str().as_encoded_bytes());
    let path = path.trim_start_matches("./");
    question.glob.as_ref().is_none_or(|glob| glob.is_match(path.as_bytes())).then(|| path.to_owned())
}

fn lines(file: impl Read, path: &str, pattern: &Regex, most: usize, matches: &mut Vec<Match>) {
    let mut reader = BufReader::new(file);
    // What is not text has a NUL near its beginning.
    if reader.fill_buf().is_ok_and(|start| start.contains(&0)) {
        return;
    }
    let (mut number, mut line) = (1, Vec::new());
    loop {
        line.clear();
        if !matches!((&mut reader).take(LONG_LINE).read_until(b'\n', &mut line), Ok(1..)) || matches.len() >= most {
            return;
        }
        let ends = line.ends_with(b"\n");
        let shown = line.strip_suffix(b"\n").unwrap_or(&line);
        if pattern.is_match(shown) {
            let shown = text(&shown[..shown.len().min(LINE)]);
            matches.push(Match { path: path.to_owned(), line: number, text: shown });
        }
        number += u64::from(ends);
    }
}

/// `*` within a name, `**` over folders, `?` one character. Without a slash it is about the last part of a path.
fn glob(pattern: &str) -> Result<Regex, Failure> {
    let mut source = String::from(if pattern.contains('/') { "^" } else { "^(?:.*/)?" });
    let mut rest = pattern.trim_start_matches("./").trim_start_matches('/');
    while let Some(first) = rest.chars().next() {
        let (said, length) = match first {
            '*' if rest.starts_with("**/") => ("(?:.*/)?".to_owned(), 3),
            '*' if rest.starts_with("**") => (".*".to_owned(), 2),
            '*' => ("[^/]*".to_owned(), 1),
            '?' => ("[^/]".to_owned(), 1),
            other => (regex::escape(other.encode_utf8(&mut [0; 4])), other.len_utf8()),
        };
        source.push_str(&said);
        rest = &rest[length..];
    }
    source.push('$');
    RegexBuilder::new(&source).build().map_err(|error| Failure::new(format!("glob: {error}")))
}

/// What comes from the server, read by a thread; no more than is to be looked at.
struct Chunks {
    receiver: mpsc::Receiver<Bytes>,
    rest: Bytes,
    read: usize,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.receiver.blocking_recv() {
                Some(bytes) => self.rest = bytes,
                None => return Ok(0),
            }
        }
        let count = self.rest.len().min(buffer.len());
        self.read += count;
        if self.read > LOOKED_AT {
            return Err(io::Error::other("that is enough"));
        }
        self.rest.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_mean_what_people_expect() {
        let fits = |pattern: &str, path: &str| glob(pattern).unwrap().is_match(path.as_bytes());
        assert!(fits("*.py", "a.py") && fits("*.py", "deep/er/a.py") && !fits("*.py", "a.pyc"));
        assert!(fits("src/**/*.rs", "src/a.rs") && fits("src/**/*.rs", "src/b/c/a.rs") && !fits("src/**/*.rs", "a.rs"));
        assert!(fits("src/*.rs", "src/a.rs") && !fits("src/*.rs", "src/b/a.rs"));
        assert!(fits("?.txt", "ä.txt") && fits("a+b", "a+b") && !fits("a+b", "aab"));
    }

    #[test]
    fn lines_are_found_with_their_numbers_and_bounds() {
        let mut found = Vec::new();
        let pattern = Regex::new("needle").unwrap();
        lines(&b"one\ntwo needle\nneedle \xff\n"[..], "f", &pattern, 10, &mut found);
        let told: Vec<_> = found.iter().map(|one| (one.line, one.text.as_str())).collect();
        assert_eq!(told, [(2, "two needle"), (3, "needle \u{fffd}")]);
        let mut none = Vec::new();
        lines(&b"needle\0"[..], "f", &pattern, 10, &mut none);
        assert!(none.is_empty());
    }
}
