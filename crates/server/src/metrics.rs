//! Counters for Prometheus.

mod pools;

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::extract::State as Extract;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sloplet_egress::Counters;
use sloplet_engine::driver::Usage;
use sloplet_engine::life::{Record, State};
use sloplet_gateway::account::Owner;

use crate::app::App;
use crate::auth::{Access, Scope};
use crate::error::ApiError;
use crate::v1::Verification;

/// Upper bounds of the request times that are counted, in seconds.
const BUCKETS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 10.0];

const STATES: [State; 5] = [State::Creating, State::Running, State::Paused, State::Stopped, State::Failed];

/// What is counted.
#[derive(Debug)]
pub struct Metrics {
    started: Instant,
    /// By the first digit of the status.
    answers: [AtomicU64; 6],
    within: [AtomicU64; BUCKETS.len()],
    answered: AtomicU64,
    answer_us: AtomicU64,
    signatures: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            answers: Default::default(),
            within: Default::default(),
            answered: AtomicU64::new(0),
            answer_us: AtomicU64::new(0),
            signatures: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// A request was answered; streams may go on.
    pub fn answered(&self, status: StatusCode, after: Duration) {
        let class = usize::from(status.as_u16() / 100).min(5);
        self.answers[class].fetch_add(1, Ordering::Relaxed);
        for (bound, count) in BUCKETS.iter().zip(&self.within) {
            if after.as_secs_f64() <= *bound {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.answer_us.fetch_add(after.as_micros() as u64, Ordering::Relaxed);
    }

    /// A signature was compared with a sandbox's token.
    pub fn signature_compared(&self) {
        self.signatures.fetch_add(1, Ordering::Relaxed);
    }

    fn write(&self, out: &mut Page, records: &[Record], usage: &[(Record, Used)], written: u64) {
        let count = |value: &AtomicU64| value.load(Ordering::Relaxed);
        out.family("sloplet_up_seconds", "gauge", "How long the server has been up.");
        out.sample("sloplet_up_seconds", "", self.started.elapsed().as_secs_f64());
        out.family("sloplet_http_responses_total", "counter", "Answered requests by class of status.");
        for class in 1..6 {
            let label = format!("class=\"{class}xx\"");
            out.sample("sloplet_http_responses_total", &label, count(&self.answers[class]) as f64);
        }
        let name = "sloplet_http_response_seconds";
        out.family(name, "histogram", "Time until a request was answered.");
        for (bound, within) in BUCKETS.iter().zip(&self.within) {
            out.sample(&format!("{name}_bucket"), &format!("le=\"{bound}\""), count(within) as f64);
        }
        out.sample(&format!("{name}_bucket"), "le=\"+Inf\"", count(&self.answered) as f64);
        out.sample(&format!("{name}_sum"), "", count(&self.answer_us) as f64 / 1e6);
        out.sample(&format!("{name}_count"), "", count(&self.answered) as f64);
        let name = "sloplet_signature_comparisons_total";
        out.family(name, "counter", "Tokens that signatures of file addresses were compared with.");
        out.sample(name, "", count(&self.signatures) as f64);
        out.family("sloplet_sandboxes", "gauge", "Sandboxes by state.");
        for state in STATES {
            let number = records.iter().filter(|record| record.state == state).count();
            out.sample("sloplet_sandboxes", &format!("state=\"{}\"", state.name()), number as f64);
        }
        out.family(
            "sloplet_ledger_records_total",
            "counter",
            "Records in the ledger, those that were pruned included.",
        );
        out.sample("sloplet_ledger_records_total", "", written as f64);
        let figures: [Figure; 13] = [
            ("sloplet_sandbox_cpu_seconds_total", "counter", "Processor time.", |used| {
                used.machine.cpu_us as f64 / 1e6
            }),
            ("sloplet_sandbox_memory_bytes", "gauge", "Memory in use.", |used| used.machine.memory as f64),
            ("sloplet_sandbox_memory_peak_bytes", "gauge", "Most memory ever.", |used| used.machine.memory_peak as f64),
            ("sloplet_sandbox_pids", "gauge", "Processes and threads.", |used| used.machine.pids as f64),
            ("sloplet_sandbox_disk_bytes", "gauge", "Bytes written that are still there.", |used| {
                used.machine.disk_used as f64
            }),
            ("sloplet_sandbox_disk_limit_bytes", "gauge", "Bytes it may write.", |used| used.machine.disk_total as f64),
            ("sloplet_sandbox_network_sent_bytes_total", "counter", "Bytes that left it.", |used| {
                used.traffic.bytes_up as f64
            }),
            ("sloplet_sandbox_network_received_bytes_total", "counter", "Bytes that came in.", |used| {
                used.traffic.bytes_down as f64
            }),
            ("sloplet_sandbox_network_allowed_total", "counter", "Connections that were let through.", |used| {
                used.traffic.allowed as f64
            }),
            ("sloplet_sandbox_network_denied_total", "counter", "Connections that were refused or cut.", |used| {
                used.traffic.denied as f64
            }),
            ("sloplet_sandbox_network_open", "gauge", "Connections that are open.", |used| used.traffic.open as f64),
            ("sloplet_sandbox_llm_calls_total", "counter", "LLM calls that were let through.", |used| {
                used.calls as f64
            }),
            ("sloplet_sandbox_spend_dollars_total", "counter", "What its LLM calls cost.", |used| used.dollars),
        ];
        for (name, kind, help, figure) in figures {
            out.family(name, kind, help);
            for (record, usage) in usage {
                out.sample(name, &format!("sandbox=\"{}\"", record.id), figure(usage));
            }
        }
    }
}

type Figure = (&'static str, &'static str, &'static str, fn(&Used) -> f64);

/// What one sandbox uses and has used.
struct Used {
    machine: Usage,
    traffic: Counters,
    calls: u64,
    dollars: f64,
}

/// Prometheus' text format.
#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn verification(&mut self, latest: &Verification) {
        let figures = [
            (
                "sloplet_verification_age_seconds",
                "Since the newest verification of containment.",
                latest.age_seconds as f64,
            ),
            ("sloplet_verification_passed", "Whether nothing got out.", f64::from(u8::from(latest.passed))),
            ("sloplet_verification_breaches", "Probes that got out.", latest.breaches as f64),
            ("sloplet_verification_inconclusive", "Probes that prove nothing.", latest.inconclusive as f64),
        ];
        for (name, help, value) in figures {
            self.family(name, "gauge", help);
            self.sample(name, &format!("driver=\"{}\"", latest.driver), value);
        }
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }
}

/// Answers Prometheus. It tells of everybody's sandboxes, so that takes an administrator's key.
pub async fn serve(Extract(app): Extract<App>, access: Access) -> Result<Response, ApiError> {
    access.require(Scope::Admin)?;
    let used = |(record, machine): (Record, Usage)| {
        let traffic = app.sandboxes().traffic(&record.owner, &record.id).unwrap_or_default();
        let account = app.sandboxes().engine().accounts().record(&Owner::Sandbox(record.id.clone()));
        let dollars = account.spent.micro_usd as f64 / 1e6;
        (record, Used { machine, traffic, calls: account.calls, dollars })
    };
    let usage: Vec<_> = app.sandboxes().usage_of_all().await.into_iter().map(used).collect();
    let written = app.look(|app| Ok(app.ledger().last_seq()?)).await?;
    let mut page = Page::default();
    app.metrics().write(&mut page, &app.sandboxes().all(), &usage, written);
    pools::write(&mut page, &app.sandboxes().all_pools());
    if let Some(latest) = Verification::standing(&app) {
        page.verification(&latest);
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page.0).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_every_bucket_and_counts_answers_once() {
        let metrics = Metrics::default();
        metrics.answered(StatusCode::OK, Duration::from_millis(2));
        metrics.answered(StatusCode::NOT_FOUND, Duration::from_secs(60));
        let mut page = Page::default();
        metrics.write(&mut page, &[], &[], 7);
        for line in [
            "sloplet_http_responses_total{class=\"2xx\"} 1",
            "sloplet_http_responses_total{class=\"4xx\"} 1",
            "sloplet_http_response_seconds_bucket{le=\"0.001\"} 0",
            "sloplet_http_response_seconds_bucket{le=\"0.0025\"} 1",
            "sloplet_http_response_seconds_bucket{le=\"+Inf\"} 2",
            "sloplet_sandboxes{state=\"running\"} 0",
            "sloplet_ledger_records_total 7",
        ] {
            assert!(page.0.lines().any(|written| written == line), "{line}\n{}", page.0);
        }
    }
}
