//! Resources: files of the sandbox, what its processes wrote, what the ledger says of it. Reading one makes no sandbox.

use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use rmcp::service::RequestContext;
use serde_json::Value;
use sloplet_remote::{Server, encode};

use crate::answer::{TEXT, shortened, text};
use crate::conversation::Conversation;
use crate::failure::Failure;
use crate::handler::Handler;
use crate::tools::{Lines, Read, read};

const FILES: &str = "sandbox://files/";
const LOGS: &str = "sandbox://logs";
const LEDGER: &str = "sandbox://ledger";

/// Files that are listed.
const LISTED: usize = 200;

/// Pages of the ledger that are read to get to its end.
const PAGES: usize = 20;

/// What is wanted.
enum Wanted {
    File(String),
    Logs,
    Log(u32),
    Ledger,
}

impl Wanted {
    fn parse(uri: &str) -> Option<Self> {
        if let Some(path) = uri.strip_prefix(FILES) {
            return Some(Self::File(format!("/{}", decoded(path).trim_start_matches('/'))));
        }
        match uri.strip_prefix(LOGS) {
            Some("") => Some(Self::Logs),
            Some(rest) => rest.strip_prefix('/')?.parse().ok().map(Self::Log),
            None => (uri == LEDGER).then_some(Self::Ledger),
        }
    }

    /// The tool that tells the same.
    fn tool(&self) -> &'static str {
        match self {
            Self::File(_) => "read_file",
            Self::Logs | Self::Log(_) => "process_output",
            Self::Ledger => "sandbox_info",
        }
    }
}

impl Handler {
    /// What can be read now.
    pub async fn resources(&self, context: &RequestContext<RoleServer>) -> Vec<Resource> {
        let grant = &self.desk.options.grant;
        let mut list = Vec::new();
        if grant.has("process_output") {
            let about = "What background processes wrote, the last of each.";
            list.push(Resource::new(LOGS, "logs").with_description(about).with_mime_type("text/plain"));
        }
        if grant.has("sandbox_info") {
            let about = "What happened in the sandbox, as the ledger has it: a record a line.";
            list.push(Resource::new(LEDGER, "ledger").with_description(about).with_mime_type("application/x-ndjson"));
        }
        if grant.has("read_file")
            && let Ok(conversation) = self.conversation(context, None, false)
            && let Some(sandbox) = conversation.present().await
            && let Ok(asker) = self.asker("resources", context).await
        {
            let path = format!("/sandboxes/{}/files/list?path=.", encode(&sandbox));
            let found = asker.server.get(&path).await.unwrap_or_default();
            let files = found["entries"].as_array().into_iter().flatten().filter(|entry| entry["kind"] == "file");
            list.extend(files.take(LISTED).filter_map(file));
        }
        list
    }

    /// What else can be read, by its name.
    pub fn resource_templates(&self) -> Vec<ResourceTemplate> {
        let grant = &self.desk.options.grant;
        let mut list = Vec::new();
        if grant.has("read_file") {
            let about = "A file of the sandbox, by its absolute path.";
            list.push(ResourceTemplate::new(format!("{FILES}{{+path}}"), "file").with_description(about));
        }
        if grant.has("process_output") {
            let about = "What a background process wrote.";
            list.push(ResourceTemplate::new(format!("{LOGS}/{{pid}}"), "log").with_description(about));
        }
        list
    }

