//! Which requests are calls that cost money, and whether they are paid for.

use bytes::Bytes;
use hyper::Method;
use hyper::header::{CONTENT_ENCODING, HeaderMap};
use hyper::http::uri::PathAndQuery;
use sloplet_policy::Budget;

use crate::account::Amount;
use crate::denied::Denied;
use crate::event::{Event, LlmCall};
use crate::exchange::Exchange;
use crate::gateway::Config;
use crate::llm::{Call, Endpoint, Kind, kind};
use crate::meter::{Meter, tell};
use crate::vault::all_of;

impl Exchange {
    /// Whether a request is a call that is counted.
    pub fn metered(
        &self,
        config: &Config,
        budget: &Budget,
        method: &Method,
        address: &PathAndQuery,
        upgrades: bool,
    ) -> Result<Option<Endpoint>, Denied> {
        let Some(shape) = config.shape(&self.target.name, self.target.port) else { return Ok(None) };
        let capped = budget.usd.is_some() || budget.tokens.is_some();
        if upgrades && capped {
            let message =
                "sloplet: under a budget this API is used by HTTP requests: what goes over a socket is not counted";
            return Err(Denied::uncounted(shape, message));
        }
        match kind(shape, method, address.path()) {
            Kind::Metered(endpoint) => Ok(Some(endpoint)),
            Kind::Unknown if capped => {
                let path: String = address.path().chars().take(100).collect();
                let message =
                    format!("sloplet: what {method} {path} costs is not known, so it is refused under a budget");
                Err(Denied::uncounted(shape, message))
            }
            Kind::Unknown | Kind::Free => Ok(None),
        }
    }

    /// Reads a call and keeps back what it may cost.
    pub fn admit(
        &self,
        config: &Config,
        budget: &Budget,
        endpoint: Endpoint,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<(Option<Meter>, Bytes), Denied> {
        let shape = endpoint.shape();
        let capped = budget.usd.is_some() || budget.tokens.is_some();
        let mut event = LlmCall {
            connection: self.target.connection,
            host: self.target.name.clone(),
            provider: shape.name(),
            endpoint: endpoint.name(),
            request_bytes: body.len() as u64,
            decision: "refused",
            ..LlmCall::default()
        };
        let refuse = |mut event: LlmCall, denied: Denied| {
            event.status = denied.status.as_u16();
            event.reason = Some(denied.message.clone());
            self.tell(Event::LlmCall(Box::new(event)));
            denied
        };
        let encoded = headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity");
        let read = match encoded {
            true => Err("the request's body is compressed".to_owned()),
            false => Call::read(endpoint, body.clone()).map_err(|error| error.to_string()),
        };
        let call = match read {
            Ok(call) => call,
            // Without a cap nothing depends on it: let the API say what is wrong.
            Err(_) if !capped => return Ok((None, body)),
            Err(why) => {
                return Err(refuse(
                    event,
                    Denied::uncounted(shape, format!("sloplet: {why}; under a budget it is refused")),
                ));
            }
        };
        event.model.clone_from(&call.model);
        event.stream = call.stream;
        event.request_sha256.clone_from(&call.sha256);
        event.prompt = all_of(config.secrets.iter()).replace_text(&call.prompt);

        let price = config.prices.find(&call.model);
        if price.is_none() && budget.usd.is_some() {
            let message = format!(
                "sloplet: model '{}' has no price, so it is refused under a budget in dollars: add it to {}",
                call.model,
                config.prices.file()
            );
            return Err(refuse(event, Denied::uncounted(shape, message)));
        }
        if let (true, Some(why)) = (capped, &call.unbounded) {
            let message = format!("sloplet: this call has no upper bound and is refused under a budget: {why}");
            return Err(refuse(event, Denied::uncounted(shape, message)));
        }
        let worst = call.worst(price.as_deref());
        let need = Amount { micro_usd: price.as_ref().map_or(0, |price| price.cost(&worst)), tokens: worst.tokens() };
        event.reserved_micro_usd = need.micro_usd;
        event.reserved_tokens = need.tokens;
        let reservation = match config.account.reserve(need) {
            Ok(reservation) => reservation,
            Err(refusal) => {
                let denied = refuse(event, Denied::over(shape, &refusal));
                tell(&self.shared.events, refusal.reached);
                return Err(denied);
            }
        };
        event.decision = "allowed";
        let mut meter = Meter::new(endpoint, reservation, price, worst, event, self.shared.events.clone());
        meter.usage_added = call.usage_added;
        Ok((Some(meter), call.body))
    }
}
