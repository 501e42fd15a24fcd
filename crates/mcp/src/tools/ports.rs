//! Ports of the sandbox.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::word;
use crate::answer::Answer;
use crate::call::Call;
use crate::catalogue::{About, Effect, Entry};
use crate::failure::Failure;

/// The tools of this file.
pub fn entries() -> Vec<Entry> {
    let about = About {
        name: "expose_port",
        group: "ports",
        title: "Make a link to a port",
        description: "Make a link with which the user's browser reaches a server that listens on a port of the sandbox. \
                      Whoever has the link can open it until its time is over.",
        effect: Effect::Adds,
        begins: false,
    };
    vec![Entry::new(about, expose)]
}

/// Arguments of `expose_port`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expose {
    /// The port inside.
    #[schemars(range(min = 1, max = 65535))]
    port: u32,
    /// How many minutes the link works: 1 to 1440, 60 if left out.
    #[schemars(range(min = 1, max = 1440))]
    minutes: Option<u32>,
}

/// A link.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Link {
    /// For the user's browser.
    url: String,
    /// Whether something listens on that port now.
    listening: bool,
}

async fn expose(call: Call, asked: Expose) -> Result<Answer<Link>, Failure> {
    if !(1..=65535).contains(&asked.port) {
        return Err(Failure::new("port: 1 to 65535"));
    }
    let minutes = match asked.minutes.unwrap_or(60) {
        minutes @ 1..=1440 => minutes,
        _ => return Err(Failure::new("minutes: 1 to 1440")),
    };
    let path = call.path(&format!("/ports/{}/link", asked.port)).await?;
    let made = call.server().post(&path, &json!({"timeout": format!("{minutes}m")})).await?;
    let ports = call.get("/ports").await?;
    let listening = ports.as_array().into_iter().flatten().any(|port| port["port"] == asked.port);
    let url = word(&made, "url");
    let note = if listening { "" } else { "\nNothing listens there yet: start a server with start_process." };
    let place = if is_local(&url) { " on the server's own machine" } else { "" };
    Ok(Answer::new(format!("{url}\nIt works for {minutes} minutes{place}.{note}"), Link { url, listening }))
}

/// Whether a link is to loopback: a browser elsewhere would look for it on its own machine.
fn is_local(url: &str) -> bool {
    let host = url.split("://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
    host.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}
