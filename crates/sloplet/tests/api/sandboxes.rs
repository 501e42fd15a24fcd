//! Sandboxes from their making to their end.

use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};

use crate::common::{self, Host, Server};

fn create(server: &Server, body: Value) -> Value {
    server.ask("POST", "/sandboxes", Some(body)).expect(201).json()
}

#[test]
fn a_sandbox_is_made_found_changed_and_removed() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let server = Server::start(&sloplet);
        let made = create(
            &server,
            json!({"name": "my", "memory": "256MiB", "cpus": 0.5, "pids": 64, "disk": "64MiB", "env": {"A": "b"},
                "workdir": "/tmp", "metadata": {"team": "x"}, "timeout": "2h", "idle_timeout": "10m"}),
        );
        let id = made["id"].as_str().unwrap().to_owned();
        assert_eq!(made["state"], "running", "{made}");
        for name in ["my", &id] {
            let seen = server.ask("GET", &format!("/sandboxes/{name}"), None).expect(200).json();
            assert_eq!(seen, made);
        }
        let (memory, cpus, pids) = (&made["memory"], &made["cpus"], &made["pids"]);
        assert_eq!((memory, cpus, pids), (&json!("256MiB"), &json!(0.5), &json!(64)));
        let lives = made["ends_ms"].as_u64().unwrap() - made["started_ms"].as_u64().unwrap();
        assert_eq!(lives, 7_200_000);
        let ran = server.ask("POST", "/sandboxes/my/exec", Some(json!({"command": "echo $A; pwd"}))).expect(200).json();
        assert_eq!(ran["stdout"], "b\n/tmp\n");
        let changed = server.ask("PATCH", "/sandboxes/my", Some(json!({"timeout": null}))).expect(200).json();
        assert_eq!(changed["ends_ms"], Value::Null);
        let usage = server.ask("GET", "/sandboxes/my/usage", None).expect(200).json();
        assert_eq!(usage["memory_limit_bytes"], 256 << 20);
        assert!(usage["pids"].as_u64().unwrap() >= 1, "{usage}");
        let report = server.ask("GET", "/sandboxes/my/capabilities", None).expect(200).json();
        assert_eq!(report["isolation"], "container");
        assert!(!report["features"].as_array().unwrap().is_empty());
        server.ask("DELETE", "/sandboxes/my", None).expect(204);
        server.ask("GET", "/sandboxes/my", None).expect_refusal(404);
        server.ask("DELETE", &format!("/sandboxes/{id}"), None).expect_refusal(404);
        server.end();
    }
}

