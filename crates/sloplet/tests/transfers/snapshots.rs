//! Snapshots from one server to another.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::server::Server;
use crate::common::{Host, Sloplet, small_image};
use crate::relay::{Relay, wait};
use crate::storage::Storage;

const PROGRAMS: [&str; 12] =
    ["sh", "mkdir", "ln", "touch", "chmod", "chown", "find", "rm", "mkfifo", "truncate", "sha256sum", "env"];

/// Makes one of everything.
const FILL: &str = r#"
set -e
mkdir -p /data/deep/er /data/empty /data/.git/objects/ab /data/dist; cd /data
echo text > file; chmod 640 file; chown 1000:33 file; touch -d '2001-02-03 04:05:06.789' file
ln file deep/er/hard; ln -s /nowhere soft; mkfifo pipe; echo set > set-id; chmod 4755 set-id
echo key > .env; echo packed > .git/objects/ab/cdef; echo built > dist/app.js
truncate -s 300M sparse; echo end >> sparse
mkdir "$(printf '\377 odd')"; echo "a file" > .wh.named
rm /etc/image; echo again > /etc/motd
chmod 1777 empty; touch -d '2002-02-02 02:02:02' deep
"#;

/// Says all about it.
const LOOK: &str = r#"
find /data /etc -type d -printf '%p %y %m %U %G %T@\n'
find /data /etc ! -type d -printf '%p %y %m %U %G %n %T@ %s %l\n'
find /data -size +200M -printf '%p holes %b\n'
find /data /etc -type f -size -1M -exec sha256sum {} +
"#;

/// Another server with folders of its own.
pub fn elsewhere(sloplet: &Sloplet, name: &str) -> Sloplet {
    let folder = sloplet.folder(name);
    let mut other = sloplet.clone();
    (other.data, other.run_dir) = (folder.join("data"), folder.join("run"));
    other
}

fn look(server: &Server, name: &str) -> Vec<String> {
    let said = server.command(&["exec", "-u", "root", name, "--", "sh", "-c", LOOK]).expect_code(0).out();
    let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
    lines.sort();
    // What a sandbox has for itself, and no snapshot has.
    lines.retain(|line| {
        !line.contains("/etc/resolv.conf") && !line.contains("/etc/host") && !line.starts_with("/etc d")
    });
    lines
}

/// What there is in a store, by name.
fn inventory(data: &Path) -> Vec<PathBuf> {
    let folders = ["layers", "info", "names", "tmp"].map(|folder| data.join("images").join(folder));
    let mut found: Vec<PathBuf> =
        folders.iter().flat_map(|f| fs::read_dir(f).into_iter().flatten()).map(|e| e.unwrap().path()).collect();
    found.sort();
    found
}

fn filled(host: &Host, server: &Server) {
    let image = small_image(host, &PROGRAMS);
    server.command(&["image", "import", image.to_str().unwrap(), "--name", "small"]).expect_code(0);
    server.command(&["create", "--name", "one", "--image", "small", "--env", "OF=one"]).expect_code(0);
    server.command(&["exec", "-u", "root", "one", "--", "sh", "-c", FILL]).expect_code(0);
}

