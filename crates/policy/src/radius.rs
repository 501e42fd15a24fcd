//! The blast radius: what no sandbox may ever reach, as the user lists it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::network::{Host, Network, Rule};
use crate::spec::Spec;

/// Hosts, paths and variables that a mistake could damage: never mounted, never allowed, never passed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Radius {
    /// Names or addresses, `*.name` for all below it, with or without a port.
    pub hosts: Vec<String>,
    /// Files and folders; `~` is the home folder.
    pub paths: Vec<PathBuf>,
    /// Names of variables; a `*` at the end stands for any rest.
    pub env: Vec<String>,
}

/// Something of the blast radius was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RadiusError {
    /// A variable.
    #[error("the variable '{name}' is protected (rule '{rule}' of [protect] env) and is never passed into a sandbox")]
    Env {
        /// The variable.
        name: String,
        /// The rule.
        rule: String,
    },
    /// A host.
    #[error("the host '{name}' is protected (rule '{rule}' of [protect] hosts) and can be allowed to no sandbox")]
    Host {
        /// The host.
        name: String,
        /// The rule.
        rule: String,
    },
    /// Every address, and hosts that nobody can list.
    #[error(
        "'{rule}' of [protect] hosts stands for hosts whose addresses nobody can list, so '{asked}' would reach them by address: name the hosts, or allow what is needed by name"
    )]
    Unlisted {
        /// What would reach them.
        asked: String,
        /// The rule.
        rule: String,
    },
}

impl Radius {
    /// Whether nothing is listed.
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// The same, with `~` replaced by the home folder.
    pub fn at_home(mut self, home: Option<&std::path::Path>) -> Self {
        for path in &mut self.paths {
            if let (Some(home), Ok(rest)) = (home, path.strip_prefix("~")) {
                *path = home.join(rest);
            }
        }
        self
    }

    /// What both list.
    pub fn joined(mut self, other: Self) -> Self {
        self.hosts.extend(other.hosts);
        self.paths.extend(other.paths);
        self.env.extend(other.env);
        self
    }

    /// Refuses variables, `NAME=value` each, of which one is listed.
    pub fn check_env<'a>(&self, variables: impl IntoIterator<Item = &'a String>) -> Result<(), RadiusError> {
        for variable in variables {
            let name = variable.split('=').next().unwrap_or_default();
            let matches = |rule: &&String| match rule.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == rule.as_str(),
            };
            if let Some(rule) = self.env.iter().find(matches) {
                return Err(RadiusError::Env { name: name.to_owned(), rule: rule.clone() });
            }
        }
        Ok(())
    }

    /// Refuses network rules that would allow a listed host, and secrets for one.
    pub fn check_spec(&self, spec: &Spec) -> Result<(), RadiusError> {
        self.check_network(&spec.network)?;
        spec.secrets.iter().flat_map(|secret| &secret.hosts).try_for_each(|host| self.check_host(&host.to_string()))
    }

    /// Refuses network rules that would allow a listed host.
    pub fn check_network(&self, network: &Network) -> Result<(), RadiusError> {
        network.allow.iter().chain(&network.ask).try_for_each(|rule| self.check_host(&rule.to_string()))?;
        let wide = |rule: &&Rule| matches!(&rule.host, Host::Net(net) if !net.is_single());
        let wide = match network.internet {
            true => Some("--allow-internet".to_owned()),
            false => network.allow.iter().chain(&network.ask).find(wide).map(Rule::to_string),
        };
        match (wide, self.hosts.iter().find(|host| host.contains('*'))) {
            (Some(asked), Some(rule)) => Err(RadiusError::Unlisted { asked, rule: rule.clone() }),
            _ => Ok(()),
        }
    }

    /// Rules that keep a sandbox from the listed hosts whatever else it may reach: all of the internet, or a network around
    /// one of them.
    pub fn denials(&self) -> Vec<Rule> {
        self.hosts.iter().filter_map(|host| parts(host).0.parse().ok()).collect()
    }

    /// Refuses a rule that would allow a listed host: the name itself, one below it, or a pattern that covers it. The port
    /// does not matter: what is protected is the host.
    pub fn check_host(&self, asked: &str) -> Result<(), RadiusError> {
        let (name, _) = parts(asked);
        for rule in &self.hosts {
            let (protected, _) = parts(rule);
            if covers(&protected, &name) || covers(&name, &protected) {
                return Err(RadiusError::Host { name: asked.to_owned(), rule: rule.clone() });
            }
        }
        Ok(())
    }
}

/// A name without port, case and final dot, and its port.
fn parts(text: &str) -> (String, Option<u16>) {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, port.parse().ok()),
        _ => (text, None),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    (name.to_ascii_lowercase(), port)
}

/// Whether a pattern stands for a name (or for a pattern below it).
fn covers(pattern: &str, name: &str) -> bool {
    if pattern == "*" || pattern == name {
        return true;
    }
    let name = name.strip_prefix("*.").unwrap_or(name);
    pattern.strip_prefix("*.").is_some_and(|end| name == end || name.ends_with(&format!(".{end}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn radius() -> Radius {
        let text = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
        Radius {
            hosts: text(&["db.internal", "*.corp.example", "api.pay.example:443"]),
            paths: vec!["~/.ssh".into()],
            env: text(&["PAY_KEY", "AWS_*"]),
        }
    }

    #[test]
    fn listed_variables_are_refused_by_name_of_the_rule() {
        let radius = radius();
        for (variable, rule) in [("PAY_KEY=x", "PAY_KEY"), ("AWS_SECRET=y", "AWS_*")] {
            let error = radius.check_env(&[variable.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(&format!("'{rule}'")) && !error.contains("=x"), "{error}");
        }
        radius.check_env(&["PAY_KEYS=1".to_owned(), "PATH=PAY_KEY".to_owned()]).unwrap();
    }

    #[test]
    fn no_rule_of_the_network_may_cover_a_listed_host() {
        let radius = radius();
        for host in [
            "db.internal",
            "DB.Internal.:5432",
            "git.corp.example",
            "corp.example",
            "*.corp.example",
            "*",
            "*.pay.example",
            "api.pay.example:80",
        ] {
            assert!(radius.check_host(host).is_err(), "{host}");
        }
        for host in ["api.anthropic.com:443", "notcorp.example", "db.internal.example", "*.githubusercontent.com"] {
            assert!(radius.check_host(host).is_ok(), "{host}");
        }
    }

    #[test]
    fn hosts_that_nobody_can_list_and_every_address_are_refused_as_a_pair() {
        let network = |allow: &str| Network { allow: vec![allow.parse().unwrap()], ..Network::default() };
        let internet = Network { internet: true, ..Network::default() };
        for wide in [internet.clone(), network("93.184.0.0/16")] {
            let error = radius().check_network(&wide).unwrap_err().to_string();
            assert!(error.contains("*.corp.example"), "{error}");
        }
        radius().check_network(&network("93.184.216.34")).unwrap();
        // Those with a name are looked up at each dial.
        Radius { hosts: vec!["db.internal".into()], ..Radius::default() }.check_network(&internet).unwrap();
    }

    #[test]
    fn home_is_where_the_user_is() {
        assert_eq!(radius().at_home(Some("/home/a".as_ref())).paths, [PathBuf::from("/home/a/.ssh")]);
    }
}
