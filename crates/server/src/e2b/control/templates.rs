//! Templates and their builds.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sloplet_engine::life::LifeError;
use sloplet_engine::template::{
    Build, Level, LogEntry, NewBuild, Recipe, Resources, Source, Status, StepRequest, Template,
};
use sloplet_image::Credentials;
use sloplet_policy::Limits;

use super::extract::{Json, Path};
use super::page::Page;
use super::query::Query;
use super::shown::ENVD_VERSION;
use super::{snapshots, time};
use crate::app::App;
use crate::auth::{Access, Scope};
use crate::error::ApiError;

/// Log entries of one answer; the SDKs ask again for more.
const MAX_ENTRIES: usize = 100;

/// Processors, and MiB of memory and disk, that a template can ask for.
const CPUS: std::ops::RangeInclusive<u32> = 1..=64;
const MEMORY: std::ops::RangeInclusive<u64> = 128..=262_144;
const DISK: std::ops::RangeInclusive<u64> = 0..=262_144;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Asked {
    name: Option<String>,
    alias: Option<String>,
    tags: Option<Vec<String>>,
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u64>,
    min_free_disk_mb: Option<u64>,
}

pub async fn request(
    State(app): State<App>,
    access: Access,
    Json(asked): Json<Asked>,
) -> Result<(StatusCode, axum::Json<Value>), ApiError> {
    let name = asked.name.or(asked.alias).ok_or_else(|| ApiError::bad_request("the template needs a name"))?;
    let fits = asked.cpu_count.is_none_or(|cpus| CPUS.contains(&cpus))
        && asked.memory_mb.is_none_or(|memory| MEMORY.contains(&memory))
        && asked.min_free_disk_mb.is_none_or(|disk| DISK.contains(&disk));
    if !fits {
        let message = format!("cpuCount must be in {CPUS:?}, memoryMB in {MEMORY:?}, minFreeDiskMb in {DISK:?}");
        return Err(ApiError::bad_request(message));
    }
    let tags = asked.tags.unwrap_or_default();
    if tags.len() > 100 {
        return Err(ApiError::bad_request("a build can have 100 tags at most"));
    }
    let resources = Resources { cpus: asked.cpu_count, memory_mib: asked.memory_mb, disk_mib: asked.min_free_disk_mb };
    let (template, build) = app.templates().request(&access.owner, NewBuild { name, tags, resources })?;
    let body = json!({
        "templateID": template.id,
        "buildID": build.id,
        "public": template.public,
        "names": [template.name],
        "aliases": [template.name],
        "tags": build.tags,
    });
    Ok((StatusCode::ACCEPTED, axum::Json(body)))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Start {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<Registry>,
    steps: Vec<StartStep>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
    force: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StartStep {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    files_hash: Option<String>,
    #[serde(default)]
    force: Option<bool>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Registry {
    #[serde(rename = "registry")]
    Any {
        username: String,
        password: String,
    },
    Aws {},
    Gcp {},
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry")
    }
}

pub async fn start(
    State(app): State<App>,
    access: Access,
    Path((template, build)): Path<(String, String)>,
    Json(asked): Json<Start>,
) -> Result<StatusCode, ApiError> {
    let credentials = match asked.from_image_registry {
        None => None,
        Some(Registry::Any { username, password }) => Some(Credentials { username, password }),
        Some(_) => {
            let advice = "pull the image with 'sloplet image pull' and name it, or use a user name and a password";
            return Err(ApiError::bad_request(format!("accounts at AWS and GCP are not understood: {advice}")));
        }
    };
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let source = match (given(asked.from_image), given(asked.from_template)) {
        (Some(name), None) => {
            let anywhere = access.scope >= Scope::Admin;
            Source::Image { name, credentials, anywhere }
        }
        (None, Some(template)) => Source::Template(template),
        _ => return Err(ApiError::bad_request("exactly one of fromImage and fromTemplate must be given")),
    };
    let step = |step: StartStep| StepRequest {
        kind: step.kind,
        args: step.args,
        files_hash: step.files_hash,
        force: step.force == Some(true),
    };
    let steps: Vec<StepRequest> = asked.steps.into_iter().map(step).collect();
    let mut recipe = Recipe::new(source, &steps, asked.start_cmd, asked.ready_cmd)?;
    if asked.force == Some(true) {
        recipe = recipe.uncached();
    }
    app.templates().start(&access.owner, &template, &build, recipe, &access.quota)?;
    Ok(StatusCode::ACCEPTED)
}

/// A line of a log as the SDKs see it.
#[derive(Debug, Serialize)]
struct Entry {
    timestamp: String,
    level: Level,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
}

impl From<LogEntry> for Entry {
    fn from(entry: LogEntry) -> Self {
        Self { timestamp: time::format(entry.at_ms), level: entry.level, message: entry.message, step: entry.step }
    }
}

pub async fn status(
    State(app): State<App>,
    access: Access,
    Path((template, build)): Path<(String, String)>,
    query: Query,
) -> Result<axum::Json<Value>, ApiError> {
    let build = app.templates().build(&access.owner, &template, &build)?;
    let offset = query.number::<usize>("logsOffset")?.unwrap_or(0);
    let limit = query.number::<usize>("limit")?.unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES);
    let entries = app.templates().log(&build, offset, limit)?;
    let least = level(&query)?;
    let entries: Vec<Entry> = entries.into_iter().filter(|entry| entry.level >= least).map(Entry::from).collect();
    let mut body = json!({
        "templateID": build.template,
        "buildID": build.id,
        "status": build.status,
        "logs": [],
        "logEntries": entries,
    });
    if let Some(reason) = build.reason {
        let entries: Vec<Entry> = reason.entries.into_iter().map(Entry::from).collect();
        body["reason"] = json!({"message": reason.message, "logEntries": entries});
        if let Some(step) = reason.step {
            body["reason"]["step"] = step.into();
        }
    }
    Ok(axum::Json(body))
}

pub async fn logs(
    State(app): State<App>,
    access: Access,
    Path((template, build)): Path<(String, String)>,
    query: Query,
) -> Result<axum::Json<Value>, ApiError> {
    let build = app.templates().build(&access.owner, &template, &build)?;
    let limit = query.number::<usize>("limit")?.unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES);
    let cursor = query.number::<u64>("cursor")?;
    let backward = query.text("direction") == Some("backward");
    let least = level(&query)?;
    let mut entries = app.templates().log(&build, 0, usize::MAX)?;
    entries.retain(|entry| entry.level >= least);
    if backward {
        entries.reverse();
        entries.retain(|entry| cursor.is_none_or(|cursor| entry.at_ms <= cursor));
    } else {
        entries.retain(|entry| cursor.is_none_or(|cursor| entry.at_ms >= cursor));
    }
    entries.truncate(limit);
    Ok(axum::Json(json!({"logs": entries.into_iter().map(Entry::from).collect::<Vec<_>>()})))
}

