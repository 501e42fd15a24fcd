//! Who is let in, and who is not.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::client::{Served, complained, said};
use crate::common::Host;

#[test]
fn a_key_opens_its_owners_sandboxes_and_tells_nothing_of_others() {
    let host = Host::shared();
    let served = Served::start(&host.root(), &[]);
    served.sandbox("mine");
    let other = served.server.new_key(&["other", "--scope", "use"]);
    let reader = served.server.new_key(&["reader", "--scope", "read"]);
    let public = |name: &str| fs::read_to_string(served.path(&format!("{name}.pub"))).unwrap();
    served.new_key("theirs");
    let added = served.server.ask_as(&other, "POST", "/ssh-keys", Some(json!({"public_key": public("theirs")})));
    assert_eq!(added.status, 201);
    let made = served.server.ask_as(&other, "POST", "/sandboxes", Some(json!({"name": "theirs", "memory": "64MiB"})));
    assert_eq!(made.status, 201);
    assert_eq!(said(served.ssh_as("theirs", "theirs", &["echo in"]), 0), "in\n");
    // Somebody else's sandbox, by name or id, is as absent as one that never was.
    let id = served.server.json(&["ls"])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(said(served.ssh("mine", &["echo in"]), 0), "in\n");
    assert_eq!(said(served.ssh(&id, &["echo in"]), 0), "in\n");
    let absent = complained(served.ssh_as("theirs", "never", &["true"]), 255);
    assert!(absent.contains("never"), "{absent}");
    for name in ["mine", &id] {
        let foreign = complained(served.ssh_as("theirs", name, &["true"]), 255);
        assert_eq!(foreign.replace(name, "never"), absent);
        let forward = complained(served.ssh_as("theirs", name, &["-W", "127.0.0.1:1"]), 255);
        assert!(!forward.contains("refused"), "{forward}");
    }
    // A key is one owner's; a list shows one's own; those who may only look may not add.
    let taken = served.server.ask("POST", "/ssh-keys", Some(json!({"public_key": public("theirs")})));
    assert_eq!(taken.status, 409);
    let lists = |key: &str| served.server.ask_as(key, "GET", "/ssh-keys", None).json().as_array().unwrap().len();
    assert_eq!((lists(&served.server.key), lists(&other)), (0, 1));
    assert_eq!(served.server.json(&["key", "ssh", "ls"])[0]["label"], "id");
    assert_eq!(
        served.server.ask_as(&reader, "POST", "/ssh-keys", Some(json!({"public_key": public("id")}))).status,
        403
    );
    for bad in ["", "nonsense", "ssh-ed25519 AAAA", "-----BEGIN OPENSSH PRIVATE KEY-----"] {
        assert_eq!(served.server.ask("POST", "/ssh-keys", Some(json!({"public_key": bad}))).status, 400, "{bad}");
    }
    let private = served.path("id");
    let refused = served.server.command(&["key", "ssh", "add", private.to_str().unwrap()]);
    refused.expect_code(125).expect_said(".pub");

    // Unknown keys, passwords, and keys that were removed do not open; nor do those of API keys that are gone.
    served.new_key("unknown");
    assert!(complained(served.ssh_as("unknown", "mine", &["true"]), 255).contains("Permission denied (publickey)"));
    served.server.command(&["key", "ssh", "rm", "id"]).expect_code(0);
    assert!(complained(served.ssh("mine", &["true"]), 255).contains("Permission denied"));
    let keys = served.server.json(&["key", "ls"]);
    let of_other = keys.as_array().unwrap().iter().find(|key| key["label"] == "other").unwrap();
    served.server.command(&["key", "rm", of_other["id"].as_str().unwrap()]).expect_code(0);
    assert!(complained(served.ssh_as("theirs", "theirs", &["true"]), 255).contains("Permission denied"));
    // Who was turned away is written down.
    let audit = served.server.command(&["audit"]).expect_code(0).out();
    assert!(audit.contains("SSH login refused with 401 from 127.0.0.1"), "{audit}");
    served.server.end();
}

#[test]
fn a_file_of_keys_is_read_at_each_login_and_the_api_needs_none() {
    let host = Host::shared();
    let root = host.root();
    let file = root.folder("keys").join("authorized_keys");
    fs::write(&file, "# nobody yet\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let served = Served::bare(&root, &["--ssh-authorized-keys", file.to_str().unwrap()]);
    served.sandbox("my");
    served.new_key("id");
    said(served.ssh("my", &["true"]), 255);
    fs::copy(served.path("id.pub"), &file).unwrap();
    assert_eq!(served.say("my", "echo in"), "in\n");
    // A line that means a restriction opens nothing: it is not overlooked.
    let line = fs::read_to_string(served.path("id.pub")).unwrap();
    fs::write(&file, format!("command=\"false\" {line}")).unwrap();
    said(served.ssh("my", &["true"]), 255);

    // Over the API's own way: no key, no port, and the server's key is known beforehand.
    let ended =
        served.server.invoke(&["ssh", "my", "--", "echo by the API; exit 4"]).env("HOME", "/nonexistent").finish();
    assert_eq!((ended.code, ended.out().as_str()), (4, "by the API\n"), "{ended}");
    let config = served.server.command(&["ssh", "my", "--config"]).expect_code(0).out();
    let path = served.path("config");
    fs::write(&path, config).unwrap();
    let by_config = root.other_program(&["ssh", "-F", path.to_str().unwrap(), "my", "echo by config"]);
    let ended = by_config.within(Duration::from_secs(60)).finish();
    assert_eq!((ended.code, ended.out().as_str()), (0, "by config\n"), "{ended}");
    served.server.invoke(&["ssh", "no such", "--", "true"]).finish().expect_code(125);
    let missing = served.server.invoke(&["ssh", "missing", "--", "true"]).finish().expect_code(255);
    missing.expect_said("missing");
    served.server.end();
}

#[test]
fn nonsense_silence_and_crowds_do_no_harm() {
    let host = Host::shared();
    let served = Served::start(&host.root(), &[]);
    served.sandbox("my");
    let pid = served.server.pid();
    // Clients that say nothing, or stop in the middle, are kept waiting beside all that follows.
    let silent: Vec<TcpStream> = (0..10).map(|_| TcpStream::connect(&served.address).unwrap()).collect();
    let halfway: Vec<TcpStream> = (0..10)
        .map(|_| {
            let mut stream = TcpStream::connect(&served.address).unwrap();
            stream.write_all(b"SSH-2.0-half\r\n\0\0\x05").unwrap();
            stream
        })
        .collect();
    for garbage in [
        &[0xff; 70_000][..],
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n\xff\xff\xff\xff\xff\xff\xff\xff",
        b"SSH-1.5-x\r\n",
    ] {
        let mut stream = TcpStream::connect(&served.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"SSH-2.0-sloplet"), "{answer:?}");
    }
    thread::scope(|scope| {
        let served = &served;
        let clients: Vec<_> =
            (0..20).map(|number| scope.spawn(move || served.say("my", &format!("echo {number}")))).collect();
        for (number, client) in clients.into_iter().enumerate() {
            assert_eq!(client.join().unwrap(), format!("{number}\n"));
        }
    });
    drop((silent, halfway));
    assert_eq!(served.server.pid(), pid);
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap().count();
    let before = descriptors();
    for _ in 0..5 {
        served.say("my", "true");
    }
    crate::client::until("closed connections", || (descriptors() <= before).then_some(()));
    served.server.end();
}
