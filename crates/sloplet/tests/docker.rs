//! What is special about containers of a Docker engine: every restriction, images by its names, its socket out of reach, and
//! nothing left on it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;

use common::docker::{Engine, IMAGE};
use common::server::Server;
use common::{Ended, Host, Sloplet};
use rustix::process::Signal;

fn run(sloplet: &Sloplet, options: &[&str], script: &str) -> Ended {
    sloplet.sh(&[&["--driver", "docker", "--image", IMAGE], options].concat(), script)
}

#[test]
fn a_container_has_every_restriction() {
    let host = Host::shared();
    let engine = Engine::start(&host);
    let sloplet = engine.known_to(host.root());

    let ended = run(&sloplet, &[], "cat /proc/self/status /proc/1/status").expect_code(0);
    let out = ended.out();
    let fields = |name: &str| -> Vec<String> {
        let values = out.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(":"));
        values.map(|value| value.trim().to_owned()).collect()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(fields(set), ["0000000000000000"; 2], "{set}: {ended}");
    }
    assert_eq!(fields("NoNewPrivs"), ["1"; 2], "{ended}");
    assert_eq!(fields("Seccomp"), ["2"; 2], "{ended}");
    assert_eq!(fields("Seccomp_filters"), ["2"; 2], "the engine's and the agent's own: {ended}");
    assert_eq!(fields("Uid"), ["1000\t1000\t1000\t1000"; 2], "{ended}");

    // The same errors as behind the other walls, by the same profile.
    let program = "import ctypes,os\nc=ctypes.CDLL(None,use_errno=True)\n\
        def call(*a):\n  ctypes.set_errno(0); c.syscall(*a); return os.strerror(ctypes.get_errno())\n\
        print(call(165,0,0,0,0,0), call(435,0,0), call(41,40,1,0), call(41,2,3,1), call(16,0,0x5412,0), sep='|')";
    let ended = sloplet.python(&["--driver", "docker", "--image", IMAGE], program).expect_code(0);
    let answers = [
        "Operation not permitted",
        "Function not implemented",
        "Address family not supported by protocol",
        "Operation not permitted",
        "Operation not permitted",
    ];
    #[cfg(target_arch = "x86_64")]
    assert_eq!(ended.word(), answers.join("|"), "mount, clone3, vsock, raw sockets, TIOCSTI: {ended}");

    // Nothing of the host's: no variable, no name, no resolver, no network.
    let script = "env; cat /etc/resolv.conf /proc/net/dev /etc/machine-id";
    let ended = run(&sloplet.clone().with("SECRET", "of the host"), &["--hostname", "box"], script).expect_code(0);
    let out = ended.out();
    assert!(!out.contains("of the host") && !out.contains("HOSTNAME") && !out.contains("DOCKER_HOST"), "{ended}");
    assert!(out.contains("nameserver 198.18.0.1") && !out.contains("eth0"), "{ended}");
    assert!(!out.contains("12345678901234567890123456789012"), "the image's machine-id: {ended}");
    let other = run(&sloplet, &[], "cat /etc/machine-id").expect_code(0);
    assert!(other.word().len() == 32 && !out.contains(&other.word()), "{other}");

    // Bytes and files are bounded in every place; nowhere else can be written.
    let script = "import os,errno\n\
        for place in ['/home/user','/tmp']:\n  n=0\n  \
          try:\n    while n<4000:\n      open(f'{place}/{n}','w').close(); n+=1\n  \
          except OSError as e: print(place, 100<n<600, errno.errorcode[e.errno])\n\
        found=[]\n\
        for folder,_,_ in os.walk('/'):\n  \
          if not folder.startswith(('/proc','/home/user','/tmp','/sys')) and os.access(folder,os.W_OK): found.append(folder)\n\
        print(sorted(found))";
    let options = ["--driver", "docker", "--image", IMAGE, "--inodes", "1000"];
    let ended = sloplet.python(&options, script).expect_code(0);
    let expected = "/home/user True ENOSPC\n/tmp True ENOSPC\n['/dev/shm']\n";
    assert_eq!(ended.out(), expected, "{ended}");

    engine.assert_nothing_left(&sloplet);
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let host = Host::shared();
    let engine = Engine::start(&host);
    let sloplet = engine.known_to(host.root());
    let with = |options: &[&str]| sloplet.run(&[&["--driver", "docker"], options].concat(), &["true"]);

    with(&["--image", "missing:local"]).expect_code(125).expect_said("docker pull missing:local");
    with(&[]).expect_code(125).expect_said("--image");
    with(&["--image", "a?b"]).expect_code(125).expect_said("no name of an image");

    // The engine's socket, by its name, by a folder around it, by a link; also where sockets are allowed.
    let link = sloplet.folder("links").join("link");
    std::os::unix::fs::symlink(engine.socket(), &link).unwrap();
    let around = engine.socket().parent().unwrap().to_owned();
    for from in [&engine.socket(), &around, &link] {
        let mount = format!("{}:/x:ro,sockets", from.display());
        with(&["--image", IMAGE, "--mount", &mount]).expect_code(125).expect_said("socket is there");
    }

    // No engine, another kind of address, another host.
    let somewhere = |host: &str| host_only(&sloplet, host).run(&["--driver", "docker", "--image", IMAGE], &["true"]);
    somewhere("unix:///nowhere/docker.sock").expect_code(125).expect_said("no Docker engine at unix:///nowhere");
    somewhere("ssh://example.com").expect_code(125).expect_said("only unix:// and tcp://");
    somewhere("tcp://127.0.0.1:1").expect_code(125).expect_said("no Docker engine at tcp://127.0.0.1:1");

    // What the report says.
    let doctor = |sloplet: &Sloplet| {
        let all = sloplet.invoke(&["doctor", "--json"]).finish().json();
        all.as_array().unwrap().iter().find(|report| report["driver"] == "docker").unwrap().clone()
    };
    let report = doctor(&sloplet);
    let text = report.to_string();
    assert!(report["unavailable"].is_null() && text.contains("Docker ") && text.contains("as root"), "{report:#}");
    let enforcement = |feature: &str| {
        let all = report["capabilities"].as_array().unwrap();
        all.iter().find(|it| it["feature"] == feature).unwrap()["enforcement"].as_str().unwrap().to_owned()
    };
    let told = ["own-kernel", "root-inside", "memory-snapshot", "disk", "timeout", "no-network"].map(enforcement);
    assert_eq!(told, ["missing", "missing", "missing", "enforced", "watched", "enforced"]);
    assert!(doctor(&host_only(&sloplet, "unix:///nowhere/docker.sock"))["unavailable"].is_string());

    engine.assert_nothing_left(&sloplet);
}

