//! What sandboxes cost.

use axum::Json;
use axum::extract::State as AppState;
use serde::{Deserialize, Serialize};
use sloplet_engine::cost::{Costs, KINDS, Summing};
use sloplet_engine::life::clock::now_ms;
use sloplet_ledger::LedgerError;
use utoipa::{IntoParams, ToSchema};

use super::audit::{View, Which, moment};
use super::extract::Params;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// Of what and since when.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Of {
    /// Only this sandbox: its id, or its name (the last that was called so). It may be gone.
    #[param(min_length = 1, max_length = 255)]
    sandbox: Option<String>,
    /// From this time on: so long ago, like `24h`, or in milliseconds since 1970; all that is recorded if left out.
    #[param(pattern = "^([0-9]{1,15}|([0-9]{1,9}(ms|s|m|h|d)){1,4})$", example = "24h")]
    since: Option<String>,
}

/// What was used and what that costs. Money is in millionths of a dollar.
#[derive(Debug, Serialize, ToSchema)]
#[allow(dead_code, reason = "only described")]
pub struct CostFigures {
    /// How long it ran.
    pub running_ms: u64,
    /// Processors it might use, times hours.
    pub cpu_hours: f64,
    /// GiB of memory it might use, times hours.
    pub memory_gib_hours: f64,
    /// What that costs.
    pub compute_micro_usd: u64,
    /// LLM calls that were let through.
    pub calls: u64,
    /// LLM calls that were refused.
    pub calls_refused: u64,
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Of those read, from a cache.
    pub cached_tokens: u64,
    /// What they cost.
    pub tokens_micro_usd: u64,
    /// All of it.
    pub total_micro_usd: u64,
}

/// What one sandbox cost.
#[derive(Debug, Serialize, ToSchema)]
#[allow(dead_code, reason = "only described")]
pub struct CostOfSandbox {
    /// Its id.
    pub sandbox: String,
    /// Its name.
    pub name: Option<String>,
    /// What it used.
    #[serde(flatten)]
    pub figures: CostFigures,
}

/// What a sandbox's time costs, in dollars: nothing, unless the operator set it in `prices.toml`.
#[derive(Debug, Serialize, ToSchema)]
#[allow(dead_code, reason = "only described")]
pub struct Rates {
    /// A processor for an hour.
    pub cpu_hour: f64,
    /// A GiB of memory for an hour.
    pub memory_gib_hour: f64,
}

/// What sandboxes cost.
#[derive(Debug, Serialize, ToSchema)]
#[allow(dead_code, reason = "only described")]
pub struct Cost {
    /// From when, in milliseconds since 1970.
    pub since_ms: u64,
    /// Until when.
    pub until_ms: u64,
    /// What time costs.
    pub rates: Rates,
    /// The dearest first.
    pub sandboxes: Vec<CostOfSandbox>,
    /// All together.
    pub total: CostFigures,
}

/// Tell what sandboxes cost, those that are gone included: their time, for what they might use of processors and memory while
/// they ran, and their LLM calls.
#[utoipa::path(get, path = "/cost", tag = "audit", params(Of), responses((status = 200, body = Cost)))]
pub async fn cost(
    AppState(app): AppState<App>,
    access: Access,
    Params(of): Params<Of>,
) -> Result<Json<Costs>, ApiError> {
    let since = of.since.as_deref().map(|text| moment("since", text)).transpose()?.unwrap_or(0);
    let view = View::of(access);
    let costs = app.look(move |app| {
        let rates = app.sandboxes().engine().prices()?.compute();
        let which = Which { sandbox: of.sandbox, kind: Some(KINDS.join(",")), ..Which::default() };
        let mut summing = Summing::new(since, now_ms(), rates);
        for record in app.ledger().query(view.filter(app, &which)?)? {
            match record {
                Err(LedgerError::Damaged { .. }) => {}
                record => {
                    let record = record?;
                    if view.shows(app, &record) {
                        summing.add(&record);
                    }
                }
            }
        }
        Ok(summing.finish())
    });
    Ok(Json(costs.await?))
}