#[test]
fn a_snapshot_arrives_whole_elsewhere_or_not_at_all() {
    let host = Host::shared();
    let (here, there) = (host.root(), elsewhere(&host.root(), "there"));
    let server = Server::start(&here);
    filled(&host, &server);
    server.command(&["snapshot", "one", "mine"]).expect_code(0);
    let before = look(&server, "one");
    assert!(before.iter().any(|line| line.contains("/data/.git/objects/ab/cdef")), "{before:?}");
    let file = here.folder("out").join("mine.sloplet");
    let file = file.to_str().unwrap();
    let told = server.json(&["snapshot", "export", "mine", file]);
    assert_eq!(told["bytes"], fs::metadata(file).unwrap().len());
    let sum = here.other_program(&["sha256sum", file]).finish().expect_code(0).out();
    assert_eq!(sum.split_whitespace().next(), told["sha256"].as_str());
    assert!(fs::metadata(file).unwrap().len() < 40 << 20, "holes take no room");

    let other = Server::start(&there);
    let came = other.json(&["snapshot", "import", file]);
    assert_eq!((&came["name"], &came["sha256"], &came["left_out"]), (&"mine".into(), &told["sha256"], &0.into()));
    other.command(&["create", "--name", "two", "--image", "mine"]).expect_code(0);
    let after = look(&other, "two");
    let missing: Vec<&String> = before.iter().filter(|line| !after.contains(line)).collect();
    assert!(missing.is_empty(), "{missing:#?} did not arrive: {after:#?}");
    assert_eq!(before.len(), after.len());
    // What is left out was asked for, and is told wherever it goes.
    server.command(&["snapshot", "one", "less", "--exclude", "dist/", "--exclude", "*.env"]).expect_code(0);
    let less = server.command(&["snapshot", "export", "less", "-"]).expect_code(0).stdout;
    other.invoke(&["snapshot", "import", "-"]).input(less).finish().expect_code(0);
    let listed = other.json(&["snapshot", "ls"]);
    let listed = listed.as_array().unwrap().iter().find(|one| one["name"] == "less").unwrap();
    assert_eq!(listed["excluded"], serde_json::json!(["dist/", "*.env"]));
    other.command(&["create", "--name", "three", "--image", "less"]).expect_code(0);
    let without = look(&other, "three");
    assert!(!without.iter().any(|line| line.contains("/dist") || line.contains("/.env")), "{without:?}");
    assert!(without.iter().any(|line| line.contains("/data/.git/objects/ab/cdef")), "{without:?}");
    server.command(&["snapshot", "one", "no", "--exclude", "../x"]).expect_code(125).expect_said("is no pattern");
    // Through pipes, and under another name; the first name is taken.
    other.command(&["snapshot", "import", file]).expect_code(125).expect_said("already: give this one another name");
    let piped = server.command(&["snapshot", "export", "mine", "-"]).expect_code(0);
    assert_eq!(piped.stdout, fs::read(file).unwrap());
    other.invoke(&["snapshot", "import", "-", "--name", "yours"]).input(piped.stdout).finish().expect_code(0);

    // Damaged or cut off: refused, with the reason, and nothing is left.
    let whole = fs::read(file).unwrap();
    let kept = inventory(&there.data);
    let listed = other.json(&["snapshot", "ls"]);
    for at in [9, whole.len() / 3, whole.len() / 2, whole.len() - 60, whole.len() - 1] {
        let mut changed = whole.clone();
        changed[at] ^= 4;
        let said = other.send(&other.key, "POST", "/snapshots?name=x", &changed).expect_refusal(400);
        assert!(said.starts_with("refused snapshot: "), "{said}");
        let said = other.send(&other.key, "POST", "/snapshots?name=x", &whole[..at]).expect_refusal(400);
        assert!(said.starts_with("refused snapshot: "), "{said}");
    }
    other.send(&other.key, "POST", "/snapshots", b"").expect_refusal(400);
    other.command(&["snapshot", "import", "/etc/hostname"]).expect_code(125).expect_said("refused snapshot");
    assert_eq!(inventory(&there.data), kept);
    assert_eq!(other.json(&["snapshot", "ls"]), listed);
    server.command(&["snapshot", "export", "nothing", file]).expect_code(125).expect_said("'nothing' was not found");
    other.end();
    server.end();
}

#[test]
fn what_is_not_in_it_is_said() {
    let host = Host::shared();
    let here = host.root();
    let server = Server::start(&here);
    server.command(&["create", "--name", "of-host", "--image", "host"]).expect_code(0);
    server.command(&["snapshot", "of-host", "s"]).expect_code(0);
    let file = here.folder("out").join("s.sloplet");
    let file = file.to_str().unwrap();
    let refused = server.command(&["snapshot", "export", "s", file]).expect_code(125);
    refused.expect_said("this host's own programs");
    assert!(!Path::new(file).exists());
    server.command(&["snapshot", "export", "--thin", "s", file]).expect_code(0);
    let came = server.json(&["snapshot", "import", file, "--name", "t"]);
    server.command(&["create", "--name", "again", "--image", came["name"].as_str().unwrap()]).expect_code(0);
    server.command(&["exec", "again", "--", "true"]).expect_code(0);
    server.end();
}

