//! A sandbox's way out: its rules, what went through, and who waits for a person.

use axum::Json;
use axum::extract::State as AppState;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sloplet_egress::Answer;
use sloplet_engine::outward::approvals::Waiting as Asked;
use sloplet_policy::{Budget, Network};
use utoipa::ToSchema;

use super::extract::{Payload, Segments};
use super::reach::{self, NetworkRules, Spending};
use super::sandboxes::find;
use crate::app::App;
use crate::auth::{Access, Scope};
use crate::error::ApiError;

/// What a sandbox may reach, and what it did reach.
#[derive(Debug, Serialize, ToSchema)]
pub struct WayOut {
    /// The rules.
    #[schema(value_type = NetworkRules)]
    pub rules: Network,
    /// What went through since the server opened it.
    #[schema(value_type = Traffic)]
    pub traffic: sloplet_egress::Counters,
}

/// What went through a sandbox's way out.
#[derive(Debug, Serialize, ToSchema)]
pub struct Traffic {
    /// Connections that are open now.
    pub open: u64,
    /// Connections that were tried.
    pub connections: u64,
    /// Connections that were let through.
    pub allowed: u64,
    /// Connections that were refused or cut.
    pub denied: u64,
    /// Connections and questions beyond a limit.
    pub limited: u64,
    /// Questions for names.
    pub lookups: u64,
    /// Questions for names that it may not reach.
    pub lookups_denied: u64,
    /// Bytes that left the sandbox.
    pub bytes_up: u64,
    /// Bytes that came in.
    pub bytes_down: u64,
}

/// Tell what a sandbox may reach, and what went through.
#[utoipa::path(get, path = "/sandboxes/{id}/network", tag = "network",
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = WayOut)))]
pub async fn get(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<Json<WayOut>, ApiError> {
    let record = find(&app, &access, &id)?;
    let traffic = app.sandboxes().traffic(&access.owner, &record.id)?;
    Ok(Json(WayOut { rules: record.request.spec.network, traffic }))
}

/// Replace what a sandbox may reach. It holds at once, for connections that stand, too.
#[utoipa::path(put, path = "/sandboxes/{id}/network", tag = "network", request_body = NetworkRules,
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = WayOut)))]
pub async fn replace(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Payload(network): Payload<Network>,
) -> Result<Json<WayOut>, ApiError> {
    access.require(Scope::Use)?;
    let record = find(&app, &access, &id)?;
    reach::check(&network, &access)?;
    let record = app.sandboxes().set_network(&access.owner, &record.id, network, None).await?;
    let traffic = app.sandboxes().traffic(&access.owner, &record.id)?;
    Ok(Json(WayOut { rules: record.request.spec.network, traffic }))
}

/// What a sandbox may use up, and what it has used.
#[derive(Debug, Serialize, ToSchema)]
pub struct Purse {
    /// The budget.
    #[schema(value_type = Spending)]
    pub budget: Budget,
    /// LLM calls that were let through.
    pub calls: u64,
    /// Tokens they used.
    pub tokens: u64,
    /// What they cost, in millionths of a dollar.
    pub micro_usd: u64,
    /// What is set aside for calls under way, in millionths of a dollar.
    pub reserved_micro_usd: u64,
}

fn purse(app: &App, record: &sloplet_engine::life::Record) -> Purse {
    let owner = sloplet_gateway::account::Owner::Sandbox(record.id.clone());
    let account = app.sandboxes().engine().accounts().record(&owner);
    Purse {
        budget: record.request.spec.budget.clone(),
        calls: account.calls,
        tokens: account.spent.tokens,
        micro_usd: account.spent.micro_usd,
        reserved_micro_usd: account.reserved.micro_usd,
    }
}

/// Tell what a sandbox may use up, and what it has used.
#[utoipa::path(get, path = "/sandboxes/{id}/budget", tag = "network",
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = Purse)))]
pub async fn budget(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<Json<Purse>, ApiError> {
    let record = find(&app, &access, &id)?;
    Ok(Json(purse(&app, &record)))
}

/// Replace what a sandbox may use up. What is spent stays spent.
#[utoipa::path(put, path = "/sandboxes/{id}/budget", tag = "network", request_body = Spending,
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = Purse)))]
pub async fn set_budget(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Payload(budget): Payload<Budget>,
) -> Result<Json<Purse>, ApiError> {
    access.require(Scope::Use)?;
    let record = find(&app, &access, &id)?;
    let record = app.sandboxes().set_budget(&access.owner, &record.id, budget).await?;
    Ok(Json(purse(&app, &record)))
}

/// Connections that wait for a person.
#[derive(Debug, Serialize, ToSchema)]
pub struct Waiting {
    /// Oldest first.
    #[schema(value_type = Vec<Approval>)]
    pub approvals: Vec<Asked>,
}

/// A connection that waits for a person.
#[derive(Debug, Serialize, ToSchema)]
pub struct Approval {
    /// Names it in the answer.
    pub id: u64,
    /// The sandbox.
    pub sandbox: String,
    /// Since when, in milliseconds since 1970.
    pub asked_ms: u64,
    /// Its number in the record.
    pub connection: u64,
    /// The name it wants.
    pub name: Option<String>,
    /// The address it wants, where it has no name.
    pub address: Option<String>,
    /// The port it wants.
    pub port: u16,
    /// The rule that says to ask.
    pub rule: String,
}

/// List connections that wait for a person.
#[utoipa::path(get, path = "/approvals", tag = "network", responses((status = 200, body = Waiting)))]
pub async fn approvals(AppState(app): AppState<App>, access: Access) -> Json<Waiting> {
    Json(Waiting { approvals: app.sandboxes().approvals().list(&access.owner) })
}

/// What a person says.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GivenAnswer {
    /// The answer.
    answer: Word,
}

/// What a person may say.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// This time.
    Once,
    /// This time and until the rules change.
    Always,
    /// No.
    Deny,
}

/// Answer for a connection that waits.
#[utoipa::path(post, path = "/approvals/{id}", tag = "network", request_body = GivenAnswer,
    params(("id" = u64, Path, description = "Its number")), responses((status = 204)))]
pub async fn answer(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Payload(given): Payload<GivenAnswer>,
) -> Result<StatusCode, ApiError> {
    access.require(Scope::Use)?;
    let answer = match given.answer {
        Word::Once => Answer::Once,
        Word::Always => Answer::Always,
        Word::Deny => Answer::Deny,
    };
    let gone = || ApiError::not_found(format!("nothing waits under '{}'", id.escape_default()));
    let number: u64 = id.parse().map_err(|_| gone())?;
    match app.sandboxes().approvals().answer(&access.owner, number, answer) {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(gone()),
    }
}
