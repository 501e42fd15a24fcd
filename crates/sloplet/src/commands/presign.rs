//! `sloplet presign`

use serde_json::json;
use sloplet_policy::Span;

use crate::api::Server;
use crate::cli::Verb;

pub async fn run(server: &Server, verb: Verb, object: &str, expires: Span, json: bool) -> anyhow::Result<u8> {
    let method = match verb {
        Verb::Get => "get",
        Verb::Put => "put",
    };
    let body = json!({"method": method, "object": object, "expires": format!("{}s", expires.0.as_secs())});
    let made = server.post("/presign", &body).await?;
    if json {
        say!("{}", serde_json::to_string_pretty(&made)?);
    } else {
        say!("{}", made["url"].as_str().unwrap_or_default());
    }
    Ok(0)
}
