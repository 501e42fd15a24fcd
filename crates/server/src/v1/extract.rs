//! Arguments of handlers: like axum's own, but every refusal is an [`ApiError`] that says what is wrong.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::account::Account;
use crate::bodies;
use crate::error::ApiError;

/// Bytes of a body that is held in memory. Files and archives are streamed.
pub const BODY: usize = 24 * 1024 * 1024;

/// A JSON body.
pub struct Payload<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Payload<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        parse(&read(request).await?).map(Self)
    }
}

/// A JSON body that may be left out.
pub struct OptionalPayload<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalPayload<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let body = read(request).await?;
        if body.is_empty() { Ok(Self(T::default())) } else { parse(&body).map(Self) }
    }
}

async fn read(request: Request) -> Result<Bytes, ApiError> {
    let account = request.extensions().get::<Account>().cloned();
    bodies::whole(request.into_body(), BODY, account.as_ref(), bodies::PATIENCE).await
}

/// A JSON object.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    // A list of values in the order of the fields would be taken, too: nobody means that.
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(ApiError::bad_request("the body must be a JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| ApiError::bad_request(format!("the body does not fit: {error}")))
}

/// What follows the question mark.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Query(value) = Query::from_request_parts(parts, state).await?;
        Ok(Self(value))
    }
}

/// The variable parts of the path.
pub struct Segments<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(value) = Path::from_request_parts(parts, state).await?;
        Ok(Self(value))
    }
}

/// A size or a time as people write it.
pub fn unit<T: std::str::FromStr<Err: std::fmt::Display>>(name: &str, text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|error| ApiError::bad_request(format!("{name}: {error}")))
}

/// The same, where it may be left out.
pub fn optional_unit<T>(name: &str, text: Option<&String>) -> Result<Option<T>, ApiError>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    text.map(|text| unit(name, text)).transpose()
}

/// Keeps apart what was left out (`None`) and what was said to be nothing (`Some(None)`).
pub fn said<'de, D, T>(from: D) -> Result<Option<Option<T>>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de>,
{
    serde::Deserialize::deserialize(from).map(Some)
}

/// An object. A list of values in the order of its fields would be taken, too: nobody means that.
pub fn object<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: DeserializeOwned,
{
    let fields: serde_json::Map<String, serde_json::Value> = serde::Deserialize::deserialize(from)?;
    serde_json::from_value(fields.into()).map_err(serde::de::Error::custom)
}
