//! What happened: the ledger, page by page, and the proof that it is whole.

use axum::Json;
use axum::extract::State as AppState;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sloplet_engine::life::clock::now_ms;
use sloplet_ledger::event::KINDS;
use sloplet_ledger::{Filter, Head, Known, LedgerError, Record};
use sloplet_policy::Span;
use utoipa::{IntoParams, ToSchema};

use super::document::Binary;
use super::extract::{Params, Segments};
use crate::app::App;
use crate::auth::{Access, Scope};
use crate::error::ApiError;

/// Records in one answer, unless that is said.
const USUAL_PAGE: usize = 100;

/// Most records in one answer.
const LARGEST_PAGE: usize = 1000;

/// Bytes of records in one answer, about.
const PAGE_BYTES: usize = 8 * 1024 * 1024;

/// Records that are looked at for one answer. Who looks for a needle asks again, from where this stopped.
const LOOKED_AT: usize = 100_000;

/// Which records.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// Only about this sandbox: its id, or its name (the last that was called so). It may be gone.
    #[param(min_length = 1, max_length = 255)]
    pub sandbox: Option<String>,
    /// Only of these kinds, with commas in between.
    #[param(pattern = "^[a-z_]{1,32}(,[a-z_]{1,32}){0,31}$", example = "exec_started,exec_ended")]
    pub kind: Option<String>,
    /// Only from this time on: so long ago, like `24h`, or in milliseconds since 1970.
    #[param(pattern = "^([0-9]{1,15}|([0-9]{1,9}(ms|s|m|h|d)){1,4})$", example = "24h")]
    pub since: Option<String>,
    /// Only before this time, written likewise.
    #[param(pattern = "^([0-9]{1,15}|([0-9]{1,9}(ms|s|m|h|d)){1,4})$")]
    pub until: Option<String>,
    /// Only with a higher number: where an earlier answer stopped.
    pub after: u64,
}

/// A moment as people write it: digits are milliseconds since 1970, all else is so long ago.
pub fn moment(name: &str, text: &str) -> Result<u64, ApiError> {
    let bad = || ApiError::bad_request(format!("{name}: write a time ago like 24h, or milliseconds since 1970"));
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return if text.len() <= 15 { text.parse().map_err(|_| bad()) } else { Err(bad()) };
    }
    // Stricter than elsewhere: neither fractions nor numbers without a unit.
    let short = text.replace("ms", "i");
    let mut parts = short.split_inclusive(|c: char| c.is_ascii_alphabetic());
    let is_part = |part: &str| {
        let number = part.strip_suffix(['i', 's', 'm', 'h', 'd']).unwrap_or_default();
        (1..=9).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    if text.contains('i') || parts.clone().count() > 4 || !parts.all(is_part) {
        return Err(bad());
    }
    let span: Span = super::extract::unit(name, text)?;
    Ok(now_ms().saturating_sub(u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX)))
}

/// A list of kinds.
pub(crate) fn kinds(text: &str) -> Result<Vec<String>, ApiError> {
    let known = |kind: &str| match KINDS.contains(&kind) {
        true => Ok(kind.to_owned()),
        false => {
            Err(ApiError::bad_request(format!("kind: '{}' is none of {}", kind.escape_default(), KINDS.join(", "))))
        }
    };
    text.split(',').map(known).collect()
}

/// What a key may see of the ledger.
#[derive(Clone)]
pub struct View {
    access: Access,
    /// Who made the sandboxes that it may see.
    maker: String,
}

impl View {
    /// Of whoever asks.
    pub fn of(access: Access) -> Self {
        Self { maker: format!("key:{}", access.owner), access }
    }

    /// Whether it takes [`App::origins`] to say.
    pub fn is_partial(&self) -> bool {
        self.access.scope < Scope::Admin
    }

    /// Whether this may be seen: administrators see all, others what is about their own sandboxes and what they did.
    pub fn shows(&self, app: &App, record: &Record) -> bool {
        if !self.is_partial() {
            return true;
        }
        match &record.sandbox {
            Some(sandbox) => self.owns(app, sandbox),
            None => record.actor == self.maker || record.actor == self.access.actor(),
        }
    }

    fn owns(&self, app: &App, sandbox: &str) -> bool {
        let lives = app.sandboxes().get_any(sandbox).is_ok_and(|record| record.owner == self.access.owner);
        lives || app.origins().actor(sandbox) == Some(&self.maker)
    }

    /// The id of a sandbox that may be seen. Waits for files.
    pub fn sandbox(&self, app: &App, name: &str) -> Result<String, ApiError> {
        if let Ok(record) = app.sandboxes().get(&self.access.owner, name) {
            return Ok(record.id);
        }
        let unknown = || ApiError::not_found(format!("nothing is known of a sandbox '{}'", name.escape_default()));
        app.origins().find(name, self.is_partial().then_some(&self.maker)).ok_or_else(unknown)
    }

