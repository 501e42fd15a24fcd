//! Addresses that nobody may reach, where all public ones are allowed.

use std::net::SocketAddr;

use sloplet_policy::{Feature, Network};

use super::{ALLOWED, NAMES_OF_WORLD, PUBLIC_TOO, Trial, forward, tunnel};
use crate::calls::Call;
use crate::drill::{Drill, DrillError, settle};
use crate::outside::World;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "egress-addresses",
    ids: &[48, 49, 58],
    tries: "with the whole internet allowed: the metadata address in every spelling, private networks, names that lead there, UDP",
    why: "the widest rule that there is must not open the host, its neighbours and the cloud account behind it",
    needs: &[Feature::Egress],
    kind: Kind::Drill(run),
};

const SPELLINGS: [&str; 24] = [
    "169.254.169.254",
    "2852039166",
    "0xA9FEA9FE",
    "0251.0376.0251.0376",
    "0xa9.254.0251.254",
    "169.254.43518",
    "::ffff:169.254.169.254",
    "fd00:ec2::254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "::169.254.169.254",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.170.2",
    "10.20.0.5",
    "172.17.0.1",
    "192.168.1.1",
    "100.64.0.9",
    "0.0.0.1",
    "198.18.0.9",
    "192.0.2.1",
    "224.0.0.1",
    "240.0.0.1",
    "fc00::1",
];

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let world = World::open(&NAMES_OF_WORLD).await?;
    let mut trial = Trial::default();
    trial.allow("a name", |mark| Call::http(ALLOWED, 80, ALLOWED, &format!("/{mark}")));
    trial.allow("a public address", |mark| Call::http(PUBLIC_TOO, 80, PUBLIC_TOO, &format!("/{mark}")));
    for spelling in SPELLINGS {
        let literal = if spelling.contains(':') { format!("[{spelling}]") } else { spelling.to_owned() };
        trial.attempt(spelling, |mark| Call::http(spelling, 80, &literal, &format!("/{mark}")));
        trial.attempt(format!("CONNECT {spelling}"), |mark| tunnel(&format!("{literal}:80"), mark));
        trial.attempt(format!("GET http://{spelling}"), |mark| forward(&literal, mark));
    }
    for name in ["metadata.google.internal", "metadata.sloplet.test"] {
        world.name(name, &[&["169.254.169.254"]]);
        trial.attempt(name, |mark| Call::http(name, 80, name, &format!("/{mark}")));
    }
    if let Some(own) = drill.settings().address_outside.clone() {
        trial.attempt("the host's own address", |mark| Call::http(&own, 80, &own, &format!("/{mark}")));
    }
    let finding = trial.run(drill, &world, Network { internet: true, ipv6: true, ..Network::default() }).await?;
    if finding.verdict == crate::Verdict::Contained && datagrams(drill, &world).await? {
        return Ok(Finding::breach(finding.control, "somebody answered a datagram"));
    }
    Ok(finding)
}

/// Whether anybody outside answers datagrams: there is no UDP but to the resolver.
async fn datagrams(drill: &Drill<'_>, world: &World) -> Result<bool, DrillError> {
    let network = Network { internet: true, ipv6: true, ..Network::default() };
    let sandbox = drill.sandbox_with(world, |spec| super::reach(spec, network)).await?;
    let own = SocketAddr::from(([127, 0, 0, 1], drill.settings().udp_port));
    let outside = drill.settings().address_outside.iter().filter_map(|own| format!("{own}:53").parse().ok());
    let far = ["8.8.8.8:53", "1.1.1.1:443", "169.254.169.253:53"].iter().filter_map(|text| text.parse().ok());
    let query = crate::calls::question("example.com", 1);
    let all = outside.chain(far).chain([own]).map(|address| Call::Udp { address, say: query.clone() });
    let said = drill.call(&sandbox, &all.collect::<Vec<_>>()).await;
    sandbox.destroy().await?;
    Ok(said?.iter().any(|text| text.starts_with("answered")))
}
