//! The same against an S3 that others wrote, with its own idea of signatures and answers: rclone's.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;

use serde_json::json;

use crate::common::server::Server;
use crate::common::{Host, Sloplet, tools};
use crate::relay::{Relay, wait};
use crate::snapshots::elsewhere;
use crate::storage::{KEY, SECRET};

const OPTIONS: [&str; 2] = ["--s3", "s3://bucket"];

/// A running rclone that serves a folder with the bucket `bucket`; ends when dropped.
struct Rclone {
    child: Child,
    folder: PathBuf,
    address: String,
}

impl Rclone {
    fn start(host: &Host) -> Self {
        let program = tools::folder("rclone").join("bin/rclone");
        let folder = host.dir().join("rclone");
        fs::create_dir_all(folder.join("bucket")).unwrap();
        let mut child = Command::new(program)
            .args(["serve", "s3", "--config=/dev/null", "--addr=127.0.0.1:0", "--auth-key", &format!("{KEY},{SECRET}")])
            .arg(&folder)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("http://") {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "rclone did not start");
        }
        // What else it says, nobody reads; it must not wait for that.
        thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let address = line.split("http://").nth(1).unwrap().split(['/', ']']).next().unwrap().to_owned();
        Self { child, folder, address }
    }

    fn known_to(sloplet: Sloplet, address: &str) -> Sloplet {
        let sloplet = sloplet.with("AWS_ENDPOINT_URL_S3", &format!("http://{address}"));
        sloplet.with("AWS_ACCESS_KEY_ID", KEY).with("AWS_SECRET_ACCESS_KEY", SECRET)
    }

    fn object(&self, key: &str) -> PathBuf {
        self.folder.join("bucket").join(key)
    }
}