#[test]
fn a_server_that_is_killed_while_one_comes_in_leaves_nothing() {
    let host = Host::shared();
    let (here, there) = (host.root(), elsewhere(&host.root(), "there"));
    let server = Server::start(&here);
    filled(&host, &server);
    server.command(&["snapshot", "one", "mine"]).expect_code(0);
    let archive = server.command(&["snapshot", "export", "mine", "-"]).expect_code(0).stdout;
    let other = Server::start(&there);
    let kept = inventory(&there.data);
    // Half of it, and then nothing for a while.
    let mut importing = other.invoke(&["snapshot", "import", "-"]).input_pipe().start();
    use std::io::Write;
    importing.stdin.as_mut().unwrap().write_all(&archive[..archive.len() / 2]).unwrap();
    let started = std::time::Instant::now();
    while inventory(&there.data) == kept {
        assert!(started.elapsed().as_secs() < 10, "nothing came in");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    other.kill();
    importing.finish().expect_code(125);
    let other = Server::start(&there);
    other.command(&["gc"]).expect_code(0);
    assert_eq!(inventory(&there.data), kept);
    assert_eq!(other.json(&["snapshot", "ls"]), Value::Array(Vec::new()));
    other.end();
    server.end();
}

#[test]
fn a_client_that_is_killed_leaves_nothing_here_and_nothing_there() {
    let host = Host::shared();
    let (here, there) = (host.root(), elsewhere(&host.root(), "there"));
    let server = Server::start(&here);
    let relay = Relay::to(&server.address);
    let by_relay = |words: &[&str]| {
        let url = format!("http://{}", relay.address);
        server.invoke(words).env("SLOPLET_URL", &url).env("SLOPLET_API_KEY", &server.key)
    };
    let done = |words: &[&str]| by_relay(words).finish().expect_code(0);
    done(&["create", "--name", "one"]);
    done(&["exec", "one", "--", "sh", "-c", "head -c 9000000 /dev/urandom > /tmp/x"]);
    done(&["snapshot", "one", "mine"]);
    let archive = done(&["snapshot", "export", "--thin", "mine", "-"]).stdout;
    // While it goes out: neither the file nor a part of it.
    *relay.down.lock().unwrap() = Some(3_000_000);
    relay.stalls.store(true, Ordering::SeqCst);
    let folder = here.folder("out");
    let file = folder.join("mine.sloplet");
    let words = ["snapshot", "export", "--thin", "mine", file.to_str().unwrap()];
    let exporting = by_relay(&words).start();
    wait("nothing goes out", || relay.cut.load(Ordering::SeqCst) == 1);
    exporting.signal(Signal::KILL);
    exporting.finish();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "something is left");
    relay.stalls.store(false, Ordering::SeqCst);
    by_relay(&words).finish().expect_code(0);
    assert_eq!(fs::read(&file).unwrap(), archive);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    // While it comes in: the server forgets what it had unpacked, at once.
    let other = Server::start(&there);
    let kept = inventory(&there.data);
    let mut importing = other.invoke(&["snapshot", "import", "-"]).input_pipe().start();
    use std::io::Write;
    importing.stdin.as_mut().unwrap().write_all(&archive[..archive.len() / 2]).unwrap();
    wait("nothing comes in", || inventory(&there.data) != kept);
    importing.signal(Signal::KILL);
    importing.finish();
    wait("something is left", || inventory(&there.data) == kept);
    assert_eq!(other.json(&["snapshot", "ls"]), Value::Array(Vec::new()));
    other.invoke(&["snapshot", "import", "-"]).input(archive).finish().expect_code(0);
    other.end();
    server.end();
}

#[test]
fn through_s3_it_is_the_same() {
    let host = Host::shared();
    let storage = Storage::start(&host);
    let here = storage.known_to(host.root());
    let there = elsewhere(&here, "there");
    let server = Server::start_with(&here, &["--destroy-on-exit", "--s3", "s3://bucket/mine"]);
    filled(&host, &server);
    server.command(&["snapshot", "one", "mine"]).expect_code(0);
    storage.trouble("cut-put", "1");
    let told = server.json(&["snapshot", "export", "mine", "s3://bucket/mine/it.sloplet"]);
    assert_eq!(storage.object("mine/it.sloplet").unwrap().len() as u64, told["bytes"].as_u64().unwrap());
    let said = server.command(&["snapshot", "export", "mine", "s3://bucket/elsewhere"]).expect_code(125);
    said.expect_said("is not among what this server may use: s3://bucket/mine/");
    let other = Server::start_with(&there, &["--destroy-on-exit", "--s3", "s3://bucket"]);
    storage.trouble("cut-get", "2");
    let came = other.json(&["snapshot", "import", "s3://bucket/mine/it.sloplet"]);
    assert_eq!(came["sha256"], told["sha256"]);
    assert_eq!(storage.log("get ").len(), 3, "it went on where it broke off");
    other.command(&["create", "--name", "two", "--image", "mine"]).expect_code(0);
    assert_eq!(look(&server, "one"), look(&other, "two"));
    other
        .command(&["snapshot", "import", "s3://bucket/none"])
        .expect_code(125)
        .expect_said("there is no s3://bucket/none");
    storage.put("bad", b"not a snapshot");
    other.command(&["snapshot", "import", "s3://bucket/bad"]).expect_code(125).expect_said("refused snapshot");
    other.end();
    server.end();
}
