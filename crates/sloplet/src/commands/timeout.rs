//! `sloplet timeout`

use hyper::Method;
use serde_json::json;

use super::create::lifetime;
use crate::api::{Server, encode};
use crate::cli::Lifetime;

pub async fn run(server: &Server, name: &str, timeout: Lifetime) -> anyhow::Result<u8> {
    let body = json!({"timeout": lifetime(timeout)});
    server.ask(Method::PATCH, &format!("/sandboxes/{}", encode(name)), Some(&body)).await?;
    Ok(0)
}
