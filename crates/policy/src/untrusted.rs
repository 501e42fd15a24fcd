//! What a `sloplet.toml` may say before its owner has vouched for it: less than usual, never more.
//!
//! Such a file may come with a cloned repository, or from code inside a sandbox that writes to a mounted folder. So it may
//! lower limits, deny, protect, cap what is spent, and ask for a stronger wall. Whatever else it says is refused, harmless
//! or not: the list of what is allowed is short, and new settings are not on it.

use crate::budget::Budget;
use crate::file::{Data, File, Sandbox};
use crate::limits::Limits;
use crate::network::{Network, NetworkLimits};
use crate::spec::{Isolation, Spec};

/// The fewest files that a sandbox may make if nothing is said of them: no more than this is no more than usual, whatever
/// its disk.
const FEWEST_INODES: u64 = 1024;

/// The settings of a file that do more than tighten, by their names in it.
pub fn loosened(file: &File) -> Vec<&'static str> {
    // Whole: a setting that is added must be judged here.
    let File { sandbox, protect: _, network, secrets, budget, data, volumes, untrusted: _ } = file;
    let Data { mounts, key } = data;
    let mut found = of_sandbox(sandbox);
    found.extend(of_network(network));
    found.extend(of_budget(budget));
    let rest = [
        ("secrets", !secrets.is_empty()),
        ("data.mounts", !mounts.is_empty()),
        ("data.key", key.is_some()),
        ("volumes", !volumes.is_empty()),
    ];
    found.extend(named(&rest));
    found
}

fn of_sandbox(sandbox: &Sandbox) -> Vec<&'static str> {
    let Sandbox {
        image,
        isolation,
        driver,
        memory,
        cpus,
        pids,
        disk,
        inodes,
        timeout,
        output,
        mounts,
        env,
        workdir,
        user,
        hostname,
        gpu,
        aio,
        best_effort,
    } = sandbox;
    let usual = Limits::default();
    named(&[
        // Another image may be a folder of the host, or somebody's private files.
        ("sandbox.image", image.as_ref().is_some_and(|image| *image != Spec::default().image)),
        ("sandbox.isolation", isolation.is_some_and(|level| level < Isolation::default())),
        ("sandbox.driver", driver.is_some()),
        ("sandbox.memory", memory.is_some_and(|memory| memory > usual.memory)),
        ("sandbox.cpus", cpus.is_some_and(|cpus| cpus.millis > usual.cpus.millis)),
        ("sandbox.pids", pids.is_some_and(|pids| pids > usual.pids)),
        ("sandbox.disk", disk.is_some_and(|disk| disk > usual.disk)),
        ("sandbox.inodes", inodes.is_some_and(|inodes| inodes > FEWEST_INODES)),
        ("sandbox.timeout", timeout.is_some_and(|timeout| timeout.0 > usual.timeout.0)),
        ("sandbox.output", output.is_some_and(|output| output > usual.output)),
        ("sandbox.mounts", !mounts.is_empty()),
        ("sandbox.env", !env.is_empty()),
        ("sandbox.workdir", workdir.is_some()),
        ("sandbox.user", user.is_some()),
        ("sandbox.hostname", hostname.is_some()),
        ("sandbox.gpu", !gpu.is_empty()),
        ("sandbox.aio", *aio == Some(true)),
        ("sandbox.best_effort", *best_effort == Some(true)),
    ])
}

fn of_network(network: &Network) -> Vec<&'static str> {
    let Network { allow, deny: _, ask, ask_timeout, host_ports, internet, ipv6, limits } = network;
    let NetworkLimits { connections, new_per_second, bytes_up: _, bytes_down: _, dns_per_second } = limits;
    let usual = Network::default();
    let more = *connections > usual.limits.connections
        || *new_per_second > usual.limits.new_per_second
        || *dns_per_second > usual.limits.dns_per_second;
    named(&[
        ("network.allow", !allow.is_empty()),
        ("network.ask", !ask.is_empty()),
        ("network.ask_timeout", ask_timeout.0 > usual.ask_timeout.0),
        ("network.host_ports", !host_ports.is_empty()),
        ("network.internet", *internet),
        ("network.ipv6", *ipv6),
        ("network.limits", more),
    ])
}

