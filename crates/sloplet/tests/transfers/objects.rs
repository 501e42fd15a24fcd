//! Files of sandboxes in S3.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::server::Server;
use crate::common::{Host, tools};
use crate::storage::{SECRET, Storage};

const OPTIONS: [&str; 3] = ["--destroy-on-exit", "--s3", "s3://bucket"];

fn sum(server: &Server, path: &str) -> String {
    let said = server.command(&["exec", "my", "--", "sha256sum", path]).expect_code(0).out();
    said.split_whitespace().next().unwrap().to_owned()
}

/// The most memory that a process had, in MiB.
fn peak(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid().as_raw_nonzero())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn a_large_file_goes_out_in_parts_and_comes_back_the_same() {
    let host = Host::shared();
    let storage = Storage::start(&host);
    let sloplet = storage.known_to(host.root());
    let server = Server::start_with(&sloplet, &OPTIONS);
    server.command(&["create", "--name", "my", "--memory", "512MiB"]).expect_code(0);
    let make = "head -c 100000000 /dev/urandom > /tmp/big; : > /tmp/empty; env";
    let seen = server.command(&["exec", "my", "--", "sh", "-c", make]).expect_code(0);
    assert!(!seen.out().contains("test-"), "no credentials inside: {}", seen.out());
    let digest = sum(&server, "/tmp/big");
    let before = peak(&server);
    // Two parts are cut off on their way, and sent again.
    storage.trouble("cut-put", "2");
    let said = server.command(&["cp", "my:/tmp/big", "s3://bucket/a folder/big.bin"]).expect_code(0).out();
    assert!(said.contains(&format!("sha256:{digest}")), "{said}");
    assert_eq!((storage.log("part ").len(), storage.log("complete ").len()), (12, 1));
    // Back, cut off three times on the way.
    storage.trouble("cut-get", "3");
    server.command(&["cp", "s3://bucket/a folder/big.bin", "my:/tmp/new/back"]).expect_code(0);
    assert_eq!(sum(&server, "/tmp/new/back"), digest);
    assert_eq!(storage.log("get ").len(), 4);
    let grown = peak(&server).saturating_sub(before);
    assert!(grown < 80, "100 MB both ways took {grown} MiB more");
    server.command(&["cp", "my:/tmp/empty", "s3://bucket/empty"]).expect_code(0);
    assert_eq!(storage.object("empty"), Some(Vec::new()));
    server.command(&["cp", "s3://bucket/empty", "my:/tmp/empty-too"]).expect_code(0);
    assert_eq!(storage.unfinished(), 0);
    server.end();
}

#[test]
fn what_was_sent_before_a_server_was_killed_is_not_sent_again() {
    let host = Host::shared();
    let storage = Storage::start(&host);
    let sloplet = storage.known_to(host.root());
    let server = Server::start_with(&sloplet, &OPTIONS[1..]);
    server.command(&["create", "--name", "my", "--memory", "512MiB"]).expect_code(0);
    server.command(&["exec", "my", "--", "sh", "-c", "head -c 70000000 /dev/urandom > /tmp/big"]).expect_code(0);
    let digest = sum(&server, "/tmp/big");
    storage.trouble("slow", "0.3");
    let sending = server.invoke(&["cp", "my:/tmp/big", "s3://bucket/big"]).start();
    let started = Instant::now();
    while storage.log("part ").len() < 3 {
        assert!(started.elapsed() < Duration::from_secs(20), "nothing is sent");
        thread::sleep(Duration::from_millis(10));
    }
    server.kill();
    sending.finish().expect_code(125);
    thread::sleep(Duration::from_millis(500)); // what was on its way arrives
    let there = storage.log("part ").len();
    assert!(there < 9 && storage.object("big").is_none() && storage.unfinished() == 1, "{there}");
    storage.trouble("slow", "0");
    let server = Server::start_with(&sloplet, &OPTIONS[1..]);
    let said = server.command(&["cp", "my:/tmp/big", "s3://bucket/big"]).expect_code(0).out();
    assert!(said.contains("were there already") && said.contains(&digest), "{said}");
    assert_eq!((storage.log("part ").len(), storage.log("begin ").len(), storage.unfinished()), (9, 1, 0));
    server.end_with_its_sandboxes();
}