fn host_only(sloplet: &Sloplet, host: &str) -> Sloplet {
    sloplet.clone().with("DOCKER_HOST", host)
}

/// Whoever knows the beginning of an image's id would otherwise start what is another's.
#[test]
fn keys_use_it_if_it_is_listed_and_its_images_by_whole_names_alone() {
    let host = Host::shared();
    let engine = Engine::start(&host);
    let sloplet = engine.known_to(host.root());
    let id = engine.json("/images/json")[0]["Id"].as_str().unwrap().to_owned();
    let hex = id.strip_prefix("sha256:").unwrap();
    let asked = |image: &str| Some(serde_json::json!({"driver": "docker", "image": image}));
    let server = Server::start(&sloplet);
    let key = server.new_key(&["tenant"]);
    server.ask_as(&key, "POST", "/sandboxes", asked(IMAGE)).expect_refusal(403);
    server.end();
    let options = ["--destroy-on-exit", "--drivers", "namespaces,docker", "--min-isolation", "container"];
    let server = Server::start_with(&sloplet, &options);
    for image in [&id, hex, &hex[..12], &hex[..4]] {
        let message = server.ask_as(&key, "POST", "/sandboxes", asked(image)).expect_refusal(400);
        assert!(message.contains("whole names"), "{image}: {message}");
    }
    server.ask_as(&key, "POST", "/sandboxes", asked("missing:local")).expect_refusal(400);
    server.ask_as(&key, "POST", "/sandboxes", asked("a?b")).expect_refusal(400);
    server.ask_as(&key, "POST", "/sandboxes", asked(IMAGE)).expect(201);
    server.end();
    engine.assert_nothing_left(&sloplet);
}

