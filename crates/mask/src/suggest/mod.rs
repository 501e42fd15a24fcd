//! Rules for a file, from looking at it. Careful: what is not recognised gets no rule, so that masking refuses until
//! somebody has said what it is.

mod column;
mod sample;

use std::path::Path;

use serde::Serialize;

use crate::MaskError;
use crate::formats::Format;
use crate::rule::Kind;
use column::Column;

/// Rules that could be.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Suggestion {
    /// By table and column.
    pub columns: Vec<Suggested>,
    /// As a rules file.
    pub rules: String,
}

/// For one column.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Suggested {
    /// Its table.
    pub table: String,
    /// Its name or path.
    pub column: String,
    /// The rule; none if it was not recognised.
    pub rule: Option<Kind>,
    /// Whether all values were different.
    pub unique: bool,
    /// The domain, if others should share it.
    pub domain: Option<String>,
    /// Why. Never quotes a value.
    pub why: String,
}

/// Proposes rules for a file, from its columns' names and its first rows.
pub fn suggest(source: &Path, format: Option<Format>) -> Result<Suggestion, MaskError> {
    let format = format.map_or_else(|| Format::of(source), Ok)?;
    let tables = sample::read(source, format)?;
    let mut columns = Vec::new();
    let mut rules = String::from(
        "# A proposal: look at every line. Columns without a rule are refused until they have one;\n\
         # \"keep\" declares one safe.\n",
    );
    for (table, sampled) in tables {
        rules.push_str(&format!("\n[table.{}]\n", key(&table)));
        for one in sampled {
            let suggested = judge(&table, &one);
            rules.push_str(&line(&suggested));
            columns.push(suggested);
        }
    }
    Ok(Suggestion { columns, rules })
}

fn judge(table: &str, column: &Column) -> Suggested {
    let (rule, why) = column.judge();
    let identifies = matches!(rule, Some(Kind::Id | Kind::Email | Kind::Uuid | Kind::Phone | Kind::Username));
    let domain = rule.filter(|kind| matches!(kind, Kind::Id | Kind::Uuid)).and_then(|_| column.domain(table));
    Suggested {
        table: table.to_owned(),
        column: column.name.clone(),
        rule,
        // A reference must have the rule of what it refers to: both say unique, whatever the sample says.
        unique: domain.is_some() || identifies && column.all_different(),
        domain,
        why,
    }
}

fn line(suggested: &Suggested) -> String {
    let name = key(&suggested.column);
    let Some(kind) = suggested.rule else {
        return format!("# {name} = \"keep\"  # {}: say what it is\n", suggested.why);
    };
    let kind = kind.name();
    let domain = suggested.domain.as_deref().map(|domain| format!(", domain = \"{domain}\"")).unwrap_or_default();
    let unique = if suggested.unique { ", unique = true" } else { "" };
    if domain.is_empty() && unique.is_empty() {
        return format!("{name} = \"{kind}\"  # {}\n", suggested.why);
    }
    format!("{name} = {{ rule = \"{kind}\"{domain}{unique} }}  # {}\n", suggested.why)
}

/// A key of TOML, in quotes if it must be.
fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(bare) {
        return name.to_owned();
    }
    toml::Value::String(name.to_owned()).to_string()
}
