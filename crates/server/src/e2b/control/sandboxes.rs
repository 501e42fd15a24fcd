//! One sandbox: looking at it, prolonging, pausing, resuming, forking and ending it.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sloplet_engine::life::{LifeError, State as Life};

use super::create::seconds;
use super::domain::Domain;
use super::extract::{Json, Path};
use super::shown::{self, Detail, Sandbox};
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// Forks made at once.
const MAX_FORKS: usize = 100;

type Made = (StatusCode, axum::Json<Sandbox>);

pub async fn info(
    State(app): State<App>,
    access: Access,
    domain: Domain,
    Path(id): Path<String>,
) -> Result<axum::Json<Detail>, ApiError> {
    let record = app.sandboxes().get(&access.owner, &id)?;
    if shown::state(record.state).is_none() {
        return Err(LifeError::no_sandbox(&id).into());
    }
    Ok(axum::Json(Detail::of(&app, &access, &domain, &record)))
}

pub async fn kill(State(app): State<App>, access: Access, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    app.sandboxes().destroy(&access.owner, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Connect {
    timeout: Option<i64>,
    memory: Option<bool>,
}

/// Also resumes.
pub async fn connect(
    State(app): State<App>,
    access: Access,
    domain: Domain,
    Path(id): Path<String>,
    Json(asked): Json<Connect>,
) -> Result<Made, ApiError> {
    let timeout = seconds(asked.timeout.unwrap_or(300))?;
    if asked.memory == Some(false) && app.sandboxes().get(&access.owner, &id)?.state == Life::Paused {
        // From its files alone: its processes end.
        app.sandboxes().stop(&access.owner, &id).await?;
    }
    let (record, resumed) = app.sandboxes().connect(&access.owner, &id, Some(timeout)).await?;
    let status = if resumed { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, axum::Json(Sandbox::of(&app, &access, &domain, &record))))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resume {
    timeout: Option<i64>,
    memory: Option<bool>,
}

/// As older SDKs do it.
pub async fn resume(
    State(app): State<App>,
    access: Access,
    domain: Domain,
    Path(id): Path<String>,
    Json(asked): Json<Resume>,
) -> Result<Made, ApiError> {
    let timeout = seconds(asked.timeout.unwrap_or(15))?;
    let record = app.sandboxes().get(&access.owner, &id)?;
    if record.state == Life::Running {
        return Err(ApiError::conflict(format!("sandbox '{id}' is running already")));
    }
    if asked.memory == Some(false) && record.state == Life::Paused {
        app.sandboxes().stop(&access.owner, &id).await?;
    }
    let (record, _) = app.sandboxes().connect(&access.owner, &id, Some(timeout)).await?;
    Ok((StatusCode::CREATED, axum::Json(Sandbox::of(&app, &access, &domain, &record))))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pause {
    memory: Option<bool>,
}

pub async fn pause(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
    Json(asked): Json<Pause>,
) -> Result<StatusCode, ApiError> {
    let sandboxes = app.sandboxes();
    if asked.memory == Some(false) {
        if sandboxes.get(&access.owner, &id)?.state != Life::Running {
            return Err(ApiError::conflict(format!("sandbox '{id}' is not running")));
        }
        sandboxes.stop(&access.owner, &id).await?;
    } else {
        sandboxes.pause(&access.owner, &id).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
pub struct Timeout {
    timeout: i64,
}

pub async fn set_timeout(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
    Json(asked): Json<Timeout>,
) -> Result<StatusCode, ApiError> {
    app.sandboxes().set_timeout(&access.owner, &id, Some(seconds(asked.timeout)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Refresh {
    duration: Option<i64>,
}

/// Prolongs; never shortens.
pub async fn refresh(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
    Json(asked): Json<Refresh>,
) -> Result<StatusCode, ApiError> {
    let duration = seconds(asked.duration.unwrap_or(15))?;
    if app.sandboxes().get(&access.owner, &id)?.state != Life::Running {
        return Err(LifeError::no_sandbox(&id).into());
    }
    app.sandboxes().connect(&access.owner, &id, Some(duration)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Fork {
    timeout: Option<i64>,
    count: Option<usize>,
}

/// One fork: a sandbox, or why there is none.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Forked {
    Sandbox(Sandbox),
    Error(Value),
}

pub async fn fork(
    State(app): State<App>,
    access: Access,
    domain: Domain,
    Path(id): Path<String>,
    Json(asked): Json<Fork>,
) -> Result<(StatusCode, axum::Json<Vec<Forked>>), ApiError> {
    let timeout = seconds(asked.timeout.unwrap_or(15))?;
    let count = asked.count.unwrap_or(1);
    if !(1..=MAX_FORKS).contains(&count) {
        return Err(ApiError::bad_request(format!("the count must be between 1 and {MAX_FORKS}")));
    }
    let change = move |request: &mut sloplet_engine::life::NewSandbox| {
        request.timeout = Some(timeout);
        request.name = None;
        request.idempotency_key = None;
    };
    let forks = app.sandboxes().fork(&access.owner, &id, count, &access.quota, &change).await?;
    let forked = |fork| match fork {
        Ok(record) => Forked::Sandbox(Sandbox::of(&app, &access, &domain, &record)),
        Err(error) => {
            let error = ApiError::from(error);
            Forked::Error(json!({"code": error.status.as_u16(), "message": error.message}))
        }
    };
    Ok((StatusCode::CREATED, axum::Json(forks.into_iter().map(forked).collect())))
}
