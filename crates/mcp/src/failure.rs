//! Why a call came to nothing, told so that a model can act on it.

use sloplet_remote::Refused;

/// A call that came to nothing. It is an answer to the model, not an error of the protocol.
#[derive(Debug)]
pub struct Failure {
    /// What happened.
    pub what: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// What the server answered, if it was the server who refused.
    pub status: Option<u16>,
}

impl Failure {
    /// With nothing to do about it.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None, status: None }
    }

    /// With advice.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// All of it, as the model reads it.
    pub fn text(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{}\n{hint}", self.what),
            None => self.what.clone(),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast_ref::<Refused>() {
            Some(refused) => Self {
                what: refused.to_string(),
                hint: advice(refused).map(str::to_owned),
                status: Some(refused.status),
            },
            None => Self::new(format!("{error:#}")),
        }
    }
}

/// What a model can do where the server says no.
fn advice(refused: &Refused) -> Option<&'static str> {
    // What is used up has the same status whether it is room or money; only the words tell.
    match refused.status {
        402 | 429 | 507 if refused.message.contains("budget") => {
            Some("Tell the user: whoever started this server can raise it (--budget-usd, --budget-execs, …).")
        }
        507 => Some("The sandbox has no room left: remove files, or ask the user for more (--disk, --memory)."),
        _ => None,
    }
}