    /// Which records are meant. Waits for files.
    pub fn filter(&self, app: &App, which: &Which) -> Result<Filter, ApiError> {
        if which.after > i64::MAX as u64 {
            return Err(ApiError::bad_request("after: no record has such a number"));
        }
        app.origins().read_on(&app.config().data)?;
        Ok(Filter {
            sandbox: which.sandbox.as_deref().map(|name| self.sandbox(app, name)).transpose()?,
            kinds: which.kind.as_deref().map_or_else(|| Ok(Vec::new()), kinds)?,
            since_ms: which.since.as_deref().map(|text| moment("since", text)).transpose()?,
            until_ms: which.until.as_deref().map(|text| moment("until", text)).transpose()?,
            after_seq: which.after,
            limit: None,
        })
    }
}

/// How many, and how they are written.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// Only about this sandbox: its id, or its name (the last that was called so). It may be gone.
    #[param(min_length = 1, max_length = 255)]
    sandbox: Option<String>,
    /// Only of these kinds, with commas in between.
    #[param(pattern = "^[a-z_]{1,32}(,[a-z_]{1,32}){0,31}$", example = "exec_started,exec_ended")]
    kind: Option<String>,
    /// Only from this time on: so long ago, like `24h`, or in milliseconds since 1970.
    #[param(pattern = "^([0-9]{1,15}|([0-9]{1,9}(ms|s|m|h|d)){1,4})$", example = "24h")]
    since: Option<String>,
    /// Only before this time, written likewise.
    #[param(pattern = "^([0-9]{1,15}|([0-9]{1,9}(ms|s|m|h|d)){1,4})$")]
    until: Option<String>,
    /// Only with a higher number: `next` of the answer before.
    after: u64,
    /// At most so many; 100 if left out.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// `jsonl`: each record on a line, exactly as it was written, with `next` in the header `Sloplet-Next`.
    #[param(inline)]
    format: Format,
}

/// How records are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One object.
    #[default]
    Json,
    /// Lines.
    Jsonl,
}

/// Records, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[allow(dead_code, reason = "only described")]
pub struct AuditPage {
    /// What happened.
    pub records: Vec<AuditRecord>,
    /// There may be more: ask with this as `after`.
    pub next: Option<u64>,
}

/// One record.
#[derive(Debug, Serialize, ToSchema)]
#[allow(dead_code, reason = "only described")]
pub struct AuditRecord {
    /// Its number: from 1, without gaps.
    pub seq: u64,
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// The sandbox it is about.
    pub sandbox: Option<String>,
    /// Who did it: `key:<id>`, `local`, `token`, `sandbox`, `cli`, …
    pub actor: String,
    /// The hash of the record before it.
    pub prev: String,
    /// What happened; `kind` says what else is in it.
    #[schema(value_type = Object)]
    pub event: serde_json::Value,
    /// Its own hash.
    pub hash: String,
}

struct Found {
    lines: Vec<String>,
    next: Option<u64>,
}

/// Read what happened, oldest first: commands, files, connections, spending, API calls.
#[utoipa::path(get, path = "/audit", tag = "audit", params(Paging),
    responses((status = 200, content(
        (AuditPage = "application/json"), (String = "application/x-ndjson")))))]
pub async fn list(
    AppState(app): AppState<App>,
    access: Access,
    Params(paging): Params<Paging>,
) -> Result<Response, ApiError> {
    let Paging { sandbox, kind, since, until, after, limit, format } = paging;
    let limit = match limit.unwrap_or(USUAL_PAGE) {
        limit @ 1..=LARGEST_PAGE => limit,
        _ => return Err(ApiError::bad_request(format!("limit: 1 to {LARGEST_PAGE}"))),
    };
    let (which, view) = (Which { sandbox, kind, since, until, after }, View::of(access));
    let Found { lines, next } = app.look(move |app| find(app, &view, &which, limit)).await?;
    if format == Format::Jsonl {
        let mut response = lines.iter().map(|line| format!("{line}\n")).collect::<String>().into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/x-ndjson"));
        if let Some(next) = next {
            headers.insert("sloplet-next", next.into());
        }
        return Ok(response);
    }
    let next = next.map_or_else(|| "null".to_owned(), |next| next.to_string());
    // Records are JSON, and given as they are.
    let body = format!("{{\"records\":[{}],\"next\":{next}}}", lines.join(","));
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

fn find(app: &App, view: &View, which: &Which, limit: usize) -> Result<Found, ApiError> {
    let filter = view.filter(app, which)?;
    let all = app.ledger().query(Filter { after_seq: which.after, ..Filter::default() })?;
    let (mut found, mut bytes) = (Found { lines: Vec::new(), next: None }, 0);
    for (looked_at, record) in all.enumerate() {
        let record = match record {
            // What a verification is for.
            Err(LedgerError::Damaged { .. }) => continue,
            record => record?,
        };
        if filter.matches(&record) && view.shows(app, &record) {
            bytes += record.line().len();
            found.lines.push(record.line().to_owned());
        }
        if found.lines.len() == limit || bytes > PAGE_BYTES || looked_at == LOOKED_AT {
            found.next = Some(record.seq);
            break;
        }
    }
    Ok(found)
}

/// What is known from elsewhere.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Elsewhere {
    /// The public key, 64 hexadecimal digits. Without, the ledger's own is believed.
    #[param(pattern = "^[0-9a-f]{64}$")]
    key: Option<String>,
    /// A head that was kept elsewhere, as JSON: the ledger must contain it.
    #[param(max_length = 1000)]
    head: Option<String>,
}

