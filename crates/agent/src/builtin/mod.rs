//! What the agent starts without a program of the image, so that it works in any: a forked copy of it becomes the user and
//! calls one of these, in place of exec.
//!
//! They have the user's rights and the sandbox's limits, as programs do; whatever their peer sends can do no more than a
//! program of the user's could. They keep to their three descriptors: all others are closed.

mod connect;
mod sftp;

#[cfg(feature = "fuzzing")]
pub use sftp::fields as sftp_fields;

use std::ffi::CString;

use sloplet_wire::{Builtin, ErrorCode, Failure};

use crate::failure::fail;

/// What is called with the arguments and, last, the user's home; its result is the exit code.
pub(crate) type Inner = fn(&[CString]) -> u8;

/// The function for it.
pub(crate) fn of(builtin: Builtin) -> Result<Inner, Failure> {
    match builtin {
        Builtin::Sftp => Ok(sftp::run),
        Builtin::Connect => Ok(connect::run),
        _ => Err(fail(ErrorCode::Unsupported, "this agent has no such builtin")),
    }
}