#[test]
fn lists_are_filtered_and_come_in_pages_that_miss_nothing() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    for number in 0..5 {
        let even = number % 2 == 0;
        create(&server, json!({"name": format!("s{number}"), "metadata": {"even": even.to_string(), "a b": "c&d"}}));
    }
    server.ask("POST", "/sandboxes/s3/pause", None).expect(200);
    let names = |query: &str| -> Vec<String> {
        let page = server.ask("GET", &format!("/sandboxes?{query}"), None).expect(200).json();
        page["sandboxes"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(""), ["s4", "s3", "s2", "s1", "s0"]);
    assert_eq!(names("state=paused"), ["s3"]);
    assert_eq!(names("state=paused,running").len(), 5);
    assert_eq!(names("metadata=even%3Dtrue"), ["s4", "s2", "s0"]);
    assert_eq!(names("metadata=even%3Dtrue%26a%2520b%3Dc%2526d").len(), 3);
    assert_eq!(names("name=s2"), ["s2"]);
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.ask("GET", &format!("/sandboxes?limit=2{cursor}"), None).expect(200).json();
        let some = page["sandboxes"].as_array().unwrap();
        assert!(some.len() <= 2);
        seen.extend(some.iter().map(|one| one["name"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
        // What is made meanwhile does not shift the pages.
        create(&server, json!({}));
    }
    assert_eq!(seen, ["s4", "s3", "s2", "s1", "s0"]);
    server.end();
}

#[test]
fn the_same_idempotency_key_makes_one_sandbox() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let Server { address, key, .. } = &server;
    let make = |idempotency: &str| {
        let request = format!(
            "POST /v1/sandboxes HTTP/1.1\r\nHost: {address}\r\nX-API-KEY: {key}\r\nIdempotency-Key: {idempotency}\r\n\
             Content-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let made = crate::common::http::exchange(address, request.as_bytes()).expect(201).json();
        made["id"].as_str().unwrap().to_owned()
    };
    let first = make("one");
    assert_eq!(make("one"), first);
    assert_ne!(make("two"), first);
    server.end();
}

#[test]
fn a_paused_sandbox_says_so_and_goes_on_where_it_was() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    create(&server, json!({"name": "my"}));
    let start = json!({"command": "while :; do echo tick; sleep 0.02; done"});
    let pid = server.ask("POST", "/sandboxes/my/processes", Some(start)).expect(201).json()["pid"].clone();
    assert_eq!(server.ask("POST", "/sandboxes/my/pause", None).expect(200).json()["state"], "paused");
    let message = server.ask("POST", "/sandboxes/my/exec", Some(json!({"command": "true"}))).expect_refusal(409);
    assert!(message.contains("resume"), "{message}");
    server.ask("POST", "/sandboxes/my/pause", None).expect_refusal(409);
    assert_eq!(server.ask("POST", "/sandboxes/my/resume", None).expect(200).json()["state"], "running");
    let seen = server.ask("GET", &format!("/sandboxes/my/processes/{pid}"), None).expect(200).json();
    assert_eq!(seen["running"], true, "{seen}");
    server.end();
}

#[test]
fn snapshots_and_forks_start_from_the_same_files() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    create(&server, json!({"name": "my"}));
    let run = |name: &str, command: &str| {
        let ran = server.ask("POST", &format!("/sandboxes/{name}/exec"), Some(json!({"command": command})));
        ran.expect(200).json()["stdout"].as_str().unwrap().to_owned()
    };
    run("my", "echo before > /tmp/file");
    let snapshot = server.ask("POST", "/sandboxes/my/snapshot", Some(json!({"name": "saved"}))).expect(201).json();
    assert_eq!(snapshot["name"], "saved");
    server.ask("POST", "/sandboxes/my/snapshot", Some(json!({"name": "saved"}))).expect_refusal(409);
    run("my", "echo after > /tmp/file");
    create(&server, json!({"name": "old", "image": "saved"}));
    assert_eq!(run("old", "cat /tmp/file"), "before\n");
    let forked = server.ask("POST", "/sandboxes/my/fork", Some(json!({"count": 3, "name": "f"}))).expect(201).json();
    assert_eq!(forked["failures"], json!([]), "{forked}");
    for name in ["f-1", "f-2", "f-3"] {
        assert_eq!(run(name, "cat /tmp/file; echo own > /tmp/file; cat /tmp/file"), "after\nown\n");
    }
    assert_eq!(run("my", "cat /tmp/file"), "after\n");
    let listed = server.ask("GET", "/snapshots", None).expect(200).json();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    let images = server.ask("GET", "/images", None).expect(200).text();
    assert!(!images.contains("snapshot-") && !images.contains("fork-"), "{images}");
    server.ask("DELETE", "/snapshots/saved", None).expect(204);
    server.ask("POST", "/sandboxes", Some(json!({"image": "saved"}))).expect_refusal(404);
    server.end();
}

#[test]
fn a_volume_outlives_sandboxes_and_is_not_removed_while_one_has_it() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    server.ask("POST", "/volumes", Some(json!({"name": "data"}))).expect(201);
    server.ask("POST", "/volumes", Some(json!({"name": "data"}))).expect_refusal(409);
    let volumes = json!([{"volume": "data", "path": "/data"}]);
    create(&server, json!({"name": "one", "volumes": volumes}));
    let write = json!({"command": "echo kept > /data/file"});
    let wrote = server.ask("POST", "/sandboxes/one/exec", Some(write)).expect(200).json();
    assert_eq!(wrote["exit_code"], 0, "{wrote}");
    server.ask("DELETE", "/volumes/data", None).expect_refusal(409);
    server.ask("DELETE", "/sandboxes/one", None).expect(204);
    create(&server, json!({"name": "two", "volumes": [{"volume": "data", "path": "/data", "read_only": true}]}));
    let read = json!({"command": "cat /data/file; echo x > /data/file"});
    let read = server.ask("POST", "/sandboxes/two/exec", Some(read)).expect(200).json();
    assert_eq!(read["stdout"], "kept\n", "{read}");
    assert_ne!(read["exit_code"], 0, "{read}");
    server.ask("DELETE", "/sandboxes/two", None).expect(204);
    server.ask("DELETE", "/volumes/data", None).expect(204);
    server.end();
}

