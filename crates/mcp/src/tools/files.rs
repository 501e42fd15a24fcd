//! Files of the sandbox.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper::Method;
use rmcp::model::{ContentBlock, ResourceContents};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sloplet_remote::{encode, full};

use super::{Lines, Read, read, word};
use crate::answer::Answer;
use crate::call::Call;
use crate::catalogue::{About, Effect, Entry};
use crate::failure::Failure;

/// Most entries of a listing.
const LISTED: usize = 500;

/// Bytes of a file that can be edited.
const EDITED: usize = 4 * 1024 * 1024;

/// Lines that are read unless that is said.
const LINES: u64 = 2000;

/// The tools of this file.
pub fn entries() -> Vec<Entry> {
    let about =
        |name, title, description, effect, begins| About { name, group: "files", title, description, effect, begins };
    vec![
        Entry::new(
            about(
                "read_file",
                "Read a file",
                "Read a file of the sandbox: text by lines, pictures as pictures, other small files as bytes.",
                Effect::Reads,
                false,
            ),
            read_file,
        ),
        Entry::new(
            about(
                "write_file",
                "Write a file",
                "Write a file of the sandbox as a whole; it is replaced at once or not at all. Missing folders are made.",
                Effect::Changes,
                true,
            ),
            write_file,
        ),
        Entry::new(
            about(
                "edit_file",
                "Edit a file",
                "Replace a piece of text in a file of the sandbox. The old text must occur exactly once, unless all \
                 occurrences are meant.",
                Effect::Changes,
                false,
            ),
            edit_file,
        ),
        Entry::new(
            about(
                "list_files",
                "List a folder",
                "List files and folders of the sandbox, several levels deep if wanted.",
                Effect::Reads,
                false,
            ),
            list_files,
        ),
    ]
}

/// Arguments of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    /// Absolute, or relative to the user's home.
    path: String,
    /// The first line to read; 1 if left out.
    #[schemars(range(min = 1))]
    start_line: Option<u64>,
    /// How many lines; 2000 if left out.
    #[schemars(range(min = 1))]
    lines: Option<u64>,
}

/// A file, or a part of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct File {
    /// Which.
    path: String,
    /// What it is.
    kind: String,
    /// Its text, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Bytes of the whole file, if it has a size.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// The line to go on from, if there is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_line: Option<u64>,
}

async fn read_file(call: Call, asked: ReadFile) -> Result<Answer<File>, Failure> {
    let lines = Lines { from: asked.start_line.unwrap_or(1).max(1), most: asked.lines.unwrap_or(LINES).max(1) };
    let sandbox = call.sandbox().await?;
    let path = asked.path;
    match read(call.server(), &sandbox, &path, lines).await? {
        Read::Text { text, size, lines: count, more } => {
            let next_line = more.then(|| lines.from + count.max(1));
            let mut said = text.clone();
            if let Some(next) = next_line {
                said.push_str(&format!("\n[there is more: go on with start_line {next}]"));
            }
            Ok(Answer::new(said, File { path, kind: "text/plain".into(), text: Some(text), size, next_line }))
        }
        Read::Bytes { kind, base64, size } => {
            let said = format!("{path}: {size} bytes, {kind}");
            let more = if kind.starts_with("image/") {
                ContentBlock::image(base64, kind)
            } else {
                let uri = format!("sandbox://files/{}", encode(path.trim_start_matches('/')));
                ContentBlock::resource(ResourceContents::blob(base64, uri).with_mime_type(kind))
            };
            let file = File { path, kind: kind.into(), text: None, size: Some(size), next_line: None };
            Ok(Answer { text: said, value: file, more: vec![more] })
        }
    }
}

/// Arguments of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// Absolute, or relative to the user's home.
    path: String,
    /// What is to be in it.
    content: String,
    /// How the content is written; text if left out.
    #[serde(default)]
    encoding: Encoding,
    /// Permission bits of a new file, in octal, like 0755; 0644 if left out.
    mode: Option<String>,
}

/// How bytes are written.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// As they are.
    #[default]
    Text,
    /// In base64.
    Base64,
}

/// A file that was written.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Written {
    /// Its absolute path.
    path: String,
    /// Its bytes.
    size: u64,
}

async fn write_file(call: Call, asked: WriteFile) -> Result<Answer<Written>, Failure> {
    let bytes = match asked.encoding {
        Encoding::Text => asked.content.into_bytes(),
        Encoding::Base64 => {
            let plain: String = asked.content.split_whitespace().collect();
            BASE64.decode(plain).map_err(|error| Failure::new(format!("content is not base64: {error}")))?
        }
    };
    let written = put(&call, &asked.path, asked.mode.as_deref(), bytes).await?;
    Ok(Answer::new(format!("wrote {} bytes to {}", written.size, written.path), written))
}

