//! Clients that take all they can get: connections, memory, time.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::common::{Host, PATIENCE, Server, http, until};

/// The greeting of HTTP/2, with empty settings.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

/// Attacks of this size, or of the full one where that was asked for.
fn scaled(full: usize, usual: usize) -> usize {
    if std::env::var_os("SLOPLET_TEST_FULL").is_some() { full } else { usual }
}

#[test]
fn idle_http2_connections_stop_neither_the_server_nor_its_socket_nor_its_end() {
    let host = Host::shared();
    // In full size, with the places that a server has unless told otherwise.
    let places = scaled(4096, 64).to_string();
    let server = Server::start_with(&host.root(), &["--destroy-on-exit", "--max-connections", &places]);
    let mut held: Vec<TcpStream> = (0..scaled(4096, 200))
        .map(|_| {
            let mut stream = http::connect(&server.address);
            let _ = stream.write_all(GREETING);
            stream
        })
        .collect();
    // Over the network, each time on a new connection, and over the socket.
    for _ in 0..5 {
        server.ask("GET", "/sandboxes", None).expect(200);
        server.command(&["ls"]).expect_code(0);
    }
    // The oldest of them were let go for it.
    held[0].set_read_timeout(Some(PATIENCE)).unwrap();
    let mut said = Vec::new();
    let _ = held[0].read_to_end(&mut said);
    server.end();
}

/// What is in the folder of volumes.
fn volumes(data: &Path) -> Vec<PathBuf> {
    fs::read_dir(data.join("volumes")).unwrap().flatten().map(|entry| entry.path()).collect()
}

#[test]
fn a_volume_that_takes_long_to_remove_is_gone_at_once_and_holds_nobody_up() {
    let host = Host::shared();
    let sloplet = host.root();
    let server = Server::start_with(&sloplet, &[]);
    for name in ["many", "stuck"] {
        server.ask("POST", "/volumes", Some(json!({"name": name}))).expect(201);
    }
    let of = |name: &str| {
        let all = server.ask("GET", "/volumes", None).expect(200).json();
        let all = all.as_array().unwrap().clone();
        all.iter().find(|volume| volume["name"] == name).map(|volume| volume["id"].as_str().unwrap().to_owned())
    };
    let folder = |name: &str| sloplet.data.join("volumes").join(of(name).unwrap());
    let many = folder("many").join("data");
    for number in 0..scaled(600_000, 30_000) {
        fs::write(many.join(number.to_string()), "").unwrap();
    }
    // What cannot be removed for now stands for what takes long.
    let stuck = folder("stuck");
    let busy = stuck.join("data/busy");
    fs::create_dir(&busy).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&busy).status().unwrap();
    assert!(mounted.success());
    for name in ["many", "stuck"] {
        server.ask("DELETE", &format!("/volumes/{name}"), None).expect(204);
        assert_eq!(of(name), None);
        server.ask("POST", "/volumes", Some(json!({"name": name}))).expect(201);
        server.ask("GET", "/sandboxes", None).expect(200);
    }
    assert!(!many.exists() && !stuck.exists());
    until("what many was is removed meanwhile", || volumes(&sloplet.data).len() == 3);
    let left = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with('.');
    let away = volumes(&sloplet.data).into_iter().find(left).expect("what is stuck");
    assert!(Command::new("umount").arg(away.join("data/busy")).status().unwrap().success());
    let owner = server.key.clone();
    server.end();
    // The next start collects it.
    let server = Server::start_with(&sloplet, &[]);
    until("what was left is removed", || volumes(&sloplet.data).len() == 2);
    for name in ["many", "stuck"] {
        server.ask_as(&owner, "DELETE", &format!("/volumes/{name}"), None).expect(204);
    }
    server.end();
}

