//! Everything that the configuration says must never be reached.

use crate::part::{Parts, nothing};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "blast-radius",
    ids: &[65],
    tries: "reach every host, path and variable of [protect]",
    why: "seed 004, step 1: this list is what a mistake could damage",
    needs: &[],
    // ENETUNREACH, ECONNREFUSED, EHOSTUNREACH, ENOTDIR
    kind: Kind::Attempts { parts, refusals: &[101, 111, 113, 20] },
};

fn parts(settings: &Settings, parts: &mut Parts) {
    for path in settings.protected_paths.clone() {
        // What is protected need not exist.
        parts.optional(format!("path {}", path.display()), move |_| {
            let meta = std::fs::symlink_metadata(&path)?;
            Ok(format!("{} bytes", meta.len()))
        });
    }
    for name in settings.protected_env.clone() {
        parts.optional(format!("variable {name}"), move |_| match std::env::var_os(&name) {
            Some(_) => Ok("it is set".into()),
            None => nothing("not set"),
        });
    }
    for host in settings.protected_hosts.clone() {
        let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name).trim_start_matches("*.").to_owned();
        let ports: Vec<u16> = match host.rsplit_once(':').and_then(|(_, port)| port.parse().ok()) {
            Some(port) => vec![port],
            None => vec![443, 80, 22, 5432],
        };
        parts.optional(format!("host {host}"), move |settings| {
            for port in &ports {
                if let Ok(reached) = super::network::connect(settings, &name, *port) {
                    return Ok(reached);
                }
            }
            nothing("nobody answers")
        });
    }
}