/// Commands are the same user as the agent, and a later server talks to it through a process in the container.
#[test]
fn nobody_inside_can_cut_its_lines() {
    let host = Host::shared();
    let engine = Engine::start(&host);
    let sloplet = engine.known_to(host.root());
    let everybody = ["exec", "it", "--", "sh", "-c", "kill -9 -1; echo here"];
    let server = Server::start(&sloplet);
    server.command(&["create", "--driver", "docker", "--image", IMAGE, "--name", "it"]).expect_code(0);
    assert_eq!(server.command(&everybody).expect_code(0).out(), "here\n");
    server.kill();
    let server = Server::start(&sloplet);
    for _ in 0..2 {
        assert_eq!(server.command(&everybody).expect_code(0).out(), "here\n");
    }
    server.command(&["rm", "it"]).expect_code(0);
    server.end();
    engine.assert_nothing_left(&sloplet);
}

#[test]
fn nothing_is_left_of_the_killed() {
    let host = Host::shared();
    let engine = Engine::start(&host);
    let sloplet = engine.known_to(host.root());
    let options = ["--driver", "docker", "--image", IMAGE];

    // Whoever started it is killed: the agent hears that, and the engine removes the container.
    let running = sloplet.invoke_run(&options, &["sh", "-c", "echo up; sleep 1000"]).start();
    let up = || !engine.json("/containers/json").as_array().unwrap().is_empty();
    assert!((0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        up()
    }));
    running.signal(Signal::KILL);
    let _ = running.finish();
    assert!((0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        !up()
    }));
    sloplet.invoke(&["gc"]).finish().expect_code(0);
    engine.assert_nothing_left(&sloplet);

    // One that was made and never started, by somebody who is no more: the next run removes it, and no other.
    let owners = sloplet.data.join("docker/owners");
    fs::write(owners.join("gone"), "").unwrap();
    let make = |owner: &str| {
        let body = serde_json::json!({"Image": IMAGE, "Cmd": ["true"], "Labels": {"sloplet.owner": owner}});
        engine.post("/containers/create", &body)
    };
    let (left, others) = (make("gone"), make("somebody"));
    sloplet.invoke(&["gc"]).finish().expect_code(0);
    let ids = engine.json("/containers/json?all=1").to_string();
    assert!(!ids.contains(left["Id"].as_str().unwrap()) && ids.contains(others["Id"].as_str().unwrap()), "{ids}");
    assert!(!owners.join("gone").exists());
}

#[test]
fn verifying_all_walls_keeps_their_results_where_there_is_an_engine() {
    let host = Host::shared();
    let engine = Engine::start(&host);
    let sloplet = engine.known_to(host.root());
    // The engine has no image 'host'.
    let words = ["verify", "--driver", "all", "--probe", "keyrings", "--json"];
    let ended = sloplet.invoke(&words).within(std::time::Duration::from_secs(300)).finish().expect_code(0);
    let ended = ended.expect_said("docker makes no such sandbox");
    let reports = ended.json();
    let walls: Vec<&str> = reports.as_array().unwrap().iter().filter_map(|report| report["driver"].as_str()).collect();
    for wall in ["namespaces", "process"] {
        assert!(walls.contains(&wall), "{wall}: {ended}");
    }
}
