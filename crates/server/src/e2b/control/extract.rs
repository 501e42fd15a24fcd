//! Reading requests. Whatever is wrong with one is answered in the form that the SDKs parse.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::account::Account;
use crate::bodies;
use crate::error::ApiError;

/// Bytes of a JSON body. The largest are the steps of templates.
const MAX_BODY: usize = 4 * 1024 * 1024;

/// A JSON body, whatever its type is called. An empty one is an empty object.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let account = request.extensions().get::<Account>().cloned();
        let bytes = bodies::whole(request.into_body(), MAX_BODY, account.as_ref(), bodies::PATIENCE).await?;
        let bytes = match bytes.trim_ascii() {
            b"" => b"{}",
            bytes => bytes,
        };
        // A list would be taken for the fields in their order.
        if !bytes.starts_with(b"{") {
            return Err(ApiError::bad_request("the body must be a JSON object"));
        }
        serde_json::from_slice(bytes)
            .map(Self)
            .map_err(|error| ApiError::bad_request(format!("the body is not what is expected: {error}")))
    }
}

/// Parts of the path.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let axum::extract::Path(path) = axum::extract::Path::<T>::from_request_parts(parts, state).await?;
        Ok(Self(path))
    }
}
