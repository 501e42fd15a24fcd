//! One call of a tool: who asks, where, and how it is told what goes on.

use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use serde_json::Value;
use sloplet_remote::{Server, encode};

use crate::conversation::{Asker, Conversation};
use crate::desk::Desk;
use crate::failure::Failure;

/// One call of a tool.
pub struct Call {
    /// What is offered.
    pub desk: Arc<Desk>,
    /// Where it belongs.
    pub conversation: Arc<Conversation>,
    /// Who asks.
    pub asker: Asker,
    progress: Option<(Peer<RoleServer>, ProgressToken)>,
}

impl Call {
    /// Of a request.
    pub fn new(
        desk: &Arc<Desk>,
        conversation: Arc<Conversation>,
        asker: Asker,
        context: &RequestContext<RoleServer>,
    ) -> Self {
        let token = context.meta.get_progress_token();
        let progress = token.map(|token| (context.peer.clone(), token));
        Self { desk: desk.clone(), conversation, asker, progress }
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.asker.server
    }

    /// The sandbox; made if there is none.
    pub async fn sandbox(&self) -> Result<String, Failure> {
        self.conversation.sandbox(&self.asker).await
    }

    /// A path of the API below the sandbox.
    pub async fn path(&self, rest: &str) -> Result<String, Failure> {
        Ok(format!("/sandboxes/{}{rest}", encode(&self.sandbox().await?)))
    }

    /// Looks at something of the sandbox.
    pub async fn get(&self, rest: &str) -> Result<Value, Failure> {
        Ok(self.server().get(&self.path(rest).await?).await?)
    }

    /// Tells the client how far it is, if it asked for that.
    pub async fn tell(&self, progress: f64, message: String) {
        if let Some((peer, token)) = &self.progress {
            let said = ProgressNotificationParam::new(token.clone(), progress).with_message(message);
            let _ = peer.notify_progress(said).await;
        }
    }

    /// Whether anybody wants to know how far it is.
    pub fn is_followed(&self) -> bool {
        self.progress.is_some()
    }
}

/// The client of a request, as it calls itself.
pub fn client(context: &RequestContext<RoleServer>) -> String {
    let Some(client) = context.client_info() else { return "unknown client".into() };
    let said = format!("{} {}", client.name, client.version);
    let plain: String = said.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(64).collect();
    plain.trim().to_owned()
}
