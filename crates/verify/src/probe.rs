//! What a probe is.

use std::fmt;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use sloplet_policy::Feature;

use crate::drill::Drill;
use crate::part::Parts;
use crate::settings::Settings;

/// One thing that must not work in a sandbox.
pub struct Probe {
    /// Its name: letters, digits and dashes.
    pub name: &'static str,
    /// Its numbers in the list of containment probes.
    pub ids: &'static [u8],
    /// What it tries.
    pub tries: &'static str,
    /// Why that matters.
    pub why: &'static str,
    /// What a wall must claim for the probe to apply.
    pub needs: &'static [Feature],
    /// How it is done.
    pub kind: Kind,
}

/// How a probe is done.
pub enum Kind {
    /// By attempts that run alike on the host and inside.
    Attempts {
        /// What they are.
        parts: fn(&Settings, &mut Parts),
        /// Refusals that are as good as the usual ones here.
        refusals: &'static [i32],
    },
    /// With the host's hand, in sandboxes of its own.
    Drill(for<'a> fn(&'a Drill<'a>) -> Pending<'a>),
}

/// A drill under way.
pub type Pending<'a> = Pin<Box<dyn Future<Output = Finding> + 'a>>;

/// What a drill found.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The verdict.
    pub verdict: Verdict,
    /// What the control showed.
    pub control: String,
    /// What happened inside, and what the host's canaries say.
    pub detail: String,
}

/// What is said of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It works outside and does not inside.
    Contained,
    /// The wall does not claim it, or there is nothing to attack.
    NotApplicable,
    /// Nothing can be said.
    Inconclusive,
    /// It works inside.
    Breach,
}

impl fmt::Display for Verdict {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Contained => "contained",
            Self::NotApplicable => "not applicable",
            Self::Inconclusive => "inconclusive",
            Self::Breach => "BREACH",
        })
    }
}

impl Finding {
    /// It works outside and does not inside.
    pub fn contained(control: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { verdict: Verdict::Contained, control: control.into(), detail: detail.into() }
    }

    /// It works inside.
    pub fn breach(control: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { verdict: Verdict::Breach, control: control.into(), detail: detail.into() }
    }

    /// Nothing can be said.
    pub fn inconclusive(control: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { verdict: Verdict::Inconclusive, control: control.into(), detail: detail.into() }
    }

    /// There is nothing to attack.
    pub fn not_applicable(detail: impl Into<String>) -> Self {
        Self { verdict: Verdict::NotApplicable, control: String::new(), detail: detail.into() }
    }

    /// There is nothing to attack, because the kernel that answers is not the host's.
    pub fn of_own_kernel(what: &str) -> Self {
        Self::not_applicable(format!("the {what} of its own kernel are not the host's"))
    }

    /// Contained if `held`.
    pub fn judge(held: bool, control: impl Into<String>, detail: impl Into<String>) -> Self {
        if held { Self::contained(control, detail) } else { Self::breach(control, detail) }
    }
}
