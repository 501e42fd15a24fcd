//! What a verification tells.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::probe::Verdict;

/// One verification of one configuration behind one wall.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// When it began, in milliseconds since 1970.
    pub started_ms: u64,
    /// How long it took.
    pub took_ms: u64,
    /// The wall.
    pub driver: String,
    /// What it says of itself.
    pub isolation: String,
    /// The kernel.
    pub kernel: String,
    /// This host's name.
    pub host: String,
    /// Who verified: root, or the number of an ordinary user.
    pub user: String,
    /// The version of sloplet.
    pub version: String,
    /// What the verification speaks for: a digest of configuration, wall, kernel and binary.
    pub digest: String,
    /// The configuration, for people.
    pub configuration: String,
    /// Whether every probe ran.
    pub complete: bool,
    /// A protection that was taken away on purpose, to test the probes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weakened: Option<String>,
    /// Results, in the order of the list.
    pub results: Vec<Result>,
}

/// What is said of one probe.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Result {
    /// Its name.
    pub probe: String,
    /// Its numbers in the list of containment probes.
    pub ids: Vec<u8>,
    /// What it tries.
    pub tries: String,
    /// Why that matters.
    pub why: String,
    /// The verdict.
    pub verdict: Verdict,
    /// What the same attempts did unconfined.
    pub control: String,
    /// What happened inside.
    pub detail: String,
    /// What the host's canaries say.
    pub canary: String,
    /// Single attempts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// How long it took.
    pub took_ms: u64,
}

/// A single attempt.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Whether hosts may lack what it needs.
    pub optional: bool,
    /// What it did unconfined.
    pub control: String,
    /// Whether that shows that it works.
    pub works: bool,
    /// What it did inside, by user.
    pub inside: BTreeMap<String, String>,
    /// The verdict.
    pub verdict: Verdict,
}

impl Report {
    /// As it is kept, and as digests of it are made.
    pub fn text(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// How many results are of this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.results.iter().filter(|result| result.verdict == verdict).count()
    }

    /// Whether nothing got out.
    pub fn passed(&self) -> bool {
        self.count(Verdict::Breach) == 0
    }

    /// The counts in words.
    pub fn summary(&self) -> String {
        let all = [Verdict::Contained, Verdict::Breach, Verdict::Inconclusive, Verdict::NotApplicable];
        let counts = all.iter().map(|verdict| (self.count(*verdict), verdict));
        let parts: Vec<String> =
            counts.filter(|(count, _)| *count > 0).map(|(count, verdict)| format!("{count} {verdict}")).collect();
        parts.join(", ")
    }
}
