//! The proxy inside, asked for what is not its business.

use std::net::TcpListener;

use sloplet_policy::Feature;

use super::{ALLOWED, NAMES_OF_WORLD, OTHER, Trial, forward, rules, tunnel};
use crate::drill::{Drill, DrillError, settle};
use crate::outside::World;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "egress-proxy",
    ids: &[52],
    tries: "CONNECT to loopback, to the proxy itself, to the control plane and to unlisted hosts, in many spellings",
    why: "a proxy that can be asked for anything reaches everything that it reaches itself",
    needs: &[Feature::Egress],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let world = World::open(&NAMES_OF_WORLD).await?;
    // In place of the control plane, which has better things to do.
    let control_plane = TcpListener::bind("127.0.0.1:0")?;
    control_plane.set_nonblocking(true)?;
    let port = control_plane.local_addr()?.port();
    let mut trial = Trial::default();
    trial.allow("a tunnel to the allowed host", |mark| tunnel(&format!("{ALLOWED}:80"), mark));
    trial.allow("a request for it", |mark| forward(ALLOWED, mark));
    let own = drill.settings().address_outside.clone().unwrap_or_else(|| "127.0.0.2".to_owned());
    for host in ["127.0.0.1", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "localhost", "2130706433", "0x7f.1", &own] {
        trial.attempt(format!("CONNECT {host}"), |mark| tunnel(&format!("{host}:{port}"), mark));
        trial.attempt(format!("GET http://{host}"), |mark| forward(&format!("{host}:{port}"), mark));
    }
    for target in ["198.18.0.1:3128", "198.18.0.1:53", "host.sloplet.internal:80", "169.254.169.254:80"] {
        trial.attempt(format!("CONNECT {target}"), |mark| tunnel(target, mark));
    }
    for target in [
        format!("{OTHER}:80"),
        format!("{OTHER}:443"),
        "11.99.7.1:80".to_owned(),
        format!("{ALLOWED}:22"),
        format!("{ALLOWED}@{OTHER}:80"),
        format!("{ALLOWED}\0.{OTHER}:80"),
    ] {
        trial.attempt(format!("CONNECT {target}").escape_debug().to_string(), |mark| tunnel(&target, mark));
    }
    let finding = trial.run(drill, &world, rules(&[ALLOWED])).await?;
    if control_plane.accept().is_ok() {
        return Ok(Finding::breach(finding.control, "somebody came to the host's loopback"));
    }
    Ok(finding)
}