/// Bytes that the server holds of its own.
fn held(server: &Server) -> usize {
    let status =
        fs::read_to_string(format!("/proc/{}/status", server.pid().as_raw_nonzero())).expect("the server lives");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Puts the server alone into a group with so much memory, where there are such groups. What it holds by now was counted
/// elsewhere, and stays there.
fn confine(server: &Server, bytes: usize) -> Option<PathBuf> {
    let bytes = bytes - held(server);
    let group = PathBuf::from(format!("/sys/fs/cgroup/memory/sloplet-hostile-{}", std::process::id()));
    fs::create_dir(&group).ok()?;
    fs::write(group.join("memory.limit_in_bytes"), bytes.to_string()).ok()?;
    fs::write(group.join("cgroup.procs"), server.pid().as_raw_nonzero().to_string()).ok()?;
    Some(group)
}

#[test]
fn unread_streams_stalled_bodies_and_chatty_processes_take_no_more_memory_than_the_server_may_have() {
    // Buffers, and what a debug build of the server and its allocator need besides, for a thousand sandboxes.
    const BOUND: usize = 128 << 20;
    let host = Host::shared();
    let server = Server::start_with(&host.root(), &["--destroy-on-exit", "--buffers", "32MiB"]);
    // Three of them: two could take all that there is for clients.
    let keys = ["hostile", "accomplice", "another"].map(|name| server.new_key(&[name]));
    let other = server.new_key(&["other"]);
    let make = |number: usize| {
        let wish = json!({"pids": 1000, "timeout": "1h"});
        let made = server.ask_as(&keys[number % keys.len()], "POST", "/sandboxes", Some(wish));
        made.expect(201).json()["id"].as_str().unwrap().to_owned()
    };
    let sandboxes: Vec<String> = (0..scaled(1000, 6)).map(make).collect();
    let group = confine(&server, BOUND);
    // Processes that write more than anybody reads, with records that are long.
    let long = "x".repeat(10_000);
    let chatty = json!({"command": ["sh", "-c", "head -c 3000000 /dev/zero", long]});
    let (server_ref, keys_ref, chatty_ref, sandboxes_ref) = (&server, &keys, &chatty, &sandboxes);
    let each = scaled(600, 80) / 8;
    thread::scope(|scope| {
        for worker in 0..8 {
            scope.spawn(move || {
                for number in 0..each {
                    let whose = (worker + number) % keys_ref.len();
                    let path = format!("/sandboxes/{}/processes", sandboxes_ref[whose]);
                    // Some may be refused; none may do harm.
                    let _ = server_ref.ask_as(&keys_ref[whose], "POST", &path, Some(chatty_ref.clone()));
                }
            });
        }
    });
    let mut most = held(&server);
    let head = |number: usize, method: &str, path: &str, more: &str| {
        let key = &keys[number % keys.len()];
        format!("{method} /v1{path} HTTP/1.1\r\nHost: x\r\nX-API-KEY: {key}\r\n{more}\r\n").into_bytes()
    };
    // Bodies that never come to their end.
    let blob = vec![b' '; 1 << 20];
    let bodies: Vec<TcpStream> = (0..scaled(100, 30))
        .map(|number| {
            let mut stream = http::connect(&server.address);
            stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
            let length = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", 24 << 20);
            let _ = stream.write_all(&head(number, "POST", "/sandboxes", &length));
            let _ = (0..23).try_for_each(|_| stream.write_all(&blob));
            stream
        })
        .collect();
    most = most.max(held(&server));
    // Streams that nobody reads.
    let streams: Vec<TcpStream> = (0..scaled(1000, 200))
        .map(|number| {
            let mut stream = http::connect(&server.address);
            let path = match number % 2 {
                0 => "/events?since=24h".to_owned(),
                _ => format!("/sandboxes/{}/processes/{}/output", sandboxes[number % keys.len()], number),
            };
            let _ = stream.write_all(&head(number, "GET", &path, ""));
            stream
        })
        .collect();
    // All of it is there: the server lives, holds what it may, and others are served.
    for _ in 0..20 {
        most = most.max(held(&server));
        thread::sleep(Duration::from_millis(50));
    }
    assert!(most < BOUND, "{} MiB are held", most >> 20);
    println!("at most {} MiB were held", most >> 20);
    let listed = server.ask_as(&other, "GET", "/sandboxes", None).expect(200).json();
    assert_eq!(listed["sandboxes"], json!([]));
    server.ask_as(&other, "POST", "/sandboxes", Some(json!({}))).expect(201);
    server.command(&["ls"]).expect_code(0);
    drop((bodies, streams));
    server.ask_as(&keys[0], "GET", "/sandboxes", None).expect(200);
    server.end();
    if let Some(group) = group {
        until("the group is empty", || fs::remove_dir(&group).is_ok());
    }
}
