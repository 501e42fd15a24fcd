//! `sloplet port`

use anyhow::Context;
use serde_json::json;
use sloplet_policy::Span;
use tokio::net::TcpListener;

use crate::api::{Server, encode};
use crate::table::print;

pub async fn run(
    server: &Server,
    name: &str,
    port: Option<u16>,
    timeout: Span,
    forward: Option<u16>,
    as_json: bool,
) -> anyhow::Result<u8> {
    let Some(port) = port else {
        return list(server, name, as_json).await;
    };
    if let Some(local) = forward {
        return serve(server, name, port, local).await;
    }
    let path = format!("/sandboxes/{}/ports/{port}/link", encode(name));
    let link = server.post(&path, &json!({"timeout": timeout.to_string()})).await?;
    if as_json {
        say!("{link}");
    } else {
        say!("{}", link["url"].as_str().unwrap_or_default());
    }
    Ok(0)
}

async fn list(server: &Server, name: &str, as_json: bool) -> anyhow::Result<u8> {
    let ports = server.get(&format!("/sandboxes/{}/ports", encode(name))).await?;
    if as_json {
        say!("{}", serde_json::to_string_pretty(&ports)?);
        return Ok(0);
    }
    let row = |port: &serde_json::Value| [port["port"].to_string(), port["url"].as_str().unwrap_or("-").to_owned()];
    let rows: Vec<[String; 2]> = ports.as_array().into_iter().flatten().map(row).collect();
    print(["PORT", "ADDRESS"], &rows);
    Ok(0)
}

/// Forwards until interrupted.
async fn serve(server: &Server, name: &str, port: u16, local: u16) -> anyhow::Result<u8> {
    // Whether there is such a sandbox is better known now than at the first connection.
    server.get(&format!("/sandboxes/{}", encode(name))).await?;
    let listener =
        TcpListener::bind(("127.0.0.1", local)).await.with_context(|| format!("listening on port {local}"))?;
    complain!("sloplet: {} leads to port {port} of {name} until interrupted", listener.local_addr()?);
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            _ = tokio::signal::ctrl_c() => return Ok(0),
        };
        let (server, name) = (server.clone(), name.to_owned());
        tokio::spawn(async move {
            let joined = async { server.dial(&name, port).await?.join(stream).await };
            if let Err(error) = joined.await {
                complain!("sloplet: a connection ended: {}", crate::terminal::harmless(&format!("{error:#}")));
            }
        });
    }
}