#[test]
fn what_cannot_be_leaves_nothing_and_says_why() {
    let host = Host::shared();
    let storage = Storage::start(&host);
    let sloplet = storage.known_to(host.root());
    let server =
        Server::start_with(&sloplet, &["--destroy-on-exit", "--s3", "s3://bucket/of/{owner}", "--s3", "s3://none"]);
    server.command(&["create", "--name", "my"]).expect_code(0);
    let copy = |from: &str, to: &str| server.command(&["cp", from, to]).expect_code(125);
    let root = server.json(&["info"])["s3"][0].as_str().unwrap().to_owned();
    assert!(root.starts_with("s3://bucket/of/") && !root.contains('{'), "{root}");
    let own = |key: &str| format!("{root}{key}");
    server.command(&["exec", "my", "--", "sh", "-c", "echo old > /tmp/x; mkdir /tmp/d"]).expect_code(0);

    copy("my:/tmp/none", &own("x")).expect_said("/tmp/none");
    copy("my:/tmp/d", &own("x"));
    copy("my:/tmp/x", "s3://bucket/of/somebody/x").expect_said("is not among what this server may use");
    copy("my:/tmp/x", "s3://bucket/of/../x").expect_said("'..'");
    copy("my:/tmp/x", "s3://none/x").expect_said("NoSuchBucket");
    copy(&own("none"), "my:/tmp/x").expect_said("there is no s3://");
    copy("/etc/hostname", &own("x")).expect_said("sloplet presign put");
    // By a key, which has a part of the bucket to itself, and sandboxes of its own.
    let key_root = server.ask("GET", "/info", None).expect(200).json()["s3"][0].as_str().unwrap().to_owned();
    assert_ne!(key_root, root);
    server.ask("POST", "/sandboxes", Some(json!({"name": "theirs"}))).expect(201);
    let into = |object: &str, sha256: &str| {
        let body = json!({"direction": "in", "path": "/tmp/t/y", "object": object, "sha256": sha256});
        server.ask("POST", "/sandboxes/theirs/transfers", Some(body))
    };
    into(&own("x"), &"0".repeat(64)).expect_refusal(403);
    let (there, key) = (format!("{key_root}other"), format!("{key_root}other").replace("s3://bucket/", ""));
    server.send(&server.key, "PUT", "/sandboxes/theirs/files?path=/tmp/t/y", b"old").expect(200);
    // Another digest than was expected; and what is other than at the beginning when it goes on after it broke off.
    storage.put(&key, &vec![7; 100_000]);
    let said = into(&there, &"0".repeat(64)).expect_refusal(409);
    assert!(said.contains("nothing was written"), "{said}");
    // The same where nobody looks at the condition.
    for _ in 0..2 {
        storage.put(&key, &vec![7; 100_000]);
        storage.trouble("cut-get", "1");
        storage.trouble("change", &key);
        let said = into(&there, &"0".repeat(64)).expect_refusal(409);
        assert!(said.contains("was changed meanwhile"), "{said}");
        storage.trouble("blind", "");
    }
    let left = server.ask("GET", "/sandboxes/theirs/files/list?path=/tmp/t", None).expect(200).json();
    assert_eq!((left["entries"].as_array().unwrap().len(), &left["entries"][0]["size"]), (1, &3.into()), "{left}");
    assert_eq!(storage.unfinished(), 0);
    for wrong in [
        json!({"direction": "up", "path": "/tmp/x", "object": &there}),
        json!({"direction": "in", "path": "/tmp/x", "object": &there, "sha256": "zz"}),
        json!({"direction": "out", "path": "/tmp/x", "object": &there, "remove": true}),
        json!({"direction": "out", "path": "", "object": &there}),
    ] {
        server.ask("POST", "/sandboxes/theirs/transfers", Some(wrong)).expect_refusal(400);
    }
    server.end();

    // Credentials that are wrong, and none.
    let wrong = sloplet.clone().with("AWS_SECRET_ACCESS_KEY", "another");
    let server = Server::start_with(&wrong, &OPTIONS);
    server.command(&["create", "--name", "my"]).expect_code(0);
    server.command(&["exec", "my", "--", "sh", "-c", "echo x > /tmp/x"]).expect_code(0);
    let said = server.command(&["cp", "my:/tmp/x", "s3://bucket/x"]).expect_code(125);
    said.expect_said("SignatureDoesNotMatch");
    server.end();
    let server = Server::start(&sloplet);
    let said = server.ask("POST", "/presign", Some(json!({"method": "put"}))).expect_refusal(409);
    assert!(said.contains("--s3 s3://BUCKET"), "{said}");
    server.end();
    let bare =
        host.root().invoke(&["serve", "--listen", "127.0.0.1:0", "--s3", "s3://bucket"]).finish().expect_code(125);
    bare.expect_said("AWS_ACCESS_KEY_ID");
}

