//! Sandboxes that stay: files, ports, pause, snapshots, forks, volumes, crashes; and nothing is left of them.

use std::fs;

use serde_json::json;

use super::Wall;
use super::common::Server;
use super::common::machines::kill_and_await;

/// Everything that a front end does with a sandbox.
pub fn test(wall: Wall) {
    let ground = wall.shared();
    let sloplet = ground.root();
    let server = Server::start(&sloplet);
    let (url, key) = (format!("http://{}", server.address), server.key.clone());
    let invoke = |words: &[&str]| server.invoke(words).env("SLOPLET_URL", &url).env("SLOPLET_API_KEY", &key).finish();
    let ok = |words: &[&str]| invoke(words).expect_code(0).out();
    ok(&["volume", "create", "kept"]);
    let create = |words: &[&str]| invoke(&wall.creation(words));
    let made = create(&["--name", "one", "--volume", "kept:/kept", "--json"]);
    let made = match wall.volumes() {
        Ok(()) => made,
        Err(refusal) => {
            made.expect_code(125).expect_said(refusal);
            assert_eq!(invoke(&["ls", "--json"]).json().as_array().map(Vec::len), Some(0), "something is left of it");
            create(&["--name", "one", "--json"])
        }
    };
    let made = made.expect_code(0).json();
    assert_eq!((&made["isolation"], &made["driver"]), (&json!(wall.isolation), &json!(wall.name)));
    let report = server.ask("GET", "/sandboxes/one/capabilities", None).json();
    assert_eq!(report["driver"], wall.name);
    let claims = |feature: &str| {
        let all = report["features"].as_array().unwrap();
        all.iter().any(|it| it["feature"] == feature && it["enforcement"] != "missing")
    };
    assert_eq!((claims("own-kernel"), claims("memory-snapshot")), (wall.own_kernel, wall.memory_snapshots), "{report}");
    let told = server.ask("GET", "/sandboxes/one", None).json()["wall"].clone();
    let kernel = if wall.own_kernel { "own" } else { "shared" };
    assert_eq!((&told["driver"], &told["kernel"]), (&json!(wall.name), &json!(kernel)), "{told}");
    assert_eq!(
        (&told["memory_snapshot"], &told["disk_bound"]),
        (&json!(wall.memory_snapshots), &json!(true)),
        "{told}"
    );
    let shown = ok(&["info", "one"]);
    assert!(
        shown.contains(wall.name)
            && shown.contains(if wall.own_kernel { "its own kernel" } else { "the host's kernel" }),
        "{shown}"
    );

    // Files, one by one and as folders.
    let folder = sloplet.folder("files");
    fs::create_dir(folder.join("sub")).unwrap();
    fs::write(folder.join("sub/a"), "content").unwrap();
    std::os::unix::fs::symlink("a", folder.join("sub/link")).unwrap();
    ok(&["cp", folder.to_str().unwrap(), "one:/home/user/files"]);
    assert_eq!(ok(&["exec", "one", "--", "cat", "/home/user/files/sub/link"]), "content");
    ok(&["exec", "one", "--", "sh", "-c", "echo back >/home/user/files/sub/b; mkdir /tmp/t"]);
    if wall.volumes().is_ok() {
        ok(&["exec", "one", "--", "sh", "-c", "echo kept >/kept/f"]);
    }
    let removal = ["python3", "-c", "import os; os.remove('/etc/debian_version')"];
    if wall.engine {
        let refused = invoke(&[&["exec", "--user", "root", "one", "--"], &removal[..]].concat()).expect_code(125);
        refused.expect_said("no user");
        // Nor can anybody else change the root.
        let written = invoke(&["exec", "one", "--", "sh", "-c", "echo >/etc/x || echo >/x || echo >/usr/x"]);
        assert!(
            written.stderr.matches("Read-only").count() + written.stderr.matches("denied").count() == 3,
            "{written}"
        );
    } else {
        ok(&[&["exec", "--user", "root", "one", "--"], &removal[..]].concat());
    }
    let back = sloplet.folder("out").join("back");
    ok(&["cp", "one:/home/user/files", back.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(back.join("sub/b")).unwrap(), "back\n");
    assert_eq!(fs::read_link(back.join("sub/link")).unwrap().to_str(), Some("a"));
    let listed = server.ask("GET", "/sandboxes/one/files?path=/home/user/files/sub/a", None);
    assert!(listed.text().contains("content"), "{}", listed.text());

    // A port, dialed through the agent.
    let serve = "import socket\ns=socket.socket(); s.bind(('127.0.0.1',3000)); s.listen()\nwhile True:\n  \
        c=s.accept()[0]; c.recv(9999); c.send(b'HTTP/1.0 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nport\\n'); c.close()";
    ok(&["exec", "-d", "one", "--", "python3", "-c", serve]);
    let asked = || {
        let path = format!("GET /preview/{}/3000/ HTTP/1.1\r\n", made["id"].as_str().unwrap());
        let head = format!("{path}Host: {}\r\nX-API-KEY: {}\r\nConnection: close\r\n\r\n", server.address, server.key);
        super::common::http::exchange(&server.address, head.as_bytes())
    };
    let reached = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        asked().text() == "port\n"
    });
    assert!(reached, "{}", asked().text());

    // Pause: nothing moves; resumed, it goes on.
    let count = "import time\nn=0\nwhile True:\n  n+=1; f=open('/home/user/n','w'); f.write(str(n)); f.close(); time.sleep(0.02)";
    ok(&["exec", "-d", "one", "--", "python3", "-c", count]);
    ok(&["pause", "one"]);
    assert_eq!(invoke(&["ls", "--json"]).json()[0]["state"], "paused");
    ok(&["resume", "one"]);
    let now = || invoke(&["exec", "one", "--", "cat", "/home/user/n"]).word().parse().unwrap_or(0u64);
    let first = now();
    assert!((0..100).any(|_| now() > first), "it does not go on after {first}");

    let usage = server.ask("GET", "/sandboxes/one/usage", None).json();
    assert!(usage["memory_bytes"].as_u64() > Some(0) && usage["pids"].as_u64() > Some(0), "{usage}");
    if wall.engine {
        invoke(&["snapshot", "one", "saved"]).expect_code(125).expect_said("cannot take snapshots");
        invoke(&["fork", "one", "--name", "two"]).expect_code(125).expect_said("cannot take snapshots");
        assert_eq!(invoke(&["ls", "--json"]).json().as_array().map(Vec::len), Some(1));
        ok(&["rm", "--all"]);
        super::pools::test(wall, &server, "kept");
        server.end();
        return ground.engine.iter().for_each(|engine| engine.assert_nothing_left(&sloplet));
    }

    // A snapshot and a fork have the files, also those that are gone; changes stay apart.
    ok(&["snapshot", "one", "saved"]);
    ok(&["fork", "one", "--name", "two"]);
    ok(&["exec", "one", "--", "sh", "-c", "echo other >/home/user/files/sub/a"]);
    ok(&["create", "--driver", wall.name, "--image", "saved", "--name", "three"]);
    for name in ["two", "three"] {
        let seen = ok(&[
            "exec",
            name,
            "--",
            "sh",
            "-c",
            "cat /home/user/files/sub/a; test -d /tmp/t && ! test -e /etc/debian_version && id -u",
        ]);
        assert_eq!(seen, "content1000\n", "{name}");
    }

    // A volume outlives sandboxes.
    ok(&["rm", "--all"]);
    if wall.volumes().is_ok() {
        create(&["--name", "four", "--volume", "kept:/kept:ro"]).expect_code(0);
        assert_eq!(ok(&["exec", "four", "--", "cat", "/kept/f"]), "kept\n");
        ok(&["rm", "--all"]);
    }
    super::pools::test(wall, &server, "kept");
    server.end();
}

