//! The way in over standard input and output: the process is the conversation.

use std::sync::Arc;

use rmcp::service::serve_server_with_ct;
use rmcp::transport::io::stdio_pipes;
use tokio_util::sync::CancellationToken;

use crate::desk::Desk;
use crate::handler::Handler;

/// Serves one client until its end of the pipe closes or `over` says so; then removes what was made for it.
pub async fn serve_stdio(desk: Arc<Desk>, over: CancellationToken) -> anyhow::Result<()> {
    let handler = Handler::new(&desk, false).map_err(anyhow::Error::msg)?;
    let served = serve_server_with_ct(handler, stdio_pipes(), over.clone()).await;
    let outcome = match served {
        Ok(running) => running.waiting().await.map(drop).map_err(anyhow::Error::from),
        // A client that leaves before it has said anything has nothing to be told.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(_) if over.is_cancelled() => Ok(()),
        Err(error) => Err(anyhow::anyhow!("the client does not speak the protocol: {error}")),
    };
    desk.close().await;
    outcome
}