async fn put(call: &Call, path: &str, mode: Option<&str>, bytes: Vec<u8>) -> Result<Written, Failure> {
    let mode = mode.map_or_else(String::new, |mode| format!("&mode={}", encode(mode)));
    let address = call.path(&format!("/files?path={}{mode}", encode(path))).await?;
    let response = call.server().send(Method::PUT, &address, "application/octet-stream", full(bytes)).await?;
    let entry: Value = sloplet_remote::json(response).await?;
    Ok(Written { path: word(&entry, "path"), size: entry["size"].as_u64().unwrap_or(0) })
}

/// Arguments of `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EditFile {
    /// Absolute, or relative to the user's home.
    path: String,
    /// The text to replace, exactly as it is in the file.
    old_text: String,
    /// What takes its place.
    new_text: String,
    /// Replace every occurrence.
    #[serde(default)]
    replace_all: bool,
}

/// A file that was edited.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Edited {
    /// Its absolute path.
    path: String,
    /// Its bytes.
    size: u64,
    /// How often the text was replaced.
    replaced: usize,
}

async fn edit_file(call: Call, asked: EditFile) -> Result<Answer<Edited>, Failure> {
    if asked.old_text.is_empty() {
        return Err(Failure::new("old_text: say what to replace").hint("Use write_file for a new file."));
    }
    let query = format!("path={}", encode(&asked.path));
    let stat = call.get(&format!("/files/stat?{query}")).await?;
    let too_large =
        || Failure::new(format!("{} has more than {EDITED} bytes", asked.path)).hint("Use exec with sed or the like.");
    if stat["size"].as_u64().unwrap_or(0) > EDITED as u64 {
        return Err(too_large());
    }
    let address = call.path(&format!("/files?{query}&length={}", EDITED + 1)).await?;
    let (bytes, _) = call.server().bytes(&address, "content-type").await?;
    if bytes.len() > EDITED {
        return Err(too_large());
    }
    let before = std::str::from_utf8(&bytes).map_err(|_| Failure::new(format!("{} is not text", asked.path)))?;
    let replaced = before.matches(&asked.old_text).count();
    match replaced {
        0 => return Err(Failure::new("old_text is not in the file").hint("Read it again: it must fit to the letter.")),
        1 => {}
        _ if asked.replace_all => {}
        many => {
            let failure = Failure::new(format!("old_text is in the file {many} times"));
            return Err(failure.hint("Give more of what is around it, or set replace_all."));
        }
    }
    let after = before.replace(&asked.old_text, &asked.new_text);
    // A link's own bits say nothing about the file.
    let mode = stat["mode"].as_str().filter(|_| stat["kind"] == "file");
    let Written { path, size } = put(&call, &asked.path, mode, after.into_bytes()).await?;
    Ok(Answer::new(format!("replaced {replaced} in {path}"), Edited { path, size, replaced }))
}

/// Arguments of `list_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    /// The folder: absolute, or relative to the user's home; the home itself if left out.
    path: Option<String>,
    /// Levels to descend: 1 to 20, 1 if left out.
    #[schemars(range(min = 1, max = 20))]
    depth: Option<u32>,
}

/// A file or folder.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Listed {
    /// Its absolute path.
    path: String,
    /// file, directory, symlink or other.
    kind: String,
    /// Its bytes.
    size: u64,
    /// Where a symlink points.
    #[serde(skip_serializing_if = "Option::is_none")]
    link_target: Option<String>,
}

/// What is in a folder.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Listing {
    /// Files and folders, by path.
    entries: Vec<Listed>,
    /// There are more than are told.
    truncated: bool,
}

async fn list_files(call: Call, asked: ListFiles) -> Result<Answer<Listing>, Failure> {
    let depth = match asked.depth.unwrap_or(1) {
        depth @ 1..=20 => depth,
        _ => return Err(Failure::new("depth: 1 to 20")),
    };
    let path = asked.path.unwrap_or_else(|| ".".into());
    let found = call.get(&format!("/files/list?path={}&depth={depth}", encode(&path))).await?;
    let all = found["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
    let entries: Vec<Listed> = all
        .iter()
        .take(LISTED)
        .map(|entry| Listed {
            path: word(entry, "path").replace("/./", "/"),
            kind: word(entry, "kind"),
            size: entry["size"].as_u64().unwrap_or(0),
            link_target: entry["link_target"].as_str().map(str::to_owned),
        })
        .collect();
    let truncated = found["truncated"] == true || all.len() > LISTED;
    let mut lines: Vec<String> = entries.iter().map(Listed::line).collect();
    if entries.is_empty() {
        lines.push(format!("{path} is empty"));
    }
    if truncated {
        lines.push(format!("[only the first {LISTED}: list a folder below, or use search_files]"));
    }
    Ok(Answer::new(lines.join("\n"), Listing { entries, truncated }))
}

impl Listed {
    fn line(&self) -> String {
        match (self.kind.as_str(), &self.link_target) {
            ("directory", _) => format!("{}/", self.path),
            ("symlink", Some(target)) => format!("{} -> {target}", self.path),
            ("file", _) => format!("{} ({} bytes)", self.path, self.size),
            (kind, _) => format!("{} ({kind})", self.path),
        }
    }
}
