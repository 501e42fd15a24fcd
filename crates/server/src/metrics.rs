//! Counters for Prometheus.

/// What is counted.
#[derive(Debug, Default)]
pub struct Metrics {}

/// Answers Prometheus.
pub async fn serve() -> &'static str {
    ""
}