    /// Reads one. A client without sessions says `?sandbox=NAME` at the end.
    pub async fn resource(
        &self,
        uri: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<ReadResourceResult, Failure> {
        let (address, name) = match uri.rsplit_once("?sandbox=") {
            Some((address, name)) => (address, Some(name)),
            None => (uri, None),
        };
        let unknown = || {
            let failure = Failure::new(format!("there is no resource '{}'", uri.escape_default()));
            failure.hint(format!("There are {FILES}PATH, {LOGS}, {LOGS}/PID and {LEDGER}."))
        };
        let wanted = Wanted::parse(address).ok_or_else(unknown)?;
        if !self.desk.options.grant.has(wanted.tool()) {
            return Err(unknown());
        }
        let conversation: Arc<Conversation> = self.conversation(context, name, false)?;
        let sandbox = match (conversation.present().await, &self.desk.options.attach) {
            (Some(sandbox), _) => sandbox,
            (None, Some(name)) => name.clone(),
            (None, None) => {
                return Err(Failure::new("there is no sandbox yet: the first tool that needs one makes it"));
            }
        };
        let asker = self.asker("resources", context).await?;
        let mut sandboxes = conversation.names();
        sandboxes.retain(|name| *name != sandbox);
        sandboxes.push(sandbox);
        let contents = contents(&asker.server, &sandboxes, &wanted, uri).await?;
        Ok(ReadResourceResult::new(vec![contents]))
    }
}

/// What is in one; of the sandboxes of a conversation, the last is the present one.
async fn contents(
    server: &Server,
    sandboxes: &[String],
    wanted: &Wanted,
    uri: &str,
) -> Result<ResourceContents, Failure> {
    let sandbox = sandboxes.last().map(String::as_str).unwrap_or_default();
    let base = format!("/sandboxes/{}", encode(sandbox));
    Ok(match wanted {
        Wanted::File(path) => match read(server, sandbox, path, Lines::ALL).await? {
            Read::Text { mut text, more, .. } => {
                if more {
                    text.push_str("\n[there is more: see the tool read_file]");
                }
                ResourceContents::text(text, uri).with_mime_type("text/plain")
            }
            Read::Bytes { kind, base64, .. } => ResourceContents::blob(base64, uri).with_mime_type(kind),
        },
        Wanted::Log(pid) => {
            let (bytes, _) = server.bytes(&format!("{base}/processes/{pid}/logs"), "content-type").await?;
            ResourceContents::text(bounded(&bytes), uri).with_mime_type("text/plain")
        }
        Wanted::Logs => {
            let found = server.get(&format!("{base}/processes")).await?;
            let started = found.as_array().into_iter().flatten().filter(|one| one["managed"] == true);
            let mut said = String::new();
            for process in started.take(20) {
                let pid = process["pid"].as_u64().unwrap_or(0);
                let (bytes, _) = server.bytes(&format!("{base}/processes/{pid}/logs?tail=20"), "content-type").await?;
                let state = if process["running"] == true { "running" } else { "ended" };
                said.push_str(&format!(
                    "== {pid} ({state}) ==\n{}\n",
                    bounded(&bytes[bytes.len().saturating_sub(4096)..])
                ));
            }
            ResourceContents::text(said, uri).with_mime_type("text/plain")
        }
        Wanted::Ledger => {
            ResourceContents::text(ledger(server, sandboxes).await?, uri).with_mime_type("application/x-ndjson")
        }
    })
}

/// The last records about sandboxes.
async fn ledger(server: &Server, sandboxes: &[String]) -> Result<String, Failure> {
    let mut last = String::new();
    for sandbox in sandboxes {
        let mut after = 0;
        for _ in 0..PAGES {
            let page = server.get(&format!("/audit?sandbox={}&limit=1000&after={after}", encode(sandbox))).await?;
            for record in page["records"].as_array().into_iter().flatten() {
                last.push_str(&format!("{record}\n"));
            }
            if last.len() > TEXT {
                let start = last.len() - TEXT;
                let line = last.as_bytes()[start..].iter().position(|byte| *byte == b'\n');
                last.drain(..line.map_or(last.len(), |at| start + at + 1));
            }
            match page["next"].as_u64() {
                Some(next) => after = next,
                None => break,
            }
        }
    }
    Ok(last)
}

fn bounded(bytes: &[u8]) -> String {
    shortened(bytes, TEXT).unwrap_or_else(|| text(bytes))
}

fn file(entry: &Value) -> Option<Resource> {
    let path = entry["path"].as_str()?.replace("/./", "/");
    let path = path.as_str();
    let name = path.rsplit('/').next().unwrap_or(path);
    let parts: Vec<String> = path.trim_start_matches('/').split('/').map(encode).collect();
    let resource = Resource::new(format!("{FILES}{}", parts.join("/")), name);
    Some(resource.with_size(entry["size"].as_u64().unwrap_or(0)))
}

/// What was meant by `%20` and the like.
fn decoded(text: &str) -> String {
    let (bytes, mut said, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    while at < bytes.len() {
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                said.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                said.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        assert!(matches!(Wanted::parse("sandbox://files/tmp/a%20b"), Some(Wanted::File(path)) if path == "/tmp/a b"));
        assert!(matches!(Wanted::parse("sandbox://files//etc/x"), Some(Wanted::File(path)) if path == "/etc/x"));
        assert!(matches!(Wanted::parse("sandbox://logs"), Some(Wanted::Logs)));
        assert!(matches!(Wanted::parse("sandbox://logs/7"), Some(Wanted::Log(7))));
        assert!(matches!(Wanted::parse("sandbox://ledger"), Some(Wanted::Ledger)));
        for wrong in ["", "file:///etc/passwd", "sandbox://logs/x", "sandbox://", "sandbox://logsx", "http://a"] {
            assert!(Wanted::parse(wrong).is_none(), "{wrong}");
        }
        assert_eq!(decoded("%zz%4"), "%zz%4");
    }
}
