//! The API that E2B's SDKs speak.

pub mod control;
pub mod envd;
