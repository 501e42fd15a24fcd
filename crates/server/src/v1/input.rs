//! What a command reads from its standard input: nothing, a few bytes, or as much as the rest of the request's body.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use multer::{Field, Multipart};
use sloplet_client::Stdin;

use super::exec::Exec;
use super::extract::{Payload, parse};
use crate::account::Account;
use crate::bodies;
use crate::error::ApiError;

/// How long a part of a body may take to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of the part that says what to run.
const LARGEST_ORDER: usize = 8 * 1024 * 1024;

/// What a command reads.
pub enum Input {
    /// It has no input.
    Nothing,
    /// This.
    Bytes(Vec<u8>),
    /// What still comes, of any size.
    Rest(BoxStream<'static, Result<Bytes, multer::Error>>),
}

impl From<Option<Vec<u8>>> for Input {
    fn from(bytes: Option<Vec<u8>>) -> Self {
        bytes.map_or(Self::Nothing, Self::Bytes)
    }
}

impl Input {
    /// Whether there is any.
    pub fn is_some(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// Writes it at the command's pace. A command may take less than it is given.
    pub async fn feed(self, stdin: Option<Stdin>) -> Result<(), ApiError> {
        let mut stdin = stdin;
        match self {
            Self::Nothing => {}
            Self::Bytes(bytes) => {
                if let Some(stdin) = &mut stdin {
                    let _ = stdin.write(bytes).await;
                }
            }
            Self::Rest(mut rest) => {
                // Read to its end in any case: whoever still sends does not hear an answer.
                while let Some(bytes) = piece(&mut rest).await? {
                    if let Some(open) = &mut stdin
                        && open.write(bytes).await.is_err()
                    {
                        stdin = None;
                    }
                }
            }
        }
        Ok(())
    }
}

async fn piece(rest: &mut BoxStream<'static, Result<Bytes, multer::Error>>) -> Result<Option<Bytes>, ApiError> {
    let late = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the input did not come in time: the command was ended");
    tokio::time::timeout(PATIENCE, rest.next()).await.map_err(late)?.transpose().map_err(malformed)
}

fn malformed(error: multer::Error) -> ApiError {
    ApiError::bad_request(format!("the form is malformed: {error}"))
}

/// A command and its input: JSON, or a form whose part `exec` is that JSON and whose part `stdin` is the input, of any size.
pub struct Order {
    /// What to run.
    pub exec: Exec,
    /// The form's input.
    pub rest: Option<Input>,
}

impl<S: Send + Sync> FromRequest<S> for Order {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let Some(boundary) = kind.and_then(|kind| multer::parse_boundary(kind).ok()) else {
            let Payload(exec) = Payload::from_request(request, state).await?;
            return Ok(Self { exec, rest: None });
        };
        let account = request.extensions().get::<Account>().cloned();
        let mut form = Multipart::new(request.into_body().into_data_stream(), boundary);
        let first = form.next_field().await.map_err(malformed)?.filter(|field| field.name() == Some("exec"));
        let first = first.ok_or_else(|| ApiError::bad_request("the form's first part must be 'exec'"))?;
        let exec = parse(&text(first, account.as_ref()).await?)?;
        let rest = match form.next_field().await.map_err(malformed)? {
            None => None,
            Some(field) if field.name() == Some("stdin") => Some(Input::Rest(field.boxed())),
            Some(_) => return Err(ApiError::bad_request("the form's second part must be 'stdin'")),
        };
        Ok(Self { exec, rest })
    }
}

async fn text(mut field: Field<'static>, account: Option<&Account>) -> Result<Vec<u8>, ApiError> {
    let late = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "exec did not come in time: send it again");
    let mut text = Vec::new();
    while let Some(bytes) = tokio::time::timeout(PATIENCE, field.next()).await.map_err(late)? {
        let bytes = bytes.map_err(malformed)?;
        if let Some(account) = account {
            account.charge(bodies::TIMES * bytes.len() as u64)?;
        }
        text.extend_from_slice(&bytes);
        if text.len() > LARGEST_ORDER {
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "exec: larger than this path takes"));
        }
    }
    Ok(text)
}
