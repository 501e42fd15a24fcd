//! Saved files of the sandbox, and the way back to them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::word;
use crate::answer::Answer;
use crate::call::Call;
use crate::catalogue::{About, Effect, Entry};
use crate::failure::Failure;

/// The tools of this file.
pub fn entries() -> Vec<Entry> {
    vec![
        Entry::new(
            About {
                name: "snapshot",
                group: "snapshots",
                title: "Save the sandbox's files",
                description: "Save all files of the sandbox as they are now, to come back to with restore. Snapshots are kept \
                              as long as the conversation.",
                effect: Effect::Adds,
                begins: false,
            },
            snapshot,
        ),
        Entry::new(
            About {
                name: "restore",
                group: "snapshots",
                title: "Go back to saved files",
                description: "Go back to a snapshot of this conversation. All later changes of files are lost, and processes \
                              end.",
                effect: Effect::Changes,
                begins: false,
            },
            restore,
        ),
    ]
}

/// Arguments of `snapshot`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Save {
    /// A name for it: letters, digits, - _ and .
    name: Option<String>,
}

/// A snapshot.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Saved {
    /// What restore takes.
    snapshot: String,
    /// Bytes that were changed since the sandbox was made.
    bytes: u64,
    /// Files that were changed since then.
    files: u64,
}

async fn snapshot(call: Call, asked: Save) -> Result<Answer<Saved>, Failure> {
    let made = call.conversation.snapshot(&call.asker, asked.name.as_deref()).await?;
    let count = |name: &str| made[name].as_u64().unwrap_or(0);
    let snapshot = made["name"].as_str().map_or_else(|| word(&made, "id"), str::to_owned);
    let saved = Saved { snapshot, bytes: count("bytes"), files: count("files") };
    let stays = match call.desk.options.attach {
        Some(_) => "; it stays after the conversation",
        None => "",
    };
    Ok(Answer::new(format!("saved as {}{stays}", saved.snapshot), saved))
}

/// Arguments of `restore`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// What snapshot answered with.
    snapshot: String,
}

/// That it is done.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Restored {
    /// Which snapshot.
    snapshot: String,
}

async fn restore(call: Call, asked: Restore) -> Result<Answer<Restored>, Failure> {
    call.conversation.restore(&call.asker, &asked.snapshot).await?;
    Ok(Answer::new(format!("the files are as in {}", asked.snapshot), Restored { snapshot: asked.snapshot }))
}
