//! Listings of sandboxes.

use axum::extract::State;
use axum::http::HeaderMap;
use sloplet_engine::life::{Filter, Record, State as Life};

use super::page::Page;
use super::query::Query;
use super::shown::{self, Listed};
use super::time;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// All running ones at once.
pub async fn v1(State(app): State<App>, access: Access, query: Query) -> Result<axum::Json<Vec<Listed>>, ApiError> {
    let filter = Filter { states: vec![Life::Running], metadata: query.metadata(), ..Filter::default() };
    let found = app.sandboxes().list(&access.owner, &filter);
    Ok(axum::Json(found.iter().map(|record| Listed::of(&app, record)).collect()))
}

/// Running and paused ones, page by page.
pub async fn v2(
    State(app): State<App>,
    access: Access,
    query: Query,
) -> Result<(HeaderMap, axum::Json<Vec<Listed>>), ApiError> {
    let page = Page::of(&query)?;
    let wanted = wanted(&app, &access, &query)?;
    let found = app.sandboxes().list(&access.owner, &wanted.filter);
    let found: Vec<Record> = found.into_iter().filter(|record| wanted.takes(record)).collect();
    let running = found.iter().filter(|record| record.state == Life::Running).count();
    let (mut headers, found) = page.cut(found, |record| (record.created_ms, record.id.clone()));
    headers.insert("x-total-running", running.into());
    Ok((headers, axum::Json(found.iter().map(|record| Listed::of(&app, record)).collect())))
}

struct Wanted {
    filter: Filter,
    since_ms: Option<u64>,
    template: Option<(String, Option<String>)>,
}

impl Wanted {
    fn takes(&self, record: &Record) -> bool {
        let (id, of_id) = match &self.template {
            Some((given, id)) => (Some(given.as_str()), id.as_deref()),
            None => (None, None),
        };
        let is_template = id.is_none() || id == Some(record.template()) || of_id == Some(record.template());
        // Not `Filter::since_ms`, which leaves out the very moment.
        is_template && self.since_ms.is_none_or(|since| record.created_ms >= since)
    }
}

fn wanted(app: &App, access: &Access, query: &Query) -> Result<Wanted, ApiError> {
    let mut states = Vec::new();
    for state in query.all("state") {
        match state {
            "running" => states.push(Life::Running),
            "paused" => states.extend([Life::Paused, Life::Stopped]),
            _ => return Err(ApiError::bad_request("the state must be 'running' or 'paused'")),
        }
    }
    if states.is_empty() {
        states.extend([Life::Running, Life::Paused, Life::Stopped]);
    }
    debug_assert!(states.iter().all(|state| shown::state(*state).is_some()));
    let since = |text| time::parse(text).ok_or_else(|| ApiError::bad_request("startedAfter is not a time (RFC 3339)"));
    let template = query.text("template").map(|given| {
        let id = app.templates().resolve(&access.owner, given).ok().map(|origin| origin.id);
        (given.to_owned(), id)
    });
    Ok(Wanted {
        filter: Filter { states, metadata: query.metadata(), ..Filter::default() },
        since_ms: query.text("startedAfter").map(since).transpose()?,
        template,
    })
}
