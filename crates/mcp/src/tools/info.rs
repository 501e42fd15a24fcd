//! What the sandbox is.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use sloplet_remote::encode;

use super::sharing::describe;
use super::{Nothing, word};
use crate::answer::Answer;
use crate::call::Call;
use crate::catalogue::{About, Effect, Entry};
use crate::failure::Failure;

/// The tools of this file.
pub fn entries() -> Vec<Entry> {
    let about = About {
        name: "sandbox_info",
        group: "info",
        title: "Tell about the sandbox",
        description: "Tell what the sandbox is: image, limits, how long it lives, folders that the user shares. Makes none if \
                      there is none yet.",
        effect: Effect::Reads,
        begins: true,
    };
    vec![Entry::new(about, info)]
}

/// What the sandbox is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Info {
    /// running, paused, …; or none yet.
    state: String,
    /// What it started from.
    image: String,
    /// Memory of all processes together.
    memory: String,
    /// Processors.
    cpus: String,
    /// Bytes that may be written.
    disk: String,
    /// How strong its wall is.
    isolation: String,
    /// When its time is over unless it is used, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_ms: Option<u64>,
    /// Seconds that it lives without being used.
    idle_seconds: u64,
    /// Whether run_code remembers variables.
    stateful: bool,
    /// Folders of the user's machine for upload and download.
    shares: Vec<String>,
}

async fn info(call: Call, _: Nothing) -> Result<Answer<Info>, Failure> {
    let options = &call.desk.options;
    let present = call.conversation.present().await;
    let sandbox = match (&present, &options.attach) {
        (Some(name), _) | (None, Some(name)) => call.server().get(&format!("/sandboxes/{}", encode(name))).await?,
        (None, None) => options.request.clone(),
    };
    let said = |name: &str| match &sandbox[name] {
        Value::Null => "as usual".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let image = sandbox["image"].as_str().unwrap_or("host").to_owned();
    let info = Info {
        state: if sandbox["state"].is_string() { word(&sandbox, "state") } else { "none yet".into() },
        stateful: image.starts_with("code-interpreter"),
        image,
        memory: said("memory"),
        cpus: said("cpus"),
        disk: said("disk"),
        isolation: said("isolation"),
        ends_ms: sandbox["ends_ms"].as_u64(),
        idle_seconds: options.times.idle.as_secs(),
        shares: options.shares.iter().map(describe).collect(),
    };
    let name = present.unwrap_or_else(|| "none yet: the next command makes one".into());
    let shares = if info.shares.is_empty() { "none".to_owned() } else { info.shares.join(", ") };
    let text = format!(
        "sandbox: {name}\nstate: {}\nimage: {}\nmemory: {}, processors: {}, disk: {}, wall: {}\nlives {} s without use\nshared \
         folders: {shares}",
        info.state, info.image, info.memory, info.cpus, info.disk, info.isolation, info.idle_seconds
    );
    Ok(Answer::new(text, info))
}