/// Root inside writes as well as `user` does; who owns what is the same in the next sandbox; nothing of it is anybody's
/// outside, and all of it can be removed.
#[test]
fn root_inside_and_the_user_share_a_volume() {
    let host = Host::shared();
    let image =
        common::small_image(&host, &["sh", "id", "cat", "touch", "ls", "stat", "chown", "chmod", "mkdir", "rm"]);
    for sloplet in [host.root(), host.user()] {
        sloplet.invoke(&["image", "import", image.to_str().unwrap(), "--name", "small"]).finish().expect_code(0);
        let server = Server::start(&sloplet);
        server.ask("POST", "/volumes", Some(json!({"name": "data"}))).expect(201);
        let volumes = json!([{"volume": "data", "path": "/data"}]);
        let run = |name: &str, user: &str, command: &str| {
            let body = json!({"command": ["/bin/sh", "-c", command], "user": user});
            let done = server.ask("POST", &format!("/sandboxes/{name}/exec"), Some(body)).expect(200).json();
            (
                done["exit_code"].as_i64(),
                format!("{}{}", done["stdout"].as_str().unwrap(), done["stderr"].as_str().unwrap()),
            )
        };
        create(&server, json!({"name": "one", "image": "small", "volumes": volumes}));
        let wrote = run("one", "user", "echo user > /data/user && mkdir /data/mine && chmod 700 /data/mine");
        assert_eq!(wrote, (Some(0), String::new()), "{}", sloplet.name);
        let script = "echo root > /data/root && mkdir -p /data/own/deep && chmod 700 /data/own && echo x > /data/own/deep/x \
             && echo more >> /data/user && touch /data/mine/by-root && touch /data/given && chown 33:44 /data/given";
        assert_eq!(run("one", "root", script), (Some(0), String::new()), "{}", sloplet.name);
        let denied = run("one", "user", "echo x >> /data/root; cat /data/own/deep/x");
        assert_ne!(denied.0, Some(0), "{denied:?}");
        // No set-ID bit, whoever sets it.
        assert_ne!(run("one", "root", "chmod 4755 /data/root").0, Some(0));
        server.ask("DELETE", "/sandboxes/one", None).expect(204);
        create(&server, json!({"name": "two", "image": "small", "volumes": volumes}));
        let look = "cd /data && stat -c '%n %u:%g' * mine/by-root && cat root user";
        let seen = run("two", "root", look);
        let expected =
            "given 33:44\nmine 1000:1000\nown 0:0\nroot 0:0\nuser 1000:1000\nmine/by-root 0:0\nroot\nuser\nmore\n";
        assert_eq!(seen, (Some(0), expected.to_owned()), "{}", sloplet.name);
        if sloplet.account.is_none() {
            let data = std::fs::read_dir(sloplet.data.join("volumes")).unwrap().next().unwrap().unwrap().path();
            let owner = |name: &str| std::fs::metadata(data.join("data").join(name)).unwrap().uid();
            assert_eq!(owner("user"), 0, "the server's");
            assert_eq!(owner("root"), 0x3FFF_0000, "nobody's");
        }
        server.ask("DELETE", "/sandboxes/two", None).expect(204);
        server.ask("DELETE", "/volumes/data", None).expect(204);
        // Its content goes away meanwhile.
        let left = || std::fs::read_dir(sloplet.data.join("volumes")).unwrap().count();
        let started = std::time::Instant::now();
        while left() > 0 {
            assert!(started.elapsed() < std::time::Duration::from_secs(30), "{}: {} are left", sloplet.name, left());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        server.end();
    }
}

#[test]
fn a_volume_can_be_bounded_and_says_where_it_cannot() {
    let host = Host::alone();
    let leaks = host.leaks();
    let server = Server::start(&host.root());
    let made = server.ask("POST", "/volumes", Some(json!({"name": "small", "size": "32MiB"}))).expect(201).json();
    assert_eq!(made["size"], "32MiB");
    for bad in ["1MiB", "many"] {
        server.ask("POST", "/volumes", Some(json!({"name": "other", "size": bad}))).expect_refusal(400);
    }
    let run = |name: &str, user: &str, command: &str| {
        let body = json!({"command": command, "user": user});
        let done = server.ask("POST", &format!("/sandboxes/{name}/exec"), Some(body)).expect(200).json();
        (
            done["exit_code"].as_i64(),
            format!("{}{}", done["stdout"].as_str().unwrap(), done["stderr"].as_str().unwrap()),
        )
    };
    create(&server, json!({"name": "one", "volumes": [{"volume": "small", "path": "/data"}]}));
    assert_eq!(run("one", "user", "ls -A /data; echo kept > /data/file"), (Some(0), String::new()));
    assert_eq!(run("one", "root", "echo of root > /data/root"), (Some(0), String::new()));
    let full = run("one", "user", "head -c 64M /dev/zero > /data/large; stat -c %s /data/large");
    assert!(full.1.contains("No space left on device"), "{full:?}");
    assert!(full.1.lines().next().unwrap().parse::<u64>().unwrap() < 32 << 20, "{full:?}");
    let set = run("one", "user", "rm /data/large && chmod 4755 /data/file || echo refused");
    assert!(set.1.starts_with("refused\n"), "{set:?}");
    server.ask("DELETE", "/sandboxes/one", None).expect(204);
    // At once by another: nothing of what was written is lost. Then by many.
    create(&server, json!({"name": "two", "volumes": [{"volume": "small", "path": "/data"}]}));
    let look = "cat /data/file /data/root; stat -c %U /data/root";
    assert_eq!(run("two", "user", look), (Some(0), "kept\nof root\nroot\n".into()));
    server.ask("DELETE", "/sandboxes/two", None).expect(204);
    for name in ["three", "four"] {
        create(&server, json!({"name": name, "volumes": [{"volume": "small", "path": "/data", "read_only": true}]}));
    }
    for name in ["three", "four"] {
        assert_eq!(run(name, "user", look).1, "kept\nof root\nroot\n");
        assert_ne!(run(name, "root", "touch /data/new").0, Some(0));
        server.ask("DELETE", &format!("/sandboxes/{name}"), None).expect(204);
    }
    server.ask("DELETE", "/volumes/small", None).expect(204);
    server.end();
    leaks.assert_none_new_after_a_server();
    let server = Server::start(&host.user());
    let refused = server.ask("POST", "/volumes", Some(json!({"name": "small", "size": "32MiB"}))).expect_refusal(501);
    assert!(refused.contains("root"), "{refused}");
    assert_eq!(server.ask("GET", "/volumes", None).expect(200).json(), json!([]));
    server.end();
}

/// An image other than `host`, with a root inside: for an ordinary user, that is a subordinate id.
#[test]
fn an_image_with_users_of_its_own_is_saved_forked_and_stopped() {
    let host = Host::shared();
    let image = common::small_image(&host, &["sh", "cat", "stat", "mkdir", "rm"]);
    for sloplet in [host.root(), host.user()] {
        sloplet.invoke(&["image", "import", image.to_str().unwrap(), "--name", "small"]).finish().expect_code(0);
        let server = Server::start(&sloplet);
        let run = |name: &str, user: &str, command: &str| {
            let body = json!({"command": ["/bin/sh", "-c", command], "user": user});
            let done = server.ask("POST", &format!("/sandboxes/{name}/exec"), Some(body)).expect(200).json();
            assert_eq!(done["exit_code"], 0, "{}: {done}", sloplet.name);
            done["stdout"].as_str().unwrap().to_owned()
        };
        create(&server, json!({"name": "my", "image": "small"}));
        run("my", "root", "echo root > /root/file; mkdir /opt; echo x > /opt/x; rm /etc/image");
        run("my", "user", "echo user > /home/user/file");
        let look = "cat /root/file /home/user/file /opt/x; cat /etc/image 2>/dev/null || echo gone";
        let expected = "root\nuser\nx\ngone\n";
        assert_eq!(run("my", "root", look), expected);
        server.ask("POST", "/sandboxes/my/snapshot", Some(json!({"name": "saved"}))).expect(201);
        create(&server, json!({"name": "two", "image": "saved"}));
        assert_eq!(run("two", "root", look), expected, "{}", sloplet.name);
        let forked = server.ask("POST", "/sandboxes/two/fork", Some(json!({"name": "three"}))).expect(201).json();
        assert_eq!(forked["failures"], json!([]), "{forked}");
        assert_eq!(run("three", "root", look), expected, "{}", sloplet.name);
        server.ask("POST", "/sandboxes/three/stop", None).expect(200);
        server.ask("POST", "/sandboxes/three/resume", None).expect(200);
        assert_eq!(run("three", "root", look), expected, "{}", sloplet.name);
        server.end();
    }
}

#[test]
fn nothing_is_left_when_a_server_ends_with_its_sandboxes() {
    let host = Host::alone();
    for sloplet in [host.root(), host.user()] {
        let leaks = host.leaks();
        let server = Server::start(&sloplet);
        for _ in 0..3 {
            let made = create(&server, json!({}));
            let path = format!("/sandboxes/{}/processes", made["id"].as_str().unwrap());
            server.ask("POST", &path, Some(json!({"command": "sleep 1000"}))).expect(201);
        }
        server.end();
        leaks.assert_none_new_after_a_server();
    }
}