impl Drop for Rclone {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sum(server: &Server, path: &str) -> String {
    let said = server.command(&["exec", "my", "--", "sha256sum", path]).expect_code(0).out();
    said.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn parts_interruptions_and_digests_are_the_same_to_another_s3() {
    let host = Host::shared();
    let rclone = Rclone::start(&host);
    let relay = Relay::to(&rclone.address);
    let sloplet = Rclone::known_to(host.root(), &relay.address);
    let server = Server::start_with(&sloplet, &OPTIONS);
    server.command(&["create", "--name", "my", "--memory", "512MiB"]).expect_code(0);
    server.command(&["exec", "my", "--", "sh", "-c", "head -c 17000000 /dev/urandom > /tmp/big"]).expect_code(0);
    let digest = sum(&server, "/tmp/big");
    // Of three parts the second does not arrive.
    relay.held.store(2, Ordering::SeqCst);
    let sending = server.invoke(&["cp", "my:/tmp/big", "s3://bucket/a folder/big.bin"]).start();
    wait("no part arrived", || relay.good.load(Ordering::SeqCst) == 3);
    server.kill();
    sending.finish().expect_code(125);
    relay.held.store(0, Ordering::SeqCst);
    assert!(!rclone.object("a folder/big.bin").exists());
    let server = Server::start_with(&sloplet, &OPTIONS);
    let said = server.command(&["cp", "my:/tmp/big", "s3://bucket/a folder/big.bin"]).expect_code(0).out();
    assert!(said.contains("were there already") && said.contains(&digest), "{said}");
    let there = rclone.object("a folder/big.bin");
    let seen = sloplet.other_program(&["sha256sum", there.to_str().unwrap()]).finish().expect_code(0).out();
    assert!(seen.starts_with(&digest), "{seen}");
    // Back, cut off on the way.
    *relay.down.lock().unwrap() = Some(5_000_000);
    server.command(&["cp", "s3://bucket/a folder/big.bin", "my:/tmp/back"]).expect_code(0);
    assert_eq!((sum(&server, "/tmp/back"), relay.cut.load(Ordering::SeqCst)), (digest.clone(), 1));
    // What has another digest than was expected is no file.
    server.ask("POST", "/sandboxes", Some(json!({"name": "theirs"}))).expect(201);
    let body = |sha256: &str| json!({"direction": "in", "path": "/tmp/t", "object": "s3://bucket/a folder/big.bin", "sha256": sha256});
    server.ask("POST", "/sandboxes/theirs/transfers", Some(body(&"0".repeat(64)))).expect_refusal(409);
    server.ask("GET", "/sandboxes/theirs/files/stat?path=/tmp/t", None).expect_refusal(404);
    server.ask("POST", "/sandboxes/theirs/transfers", Some(body(&digest))).expect(200);
    server.end_with_its_sandboxes();
}

#[test]
fn addresses_and_snapshots_are_the_same_to_another_s3() {
    let host = Host::shared();
    let rclone = Rclone::start(&host);
    let sloplet = Rclone::known_to(host.root(), &rclone.address);
    let options = [&["--destroy-on-exit"][..], &OPTIONS].concat();
    let server = Server::start_with(&sloplet, &options);
    let curl = |words: &[&str]| {
        sloplet.other_program(&[&["curl", "-sS", "-w", "%{http_code}"], words].concat()).finish().out()
    };
    let presign = |words: &[&str]| server.command(&[&["presign"], words].concat()).expect_code(0).word();
    let file = sloplet.folder("out").join("file");
    fs::write(&file, "by hand").unwrap();
    let file = file.to_str().unwrap();
    let put = presign(&["put", "s3://bucket/one & two"]);
    assert_eq!(curl(&["-T", file, &put]), "200");
    assert_eq!(fs::read(rclone.object("one & two")).unwrap(), b"by hand");
    let short = presign(&["get", "s3://bucket/one & two", "--expires", "1s"]);
    assert_eq!(curl(&[&presign(&["get", "s3://bucket/one & two"])]), "by hand200");
    // Not for another object, not to read, not when its time is over.
    assert!(curl(&["-T", file, &put.replace("/one", "/two")]).ends_with("403"));
    assert!(curl(&[&put]).ends_with("403"));
    wait("an address is good for ever", || curl(&[&short]).contains("AccessDenied"));

    server.command(&["create", "--name", "my"]).expect_code(0);
    server.command(&["exec", "my", "--", "sh", "-c", "head -c 9000000 /dev/urandom > /tmp/kept"]).expect_code(0);
    let digest = sum(&server, "/tmp/kept");
    server.command(&["snapshot", "my", "mine"]).expect_code(0);
    let told = server.json(&["snapshot", "export", "mine", "s3://bucket/mine.sloplet", "--thin"]);
    let there = rclone.object("mine.sloplet");
    let seen = sloplet.other_program(&["sha256sum", there.to_str().unwrap()]).finish().expect_code(0).out();
    assert!(seen.starts_with(told["sha256"].as_str().unwrap()), "{seen} {told}");
    let other = Server::start_with(&elsewhere(&sloplet, "there"), &options);
    let came = other.json(&["snapshot", "import", "s3://bucket/mine.sloplet"]);
    assert_eq!(came["sha256"], told["sha256"]);
    other.command(&["create", "--name", "my", "--image", "mine"]).expect_code(0);
    assert_eq!(sum(&other, "/tmp/kept"), digest);
    other.end();
    server.end();
    // Another secret is none.
    let wrong = sloplet.clone().with("AWS_SECRET_ACCESS_KEY", "another");
    let server = Server::start_with(&wrong, &options);
    server.command(&["create", "--name", "my"]).expect_code(0);
    server.command(&["exec", "my", "--", "sh", "-c", "echo x > /tmp/x"]).expect_code(0);
    server.command(&["cp", "my:/tmp/x", "s3://bucket/x"]).expect_code(125).expect_said("SignatureDoesNotMatch");
    assert!(!rclone.object("x").exists());
    server.end();
}
