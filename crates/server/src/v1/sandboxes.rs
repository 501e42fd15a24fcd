//! Sandboxes: made, found, changed, removed.

use axum::Json;
use axum::extract::State as AppState;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use sloplet_engine::life::{Filter, NewSandbox, Record, State, Values};
use sloplet_policy::{Span, Spec};
use utoipa::{IntoParams, ToSchema};

use super::extract::{OptionalPayload, Params, Payload, Segments, optional_unit, said};
use super::sandbox::{CreateSandbox, Sandbox, life};
use crate::app::App;
use crate::auth::{Access, Scope};
use crate::error::ApiError;
use sloplet_engine::template::is_private;

/// Sandboxes in one answer, unless that is said.
const USUAL_PAGE: usize = 100;

/// Most sandboxes in one answer.
const LARGEST_PAGE: usize = 1000;

/// Longest idempotency key.
const KEY_LENGTH: usize = 255;

/// Make a sandbox.
#[utoipa::path(post, path = "/sandboxes", tag = "sandboxes", request_body = Option<CreateSandbox>,
    params(("Idempotency-Key" = Option<String>, Header, max_length = 255, pattern = "^[!-~]+$",
        description = "Requests with the same one make one sandbox.")),
    responses((status = 201, body = Sandbox)))]
pub async fn create(
    AppState(app): AppState<App>,
    access: Access,
    headers: HeaderMap,
    OptionalPayload(body): OptionalPayload<CreateSandbox>,
) -> Result<(StatusCode, Json<Sandbox>), ApiError> {
    let record = make(&app, &access, body, idempotency_key(&headers)?).await?;
    Ok((StatusCode::CREATED, Json(with_wall(&app, record, &access))))
}

/// Makes a sandbox for somebody, of a pool if it names one.
pub async fn make(
    app: &App,
    access: &Access,
    wanted: CreateSandbox,
    idempotency_key: Option<String>,
) -> Result<Record, ApiError> {
    let (mut request, values) = match &wanted.pool {
        None => {
            let (mut request, values) = wanted.into_request(&Spec::default(), access, idempotency_key)?;
            use_image(app, access, &mut request)?;
            (request, values)
        }
        Some(pool) => from_pool(app, access, pool.clone(), wanted, idempotency_key)?,
    };
    app.config().walls.admit(app.sandboxes().engine(), access, &mut request.spec)?;
    request.spec.weaken = app.config().weaken;
    Ok(app.sandboxes().create_with(&access.owner, request, values, &access.quota).await?)
}

/// What is asked for, where what is left out is as in a pool.
fn from_pool(
    app: &App,
    access: &Access,
    pool: String,
    body: CreateSandbox,
    key: Option<String>,
) -> Result<(NewSandbox, Values), ApiError> {
    let known = app.sandboxes().pool_record(&access.owner, &pool)?;
    let said = body.image.is_some();
    let (mut request, values) = body.into_request(&known.spec, access, key)?;
    if said {
        use_image(app, access, &mut request)?;
        return Ok((request, values));
    }
    if let Some(template) = &known.template {
        request.spec.image = app.templates().resolve(&access.owner, template)?.image;
        app.sandboxes().follow_template(&access.owner, template, &request.spec.image)?;
    }
    request.template = Some(known.called);
    Ok((request, values))
}

/// A sandbox, and what its wall is.
fn with_wall(app: &App, record: Record, access: &Access) -> Sandbox {
    // A wall that this server does not have any more has nothing to say.
    let wall = app.sandboxes().engine().wall_of(&record.request.spec).ok();
    Sandbox { wall: wall.map(Into::into), ..Sandbox::of(record, access) }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(text) if !text.is_empty() && text.len() <= KEY_LENGTH => Ok(Some(text.to_owned())),
        _ => Err(ApiError::bad_request(format!("Idempotency-Key must be 1 to {KEY_LENGTH} visible ASCII characters"))),
    }
}

