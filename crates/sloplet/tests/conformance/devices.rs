//! Devices of the host: for those that ask, where the wall can, and for nobody else.

use std::fs;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::json;

use super::common::{Host, Server};

/// A specification of a device that gives zeros, which only root may open on the host.
fn specification(folder: &Path) {
    let node = folder.join("zeros");
    mknodat(CWD, &node, FileType::CharacterDevice, Mode::from_raw_mode(0o600), makedev(1, 5)).unwrap();
    fs::write(folder.join("library"), "of the device").unwrap();
    let text = json!({
        "cdiVersion": "0.6.0",
        "kind": "example.com/gpu",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/example/gpu0", "hostPath": node}]}}],
        "containerEdits": {
            "env": ["EXAMPLE_GPU=yes"],
            "mounts": [{"hostPath": folder.join("library"), "containerPath": "/opt/example/library", "options": ["ro"]}],
        },
    });
    fs::write(folder.join("example.json"), text.to_string()).unwrap();
}

const LOOK: &str = "import os\n\
    try: print(os.getuid(), open('/dev/example/gpu0','rb').read(4), open('/opt/example/library').read(), os.environ['EXAMPLE_GPU'])\n\
    except OSError as e: print('none', 'EXAMPLE_GPU' in os.environ, os.path.exists('/opt/example'), sorted(os.listdir('/dev')))\n\
    try: open('/opt/example/library','w')\n\
    except OSError as e: print(e.errno)";

const SEEN: &str = "1000 b'\\x00\\x00\\x00\\x00' of the device yes\n30\n";

#[test]
fn a_device_is_shown_to_whom_asks_and_to_nobody_else() {
    let host = Host::shared();
    let folder = host.root().folder("devices");
    specification(&folder);
    let sloplet = host.root().with("SLOPLET_CDI", folder.to_str().unwrap());
    for option in ["--gpu", "--gpu=0", "--gpu=example.com/gpu=0"] {
        let ended = sloplet.python(&[option], LOOK).expect_code(0);
        assert_eq!(ended.out(), SEEN, "{ended}");
    }
    let without = sloplet.python(&[], LOOK).expect_code(0);
    assert!(without.out().starts_with("none False False ") && !without.out().contains("example"), "{without}");
    // Nobody inside makes more of it, or of others.
    let more = "import os\nprint(oct(os.stat('/dev/example/gpu0').st_mode))\n\
        for what in (lambda: os.mknod('/tmp/x', 0o20666, os.makedev(1,1)), lambda: os.chmod('/dev/example/gpu0', 0o600), lambda: os.remove('/dev/example/gpu0')):\n  \
        try: what(); print('done')\n  except OSError as e: print('refused')";
    let ended = sloplet.python(&["--gpu", "--user", "root"], more).expect_code(0);
    assert_eq!(ended.out(), "0o20666\nrefused\nrefused\nrefused\n", "{ended}");

    // In a file, and refused where it cannot be.
    let described = host.root().folder("described").join("sloplet.toml");
    fs::write(&described, "[sandbox]\ngpu = [\"0\"]\n").unwrap();
    let ended = sloplet.python(&["--config", described.to_str().unwrap()], LOOK).expect_code(0);
    assert_eq!(ended.out(), SEEN, "{ended}");
    sloplet.run(&["--gpu=7"], &["true"]).expect_code(125).expect_said("no device '7'").expect_said("example.com/gpu=0");
    for driver in ["process", "gvisor", "crun"] {
        let refused = sloplet.run(&["--driver", driver, "--gpu"], &["true"]).expect_code(125);
        refused.expect_said(driver).expect_said("cannot show a sandbox devices of the host");
    }
    let empty = host.root().with("SLOPLET_CDI", "/no/such/folder");
    empty.run(&["--gpu"], &["true"]).expect_code(125).expect_said("no CDI specification in /no/such/folder");
    let reports = sloplet.invoke(&["doctor", "--json"]).finish().json();
    let told = |driver: &str| {
        let report = reports.as_array().unwrap().iter().find(|report| report["driver"] == driver).unwrap();
        let all = report["capabilities"].as_array().unwrap();
        all.iter().find(|it| it["feature"] == "devices").unwrap()["enforcement"].clone()
    };
    assert_eq!((told("namespaces"), told("gvisor")), (json!("enforced"), json!("missing")));

    // With a server: for administrators, also after it was killed.
    let server = Server::start_with(&sloplet, &[]);
    server.command(&["create", "--gpu", "--name", "one"]).expect_code(0);
    server.command(&["create", "--name", "two"]).expect_code(0);
    let look = |server: &Server, name: &str| server.command(&["exec", name, "--", "python3", "-c", LOOK]).out();
    assert_eq!(look(&server, "one"), SEEN);
    assert!(look(&server, "two").starts_with("none "));
    assert_eq!(server.json(&["info", "one"])["gpu"], json!(["all"]));
    let key = server.new_key(&["plain", "--scope", "use"]);
    assert_eq!(server.ask_as(&key, "POST", "/sandboxes", Some(json!({"gpu": ["all"]}))).status, 403);
    server.kill();
    let server = Server::start_with(&sloplet, &[]);
    assert_eq!(look(&server, "one"), SEEN);
    server.end_with_its_sandboxes();
}
