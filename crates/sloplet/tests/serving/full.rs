//! A server whose disk is full.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Host, Server};

/// A small file system in a folder, as long as this lives.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Self {
        fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m,mode=755", "none"]).arg(at).status();
        assert!(mounted.unwrap().success());
        Self(at.to_owned())
    }

    /// Takes the last byte.
    fn fill(&self) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.0.join("fill")).unwrap();
        for size in [65536, 4096, 512, 1] {
            while file.write_all(&vec![b'x'; size]).is_ok() {}
        }
    }

    fn free(&self) {
        fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn exec(served: &Server, name: &str, command: &str) -> (u16, Value) {
    let reply = served.ask("POST", &format!("/sandboxes/{name}/exec"), Some(json!({"command": command})));
    (reply.status, reply.json())
}

fn make(served: &Server, name: &str) -> u16 {
    let body = json!({"name": name, "image": "host", "memory": "128MiB", "disk": "32MiB", "timeout": "5h"});
    served.ask("POST", "/sandboxes", Some(body)).status
}

#[track_caller]
fn state(served: &Server, name: &str) -> String {
    let reply = served.ask("GET", &format!("/sandboxes/{name}"), None).expect(200);
    reply.json()["state"].as_str().unwrap().to_owned()
}

#[test]
fn with_a_full_disk_nothing_is_done_unrecorded_and_everything_can_be_paused_and_removed() {
    let host = Host::shared();
    let sloplet = host.root();
    let disk = SmallDisk::mount(&sloplet.data);
    let mut served = Server::start_with(&sloplet, &[]);
    let key = served.key.clone();
    for name in ["p", "q", "r"] {
        assert_eq!(make(&served, name), 201);
    }
    assert_eq!(exec(&served, "p", "head -c 2000000 /dev/urandom > ~/much").0, 200);
    served.ask("POST", "/sandboxes/p/snapshot", Some(json!({"name": "s"}))).expect(201);
    disk.fill();

    // What cannot be recorded is not done. The last page of a file may still have room for a line.
    let long = format!(": {}; echo ran", "x".repeat(3000));
    let refused = (0..100).map(|_| exec(&served, "p", &long)).find(|(status, _)| *status != 200);
    let (status, said) = refused.expect("a command that is refused");
    assert_eq!(status, 507, "{said}");
    assert!(said["message"].as_str().unwrap().contains("the command was not started"), "{said}");
    let runs = (0..20).map(|_| sloplet.run(&[], &["sh", "-c", &long])).find(|ended| ended.code != 0);
    let ended = runs.expect("a run that is refused");
    assert!(!ended.out().contains("ran") && ended.stderr.contains("ledger"), "{ended}");
    assert_eq!(make(&served, "new"), 507);

    // What makes room, or does without it, is done.
    served.ask("POST", "/sandboxes/q/pause", None).expect(200);
    assert_eq!(state(&served, "q"), "paused");
    served.ask("DELETE", "/sandboxes/r", None).expect(204);
    served.ask("DELETE", "/snapshots/s", None).expect(204);
    assert_eq!(served.ask("GET", "/sandboxes/new", None).status, 404);

    // With space there is a reserve again; and with that, the next server starts on a full disk.
    disk.free();
    served.ask("POST", "/sandboxes/q/resume", None).expect(200);
    served.ask("POST", "/sandboxes/q/pause", None).expect(200);
    assert!(sloplet.data.join("sloplet.reserve").exists());
    disk.fill();
    served.kill();
    served = Server::start_with(&sloplet, &[]);
    served.key = key;
    assert_eq!((state(&served, "p").as_str(), state(&served, "q").as_str()), ("running", "paused"));
    served.ask("DELETE", "/sandboxes/q", None).expect(204);
    disk.free();

    let started = Instant::now();
    while exec(&served, "p", "true").0 != 200 {
        assert!(started.elapsed() < Duration::from_secs(30), "it does not recover");
        thread::sleep(Duration::from_millis(50));
    }
    let verified = served.ask("GET", "/audit/verify", None).expect(200).json();
    assert_eq!(verified["sound"], true, "{verified}");
    served.end_with_its_sandboxes();
}