/// A snapshot or template of the owner's goes by its own name. Paths of the host are for those who may mount them anyway.
pub fn choose_image(app: &App, access: &Access, spec: &Spec) -> Result<Chosen, ApiError> {
    let image = spec.image.clone();
    let chosen = |image: &str| Chosen { image: image.to_owned(), template: None };
    if let Ok(snapshot) = app.sandboxes().get_snapshot(&access.owner, &image) {
        return Ok(chosen(&snapshot.image()));
    }
    if image == "host" {
        return Ok(chosen(&image));
    }
    if let Ok(origin) = app.templates().resolve(&access.owner, &image)
        && origin.template.is_some()
    {
        return Ok(Chosen { image: origin.image, template: origin.template });
    }
    let unknown = || ApiError::not_found(format!("there is no image '{}': see /v1/images", image.escape_default()));
    if is_private(&image) {
        return Err(unknown());
    }
    let path = image.starts_with(['/', '.', '~']);
    if path {
        access.require(Scope::Admin)?;
    } else if image.contains('/') && access.scope < Scope::Admin {
        let stored = |one: &sloplet_image::Image| one.name == image || one.name == format!("{image}:latest");
        let images = app.sandboxes().engine().images()?.list()?;
        images.iter().find(|one| stored(one)).ok_or_else(unknown)?;
    }
    Ok(chosen(&image))
}

/// What an image's name means to a key.
pub struct Chosen {
    /// The image.
    pub image: String,
    /// The template that it is of.
    pub template: Option<String>,
}

fn use_image(app: &App, access: &Access, request: &mut NewSandbox) -> Result<(), ApiError> {
    let called = request.spec.image.clone();
    let Chosen { image, template } = choose_image(app, access, &request.spec)?;
    if let Some(template) = template {
        app.sandboxes().follow_template(&access.owner, &template, &image)?;
        request.template = Some(called);
    }
    request.spec.image = image;
    Ok(())
}

/// Which sandboxes are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// In one of these states, with commas between them.
    #[param(
        example = "running,paused",
        pattern = "^(creating|running|paused|stopped|failed)(,(creating|running|paused|stopped|failed))*$"
    )]
    state: Option<String>,
    /// With all of these metadata: `name=value&name=value`, itself URL-encoded.
    #[param(example = "team=a")]
    metadata: Option<String>,
    /// Of this name.
    name: Option<String>,
    /// How many at most.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Where the last answer ended: its `next`.
    #[param(pattern = "^[0-9]{1,19}-[a-z0-9]{1,64}$")]
    cursor: Option<String>,
}

/// Some of the sandboxes, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct SandboxPage {
    /// The sandboxes.
    pub sandboxes: Vec<Sandbox>,
    /// Give it as `cursor` to get those that follow; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// List sandboxes, newest first.
#[utoipa::path(get, path = "/sandboxes", tag = "sandboxes", params(Wanted),
    responses((status = 200, body = SandboxPage)))]
pub async fn list(
    AppState(app): AppState<App>,
    access: Access,
    Params(wanted): Params<Wanted>,
) -> Result<Json<SandboxPage>, ApiError> {
    let limit = match wanted.limit.unwrap_or(USUAL_PAGE) {
        limit @ 1..=LARGEST_PAGE => limit,
        _ => return Err(ApiError::bad_request(format!("limit must be 1 to {LARGEST_PAGE}"))),
    };
    let after = wanted.cursor.as_deref().map(position).transpose()?;
    let metadata = wanted.metadata.as_deref().unwrap_or_default();
    let metadata = serde_urlencoded_pairs(metadata);
    let states = wanted.state.as_deref().map(states).transpose()?.unwrap_or_default();
    let filter = Filter { states, metadata, ..Filter::default() };
    let mut found = app.sandboxes().list(&access.owner, &filter);
    found.retain(|record| wanted.name.is_none() || record.request.name == wanted.name);
    // By creation and id, so that a page stays a page whatever is made or removed meanwhile.
    found.sort_by(|a, b| (b.created_ms, &b.id).cmp(&(a.created_ms, &a.id)));
    if let Some((created, id)) = &after {
        found.retain(|record| (record.created_ms, record.id.as_str()) < (*created, id.as_str()));
    }
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|record| format!("{}-{}", record.created_ms, record.id));
    let sandboxes = found.into_iter().map(|record| Sandbox::of(record, &access)).collect();
    Ok(Json(SandboxPage { sandboxes, next }))
}