/// What a verification found.
#[derive(Debug, Serialize, ToSchema)]
pub struct Verified {
    /// Whether nothing is wrong.
    pub sound: bool,
    /// What is wrong, and where; a hundred at most.
    pub problems: Vec<String>,
    /// The same for programs, and what was looked at.
    #[schema(value_type = Object)]
    pub report: sloplet_ledger::Report,
}

/// Check the whole ledger: whether anything was removed, altered, moved or slipped in, and where. For administrators.
#[utoipa::path(get, path = "/audit/verify", tag = "audit", params(Elsewhere), responses((status = 200, body = Verified)))]
pub async fn verify(
    AppState(app): AppState<App>,
    access: Access,
    Params(elsewhere): Params<Elsewhere>,
) -> Result<Json<Verified>, ApiError> {
    access.require(Scope::Admin)?;
    let key = elsewhere.key.as_deref().map(str::parse).transpose()?;
    let head = elsewhere.head.as_deref().map(serde_json::from_str::<Head>).transpose();
    let head = head.map_err(|error| ApiError::bad_request(format!("head: {error}")))?;
    let known = Known { key, heads: head.into_iter().collect() };
    let report = app.look(move |app| Ok(app.ledger().verify(&known)?)).await?;
    let problems = report.problems.iter().map(ToString::to_string).collect();
    Ok(Json(Verified { sound: report.is_sound(), problems, report }))
}

/// A signed statement of what the ledger holds.
#[derive(Debug, Serialize, ToSchema)]
#[allow(dead_code, reason = "only described")]
pub struct SignedHead {
    /// The last record it speaks for.
    pub seq: u64,
    /// That record's hash.
    pub hash: String,
    /// When it was signed, in milliseconds since 1970.
    pub time_ms: u64,
    /// The public key.
    pub key: String,
    /// Ed25519.
    pub signature: String,
}

/// Sign what was recorded so far. Kept elsewhere, it proves later that nothing of it was changed. For administrators.
#[utoipa::path(get, path = "/audit/head", tag = "audit", responses((status = 200, body = SignedHead)))]
pub async fn head(AppState(app): AppState<App>, access: Access) -> Result<Json<Head>, ApiError> {
    access.require(Scope::Admin)?;
    Ok(Json(app.look(|app| Ok(app.ledger().head()?)).await?))
}

/// Read what a command printed, by the digest in its record. A long output lacks its middle. For administrators.
#[utoipa::path(get, path = "/audit/outputs/{digest}", tag = "audit",
    params(("digest" = String, Path, pattern = "^[0-9a-f]{64}$", description = "SHA-256 of the output")),
    responses((status = 200, content_type = "application/octet-stream", body = Binary)))]
pub async fn output(
    AppState(app): AppState<App>,
    access: Access,
    Segments(digest): Segments<String>,
) -> Result<Response, ApiError> {
    access.require(Scope::Admin)?;
    let stored = app.look(move |app| Ok(app.ledger().outputs().load(&digest)?)).await?;
    let stored = stored.ok_or_else(|| ApiError::not_found("no such output is stored: it was empty, or is too old"))?;
    let complete = if stored.complete { "true" } else { "false" };
    let headers = [
        ("content-type", "application/octet-stream"),
        ("x-content-type-options", "nosniff"),
        ("sloplet-complete", complete),
    ];
    Ok((headers, stored.content).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_absolute_or_ago() {
        assert_eq!(moment("since", "1700000000000").unwrap(), 1_700_000_000_000);
        let since = moment("since", "24h").unwrap();
        let day = now_ms() - since;
        assert!((86_400_000..86_460_000).contains(&day), "{day}");
        assert!(moment("since", "1h30m").is_ok() && moment("since", "250ms").is_ok());
        for bad in ["", "yesterday", "-1", "99999999999999999999999", "0.5", "1.5h", "5i", "1h 5m", "1h5", "5min"] {
            assert!(moment("since", bad).is_err(), "{bad}");
        }
    }
}