fn level(query: &Query) -> Result<Level, ApiError> {
    match query.text("level") {
        None | Some("debug") => Ok(Level::Debug),
        Some("info") => Ok(Level::Info),
        Some("warn") => Ok(Level::Warn),
        Some("error") => Ok(Level::Error),
        Some(_) => Err(ApiError::bad_request("the level must be debug, info, warn or error")),
    }
}

pub async fn list_v1(State(app): State<App>, access: Access) -> Result<axum::Json<Vec<Value>>, ApiError> {
    let all = app.templates().list(&access.owner)?;
    Ok(axum::Json(all.iter().map(|template| shown(&app, template)).collect::<Result<_, _>>()?))
}

pub async fn list_v2(
    State(app): State<App>,
    access: Access,
    query: Query,
) -> Result<(HeaderMap, axum::Json<Vec<Value>>), ApiError> {
    let page = Page::of(&query)?;
    let all = app.templates().list(&access.owner)?;
    let (headers, all) = page.cut(all, |template| (template.created_ms, template.id.clone()));
    Ok((headers, axum::Json(all.iter().map(|template| shown(&app, template)).collect::<Result<_, _>>()?)))
}

/// What can be used without having been built: images of this host.
pub async fn ready_made(State(app): State<App>, access: Access) -> axum::Json<Vec<Value>> {
    let names = ["base", "code-interpreter-v1"];
    let there = names.into_iter().filter(|name| app.templates().resolve(&access.owner, name).is_ok());
    let limits = Limits::default();
    let one = |name: &str| {
        json!({
            "templateID": name, "buildID": name, "names": [name], "aliases": [name], "public": true, "buildCount": 1,
            "buildStatus": Status::Ready, "cpuCount": limits.cpus.millis.div_ceil(1000),
            "memoryMB": limits.memory.0 >> 20, "diskSizeMB": limits.disk.0 >> 20, "createdAt": time::format(0), "updatedAt": time::format(0),
            "createdBy": null, "lastSpawnedAt": null, "spawnCount": 0, "envdVersion": ENVD_VERSION,
        })
    };
    axum::Json(there.map(one).collect())
}

