//! Traces for OpenTelemetry: what took how long, sent to a collector over HTTP as OTLP's JSON.
//!
//! Spans are `tracing`'s own, at the level `debug`: without a collector nobody looks at them, and they cost nothing.
//! [`Traces`] turns each one that ends into a line of OTLP (`otlp`); `export` sends them in batches. OpenTelemetry's own
//! crates would bring a second HTTP stack and Protocol Buffers for these few hundred lines.
//!
//! A request's header `traceparent` is honoured: its span is then part of the caller's trace. No header, query, environment
//! or argument of a command is ever told.

mod export;
mod otlp;

use std::time::{SystemTime, UNIX_EPOCH};

use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

pub use export::{Collector, Exporter};
use otlp::Span;

/// The layer that hears of spans.
pub struct Traces {
    outgoing: tokio::sync::mpsc::Sender<serde_json::Value>,
}

impl Traces {
    /// Whether a span is told: ours, not those of libraries.
    pub fn wants(metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("sloplet_")
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Traces {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(new) = context.span(id) else { return };
        let mut span = Span::begin(attributes.metadata().name(), now());
        attributes.record(&mut span);
        if let Some(parent) = new.parent()
            && let Some(parent) = parent.extensions().get::<Span>()
        {
            span.belongs_to(parent);
        }
        new.extensions_mut().insert(span);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(known) = context.span(id)
            && let Some(span) = known.extensions_mut().get_mut::<Span>()
        {
            values.record(span);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let ended = context.span(&id).and_then(|known| known.extensions_mut().remove::<Span>());
        if let Some(span) = ended {
            // A collector that is slow or gone must not slow this down: what does not fit is lost.
            let _ = self.outgoing.try_send(span.end(now()));
        }
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}
