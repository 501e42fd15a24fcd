//! Why something could not be had from, or put into, S3.

/// Why something could not be had from, or put into, S3.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum S3Error {
    /// Not an address of an object.
    #[error("'{text}' does not name an object: {reason}; write s3://BUCKET/KEY")]
    BadObject {
        /// What was given.
        text: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A setting that makes no sense.
    #[error("S3: {0}")]
    Settings(String),
    /// Nobody answered.
    #[error("S3 does not answer at {endpoint}: {reason}")]
    Unreached {
        /// Where it should.
        endpoint: String,
        /// What happened.
        reason: String,
    },
    /// There is no such object.
    #[error("there is no {0}")]
    NotFound(String),
    /// It was refused.
    #[error("S3 refused {what}: {code} ({status}){message}")]
    Refused {
        /// What was asked.
        what: String,
        /// The HTTP status.
        status: u16,
        /// S3's own code, like `AccessDenied`.
        code: String,
        /// What it said.
        message: String,
    },
    /// The object is another than at the beginning.
    #[error("{0} was changed meanwhile")]
    Changed(String),
    /// It broke off, again and again.
    #[error("{what} broke off: {reason}")]
    Broken {
        /// Which object.
        what: String,
        /// What happened.
        reason: String,
    },
    /// What arrived is not what was sent.
    #[error("{0} is not what was sent: its digest differs")]
    Damaged(String),
    /// Where the bytes come from failed.
    #[error("{0}")]
    Source(std::io::Error),
    /// More parts than there can be.
    #[error("{0} is too large: S3 takes 10000 parts")]
    TooLarge(String),
}

impl S3Error {
    /// Whether it may work if it is tried again.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Unreached { .. } | Self::Broken { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 429 | 500..=599),
            _ => false,
        }
    }
}
