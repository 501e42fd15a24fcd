//! Attacks on a way out: sandboxes like the verified one, that may reach a host or two of a world of the verifier's own.
//!
//! Every attempt carries a mark. Contained is what that world never heard of; whether it can be heard at all is shown by what
//! is allowed, in the same sandbox.

mod addresses;
mod floods;
mod names;
mod ports;
mod proxy;
mod questions;
mod rebinding;
mod redirect;
mod requests;
mod tokens;
mod traces;

use sloplet_policy::addresses::{PROXY_PORT, RESOLVER_V4};
use sloplet_policy::{Network, Spec};

use crate::calls::Call;
use crate::drill::{Drill, DrillError};
use crate::outside::World;
use crate::probe::Finding;

pub use addresses::PROBE as ADDRESSES;
pub use floods::PROBE as FLOODS;
pub use names::PROBE as NAMES;
pub use ports::PROBE as PORTS;
pub use proxy::PROBE as PROXY;
pub use questions::PROBE as QUESTIONS;
pub use rebinding::PROBE as REBINDING;
pub use redirect::PROBE as REDIRECT;
pub use requests::PROBE as REQUESTS;
pub use tokens::PROBE as TOKENS;
pub use traces::PROBE as TRACES;

/// A host that may be reached, and one that may not. Nobody has these names, and nothing is sent to these addresses.
const ALLOWED: &str = "allowed.sloplet.test";
const OTHER: &str = "other.sloplet.test";
const PUBLIC: &str = "11.99.7.1";
const PUBLIC_TOO: &str = "11.99.7.2";

/// Both, as the world has them.
const NAMES_OF_WORLD: [(&str, &str); 2] = [(ALLOWED, PUBLIC), (OTHER, PUBLIC_TOO)];

/// One way to get out, which must not be one.
struct Attempt {
    name: String,
    mark: String,
    calls: Vec<Call>,
}

/// Attempts and what is allowed beside them.
#[derive(Default)]
struct Trial {
    allowed: Vec<Attempt>,
    attempts: Vec<Attempt>,
}

impl Trial {
    /// Something that must work; given a mark to send.
    fn allow(&mut self, name: &str, call: impl FnOnce(&str) -> Call) {
        let mark = format!("allowed{}x", self.allowed.len());
        let calls = vec![call(&mark)];
        self.allowed.push(Attempt { name: name.to_owned(), mark, calls });
    }

    /// Something that must not; given a mark to send.
    fn attempt(&mut self, name: impl Into<String>, call: impl FnOnce(&str) -> Call) {
        let mark = format!("attempt{}x", self.attempts.len());
        let calls = vec![call(&mark)];
        self.attempts.push(Attempt { name: name.into(), mark, calls });
    }

    /// Carries it out in a sandbox that may reach what `network` says. Nothing but public addresses may be dialed.
    async fn run(self, drill: &Drill<'_>, world: &World, network: Network) -> Result<Finding, DrillError> {
        let sandbox = drill.sandbox_with(world, |spec| reach(spec, network)).await?;
        let all = self.allowed.iter().chain(&self.attempts).flat_map(|attempt| attempt.calls.iter().cloned());
        let said = drill.call(&sandbox, &all.collect::<Vec<_>>()).await;
        sandbox.destroy().await?;
        let said = said?;
        let silent: Vec<String> = self
            .allowed
            .iter()
            .enumerate()
            .filter(|(place, attempt)| !world.heard(&attempt.mark) || !said.get(*place).is_some_and(|it| answered(it)))
            .map(|(place, attempt)| format!("{}: {}", attempt.name, said.get(place).map_or("", String::as_str)))
            .collect();
        let out: Vec<String> = self
            .attempts
            .iter()
            .filter(|attempt| world.heard(&attempt.mark))
            .map(|attempt| attempt.name.clone())
            .chain(private(world))
            .collect();
        Ok(self.judge(&silent, &out))
    }

    fn judge(&self, silent: &[String], out: &[String]) -> Finding {
        let allowed: Vec<&str> = self.allowed.iter().map(|attempt| attempt.name.as_str()).collect();
        let control = format!("reached beside them, as allowed: {}", allowed.join(", "));
        if !out.is_empty() {
            return Finding::breach(control, format!("got out: {}", out.join("; ")));
        }
        if !silent.is_empty() {
            return Finding::inconclusive("", format!("not even what is allowed was reached: {}", silent.join("; ")));
        }
        let detail = format!("none of {} attempts was heard of outside; nothing but public addresses was dialed", {
            self.attempts.len()
        });
        Finding::contained(control, detail)
    }
}

/// Whether something outside, and not the host's refusal, answered.
fn answered(said: &str) -> bool {
    said.contains("reached") || said.contains("302 Found")
}

/// Addresses that were dialed and must never be.
fn private(world: &World) -> impl Iterator<Item = String> {
    let dialed = world.dialed().into_iter();
    dialed.filter_map(|to| sloplet_policy::network::vet(to.ip(), &[]).err().map(|_| format!("{to} was dialed")))
}

/// Makes a description that reaches this, and nothing else.
fn reach(spec: &mut Spec, network: Network) {
    spec.network = network;
    spec.secrets = Vec::new();
    spec.budget = Default::default();
}

/// Rules by their text.
fn rules(allow: &[&str]) -> Network {
    Network { allow: allow.iter().filter_map(|rule| rule.parse().ok()).collect(), ..Network::default() }
}

/// A request to the proxy inside.
fn to_proxy(text: &[&str]) -> Call {
    Call::in_turns(&RESOLVER_V4.to_string(), PROXY_PORT, text)
}

/// A tunnel through the proxy, and a request in it.
fn tunnel(target: &str, mark: &str) -> Call {
    let connect = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    to_proxy(&[&connect, &format!("GET /{mark} HTTP/1.1\r\nHost: {target}\r\n\r\n")])
}

/// A request for an absolute target.
fn forward(target: &str, mark: &str) -> Call {
    to_proxy(&[&format!("GET http://{target}/{mark} HTTP/1.1\r\nHost: {target}\r\n\r\n")])
}
