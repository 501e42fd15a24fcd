//! Sandboxes as tools of a Model Context Protocol server.
//!
//! A thin client of `/v1`, like the command line. A [`Desk`] is what one `sloplet mcp` offers and to whom; a conversation at it
//! (`conversation`) has one sandbox, made when the first tool needs it and removed at the end. `tools` has one file for each
//! group of tools; `handler` is what the SDK calls; `stdio` and `http` are the two ways in,
//! the latter over bounded `connections`.
//!
//! Everything that comes out of a sandbox is hostile. Here it becomes text for a model: valid UTF-8, of bounded length, never a
//! part of the protocol itself.

mod answer;
mod call;
mod catalogue;
pub mod clients;
mod connections;
mod conversation;
mod desk;
mod failure;
mod grant;
mod handler;
mod http;
mod resources;
mod share;
mod stdio;
mod tools;

pub use desk::{Desk, Options, Times};
pub use grant::Grant;
pub use http::{Door, serve_http};
pub use share::Share;
pub use stdio::serve_stdio;