/// The server is killed: sandboxes go on and are found again; the spawner, too: nothing is left.
pub fn crash(wall: Wall) {
    let ground = wall.alone();
    let sloplet = ground.root();
    wall.run(&sloplet, &[], &["true"]).expect_code(0);
    let leaks = ground.host.leaks();
    let server = Server::start_with(&sloplet, &[]);
    server.command(&wall.creation(&["--name", "one"])).expect_code(0);
    server.command(&["exec", "one", "--", "sh", "-c", "echo kept >/home/user/f"]).expect_code(0);
    server.command(&wall.creation(&["--name", "frozen"])).expect_code(0);
    server.command(&["pause", "frozen"]).expect_code(0);
    server.kill();
    let server = Server::start_with(&sloplet, &[]);
    let ended = server.command(&["exec", "one", "--", "cat", "/home/user/f"]).expect_code(0);
    assert_eq!(ended.out(), "kept\n", "{ended}");
    server.command(&["resume", "frozen"]).expect_code(0);
    server.command(&["exec", "frozen", "--", "true"]).expect_code(0);
    server.end_with_its_sandboxes();

    // Everybody dies at once, in the middle of it.
    let running = wall.invoke(&sloplet, &[], &["sh", "-c", "setsid sleep 1000 & sleep 1000"]).start();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let spawners = running.spawners();
    running.signal(rustix::process::Signal::KILL);
    // One that is still dying owns what it has made: nobody else may remove that.
    kill_and_await(&spawners);
    let _ = running.finish();
    sloplet.invoke(&["gc"]).finish().expect_code(0);
    leaks.assert_none_new_after_a_server();
    ground.engine.iter().for_each(|engine| engine.assert_nothing_left(&sloplet));
}