fn position(cursor: &str) -> Result<(u64, String), ApiError> {
    let parts = cursor.split_once('-').and_then(|(created, id)| Some((created.parse().ok()?, id.to_owned())));
    parts.ok_or_else(|| ApiError::bad_request("cursor must be the 'next' of an earlier answer"))
}

fn states(text: &str) -> Result<Vec<State>, ApiError> {
    let all = [State::Creating, State::Running, State::Paused, State::Stopped, State::Failed];
    text.split(',')
        .map(|word| {
            let advice = "use creating, running, paused, stopped, failed";
            let unknown = || ApiError::bad_request(format!("unknown state '{}': {advice}", word.escape_default()));
            all.into_iter().find(|state| state.name() == word).ok_or_else(unknown)
        })
        .collect()
}

/// `name=value&name=value`, URL-encoded.
fn serde_urlencoded_pairs(text: &str) -> Vec<(String, String)> {
    let decode =
        |part: &str| percent_encoding::percent_decode_str(&part.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (decode(k), decode(v))).collect()
}

/// Look at a sandbox.
#[utoipa::path(get, path = "/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path, description = "Its id or name")),
    responses((status = 200, body = Sandbox)))]
pub async fn get(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<Json<Sandbox>, ApiError> {
    let record = app.sandboxes().get(&access.owner, &id)?;
    Ok(Json(with_wall(&app, record, &access)))
}

/// Kill everything in a sandbox and forget it.
#[utoipa::path(delete, path = "/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path, description = "Its id or name")),
    responses((status = 204)))]
pub async fn remove(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<StatusCode, ApiError> {
    let record = app.sandboxes().get(&access.owner, &id)?;
    app.sandboxes().destroy(&access.owner, &record.id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What is to be changed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeSandbox {
    /// How long it lives from now on; `null`: until it is removed.
    #[serde(default, deserialize_with = "said")]
    #[schema(value_type = Option<String>, example = "2h", pattern = "^[1-9][0-9]{0,4}(ms|s|m|h|d)$")]
    timeout: Option<Option<String>>,
    /// It is removed, whatever state it is in, if this is not said again within so long: for clients that want what they made to
    /// go when they do. `null`: it stays.
    #[serde(default, deserialize_with = "said")]
    #[schema(value_type = Option<String>, example = "2m", pattern = "^[1-9][0-9]{0,4}(ms|s|m|h|d)$")]
    lease: Option<Option<String>>,
}

/// Change how long a sandbox lives, or hold it.
#[utoipa::path(patch, path = "/sandboxes/{id}", tag = "sandboxes", request_body = ChangeSandbox,
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = Sandbox)))]
pub async fn change(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Payload(body): Payload<ChangeSandbox>,
) -> Result<Json<Sandbox>, ApiError> {
    if body.timeout.is_none() && body.lease.is_none() {
        return Err(ApiError::bad_request("say what to change: timeout or lease"));
    }
    let mut record = app.sandboxes().get(&access.owner, &id)?;
    if let Some(lease) = body.lease {
        let lease = optional_unit::<Span>("lease", lease.as_ref())?;
        app.sandboxes().hold(&access.owner, &record.id, lease.map(|span| span.0))?;
    }
    if body.timeout.is_some() {
        record = app.sandboxes().set_timeout(&access.owner, &record.id, life(body.timeout)?).await?;
    }
    Ok(Json(Sandbox::of(record, &access)))
}

/// The sandbox that this key calls so.
pub fn find(app: &App, access: &Access, id: &str) -> Result<Record, ApiError> {
    Ok(app.sandboxes().get(&access.owner, id)?)
}