#[test]
fn an_address_is_good_for_one_object_and_for_a_while() {
    let host = Host::shared();
    let storage = Storage::start(&host);
    let sloplet = storage.known_to(host.root());
    let server = Server::start_with(&sloplet, &OPTIONS);
    server.ask("POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201);
    let curl =
        |words: &[&str]| sloplet.other_program(&[&["curl", "-sS", "-w", "%{http_code}"], words].concat()).finish();
    let presign = |verb: &str, more: &[&str]| {
        let words = [&["presign", verb, "s3://bucket/one"], more].concat();
        let url = server.command(&words).expect_code(0).word();
        assert!(!url.contains(SECRET));
        url
    };
    let file = sloplet.folder("out").join("file");
    fs::write(&file, "by hand").unwrap();
    let put = presign("put", &[]);
    assert_eq!(curl(&["-T", file.to_str().unwrap(), &put]).out(), "200");
    assert_eq!(storage.object("one").unwrap(), b"by hand");
    // Not for another object, not to read, not when it has expired.
    assert!(curl(&["-T", file.to_str().unwrap(), &put.replace("/one?", "/two?")]).out().ends_with("403"));
    assert!(curl(&[&put]).out().ends_with("403"));
    let short = presign("get", &["--expires", "1s"]);
    assert_eq!(curl(&[&presign("get", &[])]).out(), "by hand200");
    thread::sleep(Duration::from_millis(2100));
    assert!(curl(&[&short]).out().ends_with("403"));
    // What was put there by hand becomes a file, and the object goes.
    let made = server.ask("POST", "/presign", Some(json!({"method": "put"}))).expect(200).json();
    assert_eq!(curl(&["-T", file.to_str().unwrap(), made["url"].as_str().unwrap()]).out(), "200");
    let body = json!({"direction": "in", "path": "/tmp/filled", "object": made["object"], "remove": true});
    let done = server.ask("POST", "/sandboxes/my/transfers", Some(body)).expect(200).json();
    assert_eq!((&done["bytes"], storage.log("delete ").len()), (&7.into(), 1));
    assert_eq!(server.ask("GET", "/sandboxes/my/files?path=/tmp/filled", None).expect(200).text(), "by hand");
    for expires in ["8d", "0s"] {
        server.command(&["presign", "get", "s3://bucket/one", "--expires", expires]).expect_code(125);
    }
    server.end();
}

/// What the SDK does with an S3, which is asked for here: the server is on this machine.
const SDK: &str = r#"
import hashlib, os, urllib.request
import sloplet
from sloplet import Sandbox

with Sandbox.create(image="host") as sandbox:
    files, told = sandbox.filesystem, []
    content = os.urandom(9_000_000)
    open("big", "wb").write(content)
    files.upload_large("big", "/tmp/in/big", lambda done, total: told.append((done, total)), via_s3=True)
    assert told[-1] == (9_000_000, 9_000_000), told
    assert files.read_file("/tmp/in/big", binary=True) == content
    files.download_large("/tmp/in/big", "back", lambda done, total: told.append((done, total)), via_s3=True)
    assert open("back", "rb").read() == content and told[-1] == (9_000_000, 9_000_000)
    assert sorted(os.listdir(".")) == ["back", "big"], os.listdir(".")
    files.write_file("/tmp/a.log", "x")
    saved = sandbox.create_snapshot("sdk", exclude_patterns=["*.log"])
    assert saved.excluded == ["*.log"]
    manager = sandbox.snapshots
    url = manager.get_download_url("sdk", "10m", thin=True)
    with urllib.request.urlopen(url) as answer:
        open("snapshot", "wb").write(answer.read())
    manager.export_file("sdk", "direct", thin=True)
    assert open("direct", "rb").read() == open("snapshot", "rb").read()
    came = manager.import_file("snapshot", "sdk-again")
    assert came.excluded == ["*.log"] and manager.exists("sdk-again")
    with Sandbox.create(image="sdk-again") as other:
        assert other.filesystem.read_file("/tmp/in/big", binary=True) == content
        assert not other.filesystem.exists("/tmp/a.log")
    try:
        manager.import_file("big")
        raise SystemExit("it was taken for a snapshot")
    except sloplet.SandboxError as error:
        assert "refused snapshot" in str(error), error
print("done")
"#;

#[test]
fn the_sdk_moves_large_files_and_snapshots_by_s3() {
    let host = Host::shared();
    let storage = Storage::start(&host);
    let sloplet = storage.known_to(host.root());
    let server = Server::start_with(&sloplet, &OPTIONS);
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/python").canonicalize().unwrap();
    let python = tools::python("python-sdk");
    let (python, copy) = (python.to_str().unwrap(), host.dir().join("sdk-source"));
    sloplet.other_program(&["cp", "-r", sdk.to_str().unwrap(), copy.to_str().unwrap()]).finish().expect_code(0);
    sloplet.other_program(&[python, copy.join("unasync.py").to_str().unwrap()]).finish().expect_code(0);
    let folder = sloplet.folder("sdk-work");
    let (source, url) = (copy.join("src"), format!("http://{}", server.address));
    let words = ["env", "-C", folder.to_str().unwrap(), python, "-c", SDK];
    let ran = sloplet.other_program(&words).env("PYTHONPATH", source.to_str().unwrap()).env("SLOPLET_URL", &url);
    assert_eq!(ran.env("SLOPLET_API_KEY", &server.key).finish().expect_code(0).out(), "done\n");
    assert_eq!((storage.log("delete ").len(), storage.unfinished()), (2, 0), "what was put there only to pass through");
    server.end();
}
