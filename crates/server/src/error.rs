//! Errors as clients see them.

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::json;
use sloplet_client::ClientError;
use sloplet_engine::life::LifeError;
use sloplet_engine::{DriverError, EngineError};
use sloplet_image::ImageError;
use sloplet_ledger::LedgerError;
use sloplet_store::StoreError;
use sloplet_wire::ErrorCode;

use crate::refusals::Refused;

/// A request that was not carried out: `{"code": <status>, "message": "…"}`, which E2B's SDKs parse and ours, too.
#[derive(Debug)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// What happened, why, and what to do.
    pub message: String,
}

impl ApiError {
    /// With this status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 401.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, message)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// 409.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }
}

/// Whether a disk of the host's is full. Those behind walls tell their troubles in words.
fn lacks_space(message: &str) -> bool {
    let words = ["no space left on device", "disk quota exceeded", "database or disk is full"];
    let message = message.to_ascii_lowercase();
    words.iter().any(|words| message.contains(words))
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::error!(status = self.status.as_u16(), message = self.message, "request failed");
        }
        let refused = (self.status == StatusCode::UNAUTHORIZED).then(Refused::default);
        let body = Json(json!({"code": self.status.as_u16(), "message": self.message}));
        (self.status, refused.map(Extension), body).into_response()
    }
}

impl From<LifeError> for ApiError {
    fn from(error: LifeError) -> Self {
        let message = error.to_string();
        let status = match error {
            LifeError::NotFound { .. } => StatusCode::NOT_FOUND,
            LifeError::Paused(_) | LifeError::PoolEmpty(_) | LifeError::Conflict(_) => StatusCode::CONFLICT,
            LifeError::Invalid(_) => StatusCode::BAD_REQUEST,
            LifeError::Quota(_) => StatusCode::TOO_MANY_REQUESTS,
            LifeError::Engine(error) => return error.into(),
            LifeError::Driver(error) => return error.into(),
            LifeError::Agent(error) => return error.into(),
            LifeError::Image(error) => return error.into(),
            LifeError::Store(error) => return error.into(),
            _ if lacks_space(&message) => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, message }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Driver(error) => error.into(),
            EngineError::Agent(error) => error.into(),
            EngineError::Image(error) => error.into(),
            EngineError::Ledger(error) => error.into(),
            error if lacks_space(&error.to_string()) => Self::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string()),
            // What was asked for makes no sense, or not on this host.
            error => Self::bad_request(error.to_string()),
        }
    }
}

impl From<DriverError> for ApiError {
    fn from(error: DriverError) -> Self {
        let status = match error {
            DriverError::Unsupported(_) => StatusCode::NOT_IMPLEMENTED,
            DriverError::Exhausted { .. } => StatusCode::SERVICE_UNAVAILABLE,
            DriverError::Refused { .. } => StatusCode::BAD_REQUEST,
            _ if lacks_space(&error.to_string()) => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ClientError> for ApiError {
    fn from(error: ClientError) -> Self {
        let status = match error.failure().map(|failure| failure.code) {
            Some(ErrorCode::NotFound) => StatusCode::NOT_FOUND,
            Some(ErrorCode::Exists) => StatusCode::CONFLICT,
            Some(ErrorCode::Denied) => StatusCode::FORBIDDEN,
            Some(ErrorCode::Exhausted) => StatusCode::INSUFFICIENT_STORAGE,
            Some(_) => StatusCode::BAD_REQUEST,
            None => match error {
                ClientError::TooLarge { .. } | ClientError::TooMuch { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                ClientError::InputClosed => StatusCode::CONFLICT,
                _ => StatusCode::BAD_GATEWAY,
            },
        };
        Self::new(status, error.to_string())
    }
}

impl From<ImageError> for ApiError {
    fn from(error: ImageError) -> Self {
        let status = match error {
            ImageError::Unknown { .. } => StatusCode::NOT_FOUND,
            _ if lacks_space(&error.to_string()) => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::BAD_REQUEST,
        };
        let message = match &error {
            // Not which there are: some are others'.
            ImageError::Unknown { name, hint, .. } => {
                let get = format!(
                    "`sloplet image import <dir|tar|layout> --name {name}` or `sloplet image pull <reference>`"
                );
                format!("unknown image '{name}'; 'sloplet image ls' shows what there is. Get one with {get}{hint}")
            }
            error => error.to_string(),
        };
        Self::new(status, message)
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let status = match error {
            StoreError::Taken(_) => StatusCode::CONFLICT,
            StoreError::Full => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<LedgerError> for ApiError {
    fn from(error: LedgerError) -> Self {
        let status = match error {
            LedgerError::BadPublicKey | LedgerError::BadDigest(_) => StatusCode::BAD_REQUEST,
            // Nothing is done that cannot be recorded.
            LedgerError::Failing(_) => StatusCode::INSUFFICIENT_STORAGE,
            _ if lacks_space(&error.to_string()) => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        // 422 would be right for a wrong type, but the SDKs know only 400.
        let status = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, rejection.body_text())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}
