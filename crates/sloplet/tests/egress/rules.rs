//! What may be reached, and what may not; each refusal beside something that works.

use serde_json::json;

use crate::common::{Host, World, world};
use crate::{both, check, python, python_outside};

#[test]
fn names_suffixes_ports_and_networks_mean_what_they_say() {
    let host = Host::shared();
    let world = World::new(&host);
    let options = [
        "--allow=example.com",
        "--allow=*.example.com:443",
        "--allow=www.example.com:8000-8001",
        "--allow=*.example.org:*",
        "--allow=45.33.10.2:7/tcp",
        "--allow=45.33.11.0/24:80",
        "--allow=10.20.0.5:5432",
        "--deny=bad.example.com",
        "--deny=shell.example.org:22",
        "--deny=45.33.11.9:80",
    ];
    let cases = [
        ("example.com", 80, "ok"),
        ("example.com", 443, "ok"),
        ("EXAMPLE.com", 80, "ok"),
        ("example.com", 8080, "denied"),
        ("example.com", 22, "refused"),
        ("example.com", 25, "refused"),
        ("example.com", 6379, "refused"),
        ("a.example.com", 443, "ok"),
        ("b.a.example.com", 443, "ok"),
        ("a.example.com", 80, "denied"),
        ("www.example.com", 8000, "ok"),
        ("www.example.com", 8001, "ok"),
        ("www.example.com", 8080, "denied"),
        ("bad.example.com", 443, "no name"),
        ("any.example.org", 25, "ok"),
        ("shell.example.org", 25, "ok"),
        ("shell.example.org", 22, "refused"),
        ("example.org", 80, "no name"),
        ("evil-example.com", 80, "no name"),
        ("example.com.evil.test", 80, "no name"),
        ("45.33.10.2", 7, "ok"),
        ("45.33.10.2", 80, "denied"),
        ("45.33.10.1", 80, "denied"),
        ("45.33.11.9", 80, "denied"),
        ("10.20.0.5", 5432, "ok"),
        ("10.20.0.5", 22, "refused"),
        ("172.16.5.5", 5432, "refused"),
    ];
    for sloplet in both(&host, &world) {
        check(&sloplet, &world, &options, &cases);
    }
}

#[test]
fn nothing_is_reached_unless_said() {
    let host = Host::shared();
    let world = World::new(&host);
    for sloplet in both(&host, &world) {
        let targets = "[reach('example.com', 80), reach('45.33.10.1', 80), reach('45.33.10.53', 53), datagram('45.33.10.1', 9999)]";
        assert_eq!(python_outside(&sloplet, &world, &format!("show({targets})")), json!(["ok", "ok", "ok", "ok"]));
        world.forget();
        let within = python(&sloplet, &world, &[], &format!("show({targets})"));
        for outcome in within.as_array().unwrap() {
            assert!(["no name", "unreachable"].contains(&outcome.as_str().unwrap()), "{within}");
        }
        assert_eq!(world.seen(), Vec::<serde_json::Value>::new(), "{}", sloplet.name);
    }
}

#[test]
fn the_internet_is_every_public_address_and_no_other() {
    let host = Host::shared();
    let world = World::new(&host);
    let cases = [
        ("example.com", 80, "ok"),
        ("other.example.org", 6379, "ok"),
        ("45.33.10.2", 443, "ok"),
        ("45.33.10.1", 25, "ok"),
        ("evil-example.com", 80, "no name"),
        ("45.33.11.9", 80, "denied"),
        ("private.example.net", 80, "denied"),
        ("metadata.example.net", 80, "denied"),
        ("10.20.0.5", 80, "denied"),
        ("172.16.5.5", 80, "denied"),
        ("192.168.77.7", 80, "denied"),
        ("100.64.0.9", 80, "denied"),
        ("169.254.169.254", 80, "denied"),
        ("10.99.7.1", 80, "denied"),
    ];
    for sloplet in both(&host, &world) {
        check(&sloplet, &world, &["--allow-internet", "--deny=evil-example.com", "--deny=45.33.11.0/24"], &cases);
    }
}

#[test]
fn ipv6_works_where_it_is_asked_for() {
    let host = Host::shared();
    let world = World::new(&host);
    let rule = format!("--allow=[{}]:80", world::PUBLIC_V6);
    for sloplet in both(&host, &world) {
        let options = ["--ipv6", "--allow=six.example.net", "--allow=both.example.net", &rule];
        let program = format!(
            "six, literal = socket.AF_INET6, '{}'\n\
             show([reach('six.example.net', 443, six), reach('both.example.net', 80, six), reach('both.example.net', 80, socket.AF_INET),\
             reach(literal, 80), reach(literal, 8080), reach('fd00:ec2::254', 80)])",
            world::PUBLIC_V6
        );
        assert_eq!(python_outside(&sloplet, &world, &program), json!(vec!["ok"; 6]));
        let within = python(&sloplet, &world, &options, &program);
        assert_eq!(within, json!(["ok", "ok", "ok", "ok", "denied", "denied"]), "{}", sloplet.name);
        // Where it is not asked for, names have no address of that family, and are still reached where only that one leads.
        let program = "show([reach('six.example.net', 443), reach('six.example.net', 443, socket.AF_INET6)])";
        let within = python(&sloplet, &world, &["--allow=six.example.net"], program);
        assert_eq!(within, json!(["ok", "no name"]), "{}", sloplet.name);
    }
}

#[test]
fn ports_of_the_host_are_opened_one_by_one() {
    let host = Host::shared();
    let world = World::new(&host);
    let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (opened, other) = (listen(), listen());
    let ports = [&opened, &other].map(|listener| listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = opened.accept() {
            let _ = std::io::Write::write_all(&mut stream, b"the host\n");
        }
    });
    let option = format!("--allow-host-port={}", ports[0]);
    for sloplet in both(&host, &world) {
        let program = format!(
            "show([reach('host.sloplet.internal', {0}), reach('host.sloplet.internal', {1}), reach('127.0.0.1', {0}), reach('{2}', {0})])",
            ports[0],
            ports[1],
            world::NEAR
        );
        let within = python(&sloplet, &world, &[&option], &program);
        assert_eq!(within, json!(["ok", "refused", "refused", "refused"]), "{}", sloplet.name);
    }
    other.set_nonblocking(true).unwrap();
    assert!(other.accept().is_err(), "a connection came to a port that was not opened");
}

#[test]
fn bad_rules_are_refused_with_the_corrected_form() {
    let host = Host::shared();
    let sloplet = host.user();
    for (options, said) in [
        (["--allow=*"], "--allow-internet"),
        (["--allow=http://example.com/x"], "example.com"),
        (["--allow=10.0.0.1/33"], "10.0.0.1"),
        (["--allow=example.com:0"], "port"),
        (["--allow=example.com:90-80"], "80-90"),
        (["--allow=exa mple.com"], "exa mple.com"),
        (["--allow-host-port=0"], "1.."),
        (["--secret=KEY"], "KEY@"),
        (["--budget-usd=-1"], "dollars"),
    ] {
        sloplet.sh(&options, "true").expect_code(125).expect_said(said);
    }
}