/// Without a budget nothing is bounded, so every cap is one more. A group is others' pot.
fn of_budget(budget: &Budget) -> Vec<&'static str> {
    named(&[("budget.group", budget.group.is_some())])
}

fn named(settings: &[(&'static str, bool)]) -> Vec<&'static str> {
    settings.iter().filter(|(_, loosens)| *loosens).map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untrusted_file_may_only_tighten() {
        for text in [
            "",
            "[sandbox]\nimage = \"host\"\nisolation = \"vm\"\nmemory = \"1GiB\"\ncpus = 1\npids = 64\ndisk = \"64MiB\"\n\
             inodes = 1000\ntimeout = \"5m\"\noutput = \"1MiB\"\nbest_effort = false",
            "[protect]\nhosts = [\"db.internal\"]\npaths = [\"~/work\"]\nenv = [\"AWS_*\"]",
            "[network]\ndeny = [\"*.example.com\"]\nask_timeout = \"10s\"\n[network.limits]\nconnections = 4\nbytes_up = \"1MiB\"",
            "[budget]\nusd = 1\ntokens = 1000\nrequests_per_minute = 3\nexec_per_minute = 3\negress_bytes = \"1MiB\"\nat_cap = \"kill\"",
        ] {
            assert_eq!(loosened(&File::parse(text).unwrap()), Vec::<&str>::new(), "{text}");
        }
    }

    #[test]
    fn whatever_else_it_says_is_named() {
        for (text, name) in [
            ("[sandbox]\nimage = \"/home/me\"", "sandbox.image"),
            ("[sandbox]\nimage = \"base\"", "sandbox.image"),
            ("[sandbox]\nisolation = \"process\"", "sandbox.isolation"),
            ("[sandbox]\ndriver = \"docker\"", "sandbox.driver"),
            ("[sandbox]\nmemory = \"3GiB\"", "sandbox.memory"),
            ("[sandbox]\ncpus = 3", "sandbox.cpus"),
            ("[sandbox]\npids = 513", "sandbox.pids"),
            ("[sandbox]\ndisk = \"2GiB\"", "sandbox.disk"),
            ("[sandbox]\ninodes = 1025", "sandbox.inodes"),
            ("[sandbox]\ntimeout = \"2h\"", "sandbox.timeout"),
            ("[sandbox]\noutput = \"2GiB\"", "sandbox.output"),
            ("[sandbox]\nmounts = [\".:/workspace\"]", "sandbox.mounts"),
            ("[sandbox]\nenv = [\"AWS_SECRET_ACCESS_KEY\"]", "sandbox.env"),
            ("[sandbox]\nworkdir = \"/x\"", "sandbox.workdir"),
            ("[sandbox]\nuser = \"root\"", "sandbox.user"),
            ("[sandbox]\nhostname = \"x\"", "sandbox.hostname"),
            ("[sandbox]\ngpu = [\"all\"]", "sandbox.gpu"),
            ("[sandbox]\naio = true", "sandbox.aio"),
            ("[sandbox]\nbest_effort = true", "sandbox.best_effort"),
            ("[network]\nallow = [\"example.com\"]", "network.allow"),
            ("[network]\nask = [\"example.com\"]", "network.ask"),
            ("[network]\nask_timeout = \"10m\"", "network.ask_timeout"),
            ("[network]\nhost_ports = [22]", "network.host_ports"),
            ("[network]\ninternet = true", "network.internet"),
            ("[network]\nipv6 = true", "network.ipv6"),
            ("[network.limits]\ndns_per_second = 9999", "network.limits"),
            ("[secrets.K]\nhosts = [\"example.com\"]\nfrom = \"command\"\ncommand = [\"id\"]", "secrets"),
            ("[secrets.K]\nhosts = [\"example.com\"]\nfrom = \"file\"\npath = \"/x\"", "secrets"),
            ("[secrets.K]\nhosts = [\"example.com\"]", "secrets"),
            ("[budget]\ngroup = \"team\"", "budget.group"),
            ("[data]\nmounts = [{ from = \"a.csv\", to = \"/a.csv\", mask = \"m.toml\" }]", "data.mounts"),
            ("[data]\nkey = \"k\"", "data.key"),
            ("[volumes]\nrepo = \"/workspace\"", "volumes"),
        ] {
            assert_eq!(loosened(&File::parse(text).unwrap()), [name], "{text}");
        }
    }
}
