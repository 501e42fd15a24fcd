//! Asking a person about rules marked `ask`.

use std::net::IpAddr;

use serde::Serialize;

use crate::intercept::Pending;

/// What a person is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Request {
    /// The connection that asked first; others to the same place wait for the same answer.
    pub connection: u64,
    /// The name it wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address it wants, where it has no name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The port it wants.
    pub port: u16,
    /// The rule that says to ask.
    pub rule: String,
}

/// What a person says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The connections that wait now may go on.
    Once,
    /// These, and all to the same name and port until the rules change.
    Always,
    /// They may not.
    Deny,
}

/// Asks a person. The egress stops waiting after a while and denies.
pub trait Ask: Send + Sync + 'static {
    /// Resolves when there is an answer; dropped when nobody waits for it any more.
    fn ask(&self, request: Request) -> Pending<'static, Answer>;
}

/// There is nobody to ask: denies at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nobody;

impl Ask for Nobody {
    fn ask(&self, _request: Request) -> Pending<'static, Answer> {
        Box::pin(std::future::ready(Answer::Deny))
    }
}