fn shown(app: &App, template: &Template) -> Result<Value, ApiError> {
    let builds = app.templates().builds(template)?;
    // The last that succeeded, or else the last.
    let ready = builds.iter().find(|build| build.status == Status::Ready);
    let build = ready.or(builds.first());
    let limits = build.map(|build| build.resources.limits()).unwrap_or_default();
    Ok(json!({
        "templateID": template.id,
        "buildID": build.map_or("", |build| &build.id),
        "buildStatus": builds.first().map_or(Status::Waiting, |build| build.status),
        "buildCount": template.build_count,
        "names": [template.name],
        "aliases": [template.name],
        "public": template.public,
        "cpuCount": limits.cpus.millis.div_ceil(1000),
        "memoryMB": limits.memory.0 >> 20,
        "diskSizeMB": limits.disk.0 >> 20,
        "createdAt": time::format(template.created_ms),
        "updatedAt": time::format(template.updated_ms),
        "createdBy": null,
        "lastSpawnedAt": template.last_spawned_ms.map(time::format),
        "spawnCount": template.spawn_count,
        "envdVersion": ENVD_VERSION,
    }))
}

pub async fn info(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
    query: Query,
) -> Result<(HeaderMap, axum::Json<Value>), ApiError> {
    let page = Page::of(&query)?;
    let template = app.templates().get(&access.owner, &id)?;
    let builds = app.templates().builds(&template)?;
    let (headers, builds) = page.cut(builds, |build| (build.created_ms, build.id.clone()));
    let build = |build: &Build| {
        let limits = build.resources.limits();
        let mut shown = json!({
            "buildID": build.id,
            "status": build.status,
            "cpuCount": limits.cpus.millis.div_ceil(1000),
            "memoryMB": limits.memory.0 >> 20,
            "diskSizeMB": limits.disk.0 >> 20,
            "envdVersion": ENVD_VERSION,
            "createdAt": time::format(build.created_ms),
            "updatedAt": time::format(build.updated_ms),
        });
        if let Some(finished) = build.finished_ms {
            shown["finishedAt"] = time::format(finished).into();
        }
        shown
    };
    let body = json!({
        "templateID": template.id,
        "names": [template.name],
        "aliases": [template.name],
        "public": template.public,
        "createdAt": time::format(template.created_ms),
        "updatedAt": time::format(template.updated_ms),
        "lastSpawnedAt": template.last_spawned_ms.map(time::format),
        "spawnCount": template.spawn_count,
        "builds": builds.iter().map(build).collect::<Vec<_>>(),
    });
    Ok((headers, axum::Json(body)))
}

pub async fn alias(
    State(app): State<App>,
    access: Access,
    Path(alias): Path<String>,
) -> Result<axum::Json<Value>, ApiError> {
    if let Ok(template) = app.templates().get(&access.owner, &alias) {
        return Ok(axum::Json(json!({"templateID": template.id, "public": template.public})));
    }
    let origin = app.templates().resolve(&access.owner, &alias)?;
    Ok(axum::Json(json!({"templateID": origin.id, "public": true})))
}

/// A template, or a snapshot.
pub async fn remove(State(app): State<App>, access: Access, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    app.apart(move |app| match app.templates().remove(&access.owner, &id) {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(LifeError::NotFound { .. }) if snapshots::remove(app, &access.owner, &id)? => Ok(StatusCode::NO_CONTENT),
        Err(error) => Err(error.into()),
    })
    .await
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Update {
    public: Option<bool>,
}

pub async fn update_v1(
    state: State<App>,
    access: Access,
    path: Path<String>,
    body: Json<Update>,
) -> Result<axum::Json<Value>, ApiError> {
    update_v2(state, access, path, body).await
}

pub async fn update_v2(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
    Json(update): Json<Update>,
) -> Result<axum::Json<Value>, ApiError> {
    let template = match update.public {
        Some(public) => app.templates().set_public(&access.owner, &id, public)?,
        None => app.templates().get(&access.owner, &id)?,
    };
    Ok(axum::Json(json!({"names": [template.name]})))
}
