//! A whole machine: an init system in a virtual machine, in place of a sandbox. It is booted once, and asked for everything.

use std::fs;
use std::time::Duration;

use serde_json::json;

use super::common::{Server, fast};
use super::network::greeter;
use super::{VM, Wall};

/// The wall, and an image with an init system.
const WHOLE: Wall = Wall { name: "vm-full", image: "debian-machine", ..VM };

/// An init system under emulation takes its time on a busy host.
const PATIENCE: Duration = Duration::from_secs(900);

#[test]
fn what_is_no_machine_is_refused() {
    let ground = Wall { image: "host", ..WHOLE }.shared();
    let sloplet = ground.root();
    let refused = sloplet.run(&["--isolation", "container", "--machine", "full"], &["true"]).expect_code(125);
    refused.expect_said("--isolation vm");
    let root = sloplet.folder("root");
    fs::create_dir(root.join("bin")).unwrap();
    let words = ["--isolation", "vm", "--machine", "full", "--image", root.to_str().unwrap()];
    let refused = sloplet.invoke_run(&words, &["true"]).within(PATIENCE).finish().expect_code(125);
    refused.expect_said("no /sbin/init").expect_said("debian-machine");
}

#[test]
fn a_whole_machine_is_one() {
    if fast() {
        return; // its image takes a while to build
    }
    let ground = WHOLE.shared();
    let sloplet = ground.root();
    let (open, shut) = (greeter(), greeter());
    let server = Server::start(&sloplet);
    let (url, key) = (format!("http://{}", server.address), server.key.clone());
    let invoke = |words: &[&str]| {
        let invocation = server.invoke(words).env("SLOPLET_URL", &url).env("SLOPLET_API_KEY", &key);
        invocation.within(PATIENCE).finish()
    };
    let ok = |words: &[&str]| invoke(words).expect_code(0).out();
    let sh = |user: &str, script: &str| ok(&["exec", "--user", user, "one", "--", "sh", "-c", script]);
    let user_data = sloplet.folder("seed").join("user-data");
    fs::write(&user_data, "#cloud-config\nwrite_files:\n- {path: /etc/seeded, content: yes-it-was}\n").unwrap();
    let mount = format!("{}:/var/lib/cloud/seed/nocloud/user-data", user_data.display());
    let port = open.to_string();
    let words = ["create", "--isolation", "vm", "--machine", "full", "--image", "debian-machine", "--name", "one"];
    let more = ["--hostname", "drop", "--disk", "300MiB", "--allow-host-port", &port, "--mount", &mount, "--json"];
    let made = invoke(&[&words[..], &more].concat()).expect_code(0).json();
    assert_eq!((&made["isolation"], &made["driver"]), (&json!("vm"), &json!("vm-full")));

    // A machine of its own: its kernel, its init system, its root.
    let host = rustix::system::uname().release().to_string_lossy().into_owned();
    assert_ne!(sh("user", "uname -r").trim(), host);
    assert_eq!(sh("user", "cat /proc/1/comm; hostname; id -un"), "systemd\ndrop\nuser\n");
    assert_eq!(sh("user", "systemctl is-system-running --wait"), "running\n");
    assert_eq!(sh("user", "sudo systemctl restart cron 2>/dev/null; systemctl is-active sloplet-agent"), "active\n");
    assert_eq!(sh("root", "mount -t tmpfs none /mnt && touch /mnt/x && umount /mnt && echo mounted"), "mounted\n");
    assert_eq!(sh("root", "cat /etc/seeded; cloud-init status"), "yes-it-wasstatus: done\n");
    assert_eq!(sh("root", "ls /sys/class/net"), "lo\n");
    let disk: u64 = sh("root", "df -m --output=size / | tail -n 1").trim().parse().unwrap();
    assert!((150..=300).contains(&disk), "a disk of {disk} MiB");

    // A service of the user's own, a port of it through the agent, and the way out.
    let unit = "printf '[Service]\\nExecStart=python3 -m http.server 3000 --bind 127.0.0.1 --directory /srv\\n' \
                >/etc/systemd/system/web.service; echo port >/srv/index.html; systemctl daemon-reload; systemctl start web";
    sh("root", unit);
    let path = format!("GET /preview/{}/3000/ HTTP/1.1\r\n", made["id"].as_str().unwrap());
    let head = format!("{path}Host: {}\r\nX-API-KEY: {}\r\nConnection: close\r\n\r\n", server.address, server.key);
    let asked = || super::common::http::exchange(&server.address, head.as_bytes());
    let reached = (0..300).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        asked().text() == "port\n"
    });
    assert!(reached, "{}", asked().text());
    let ask = |port| format!("curl -sSf -m 20 http://host.sloplet.internal:{port}/ 2>/dev/null || echo no");
    assert_eq!(sh("user", &ask(open)), "reached\n");
    assert_eq!(sh("root", &ask(shut)), "no\n");

    // Files in and out; what it uses.
    let file = sloplet.folder("files").join("a");
    fs::write(&file, "content").unwrap();
    ok(&["cp", file.to_str().unwrap(), "one:/home/user/a"]);
    assert_eq!(sh("root", "cat /home/user/a"), "content");
    let usage = server.ask("GET", "/sandboxes/one/usage", None).json();
    assert!(usage["memory_bytes"].as_u64() > Some(0) && usage["pids"].as_u64() > Some(5), "{usage}");

    // It ends by itself, as machines do.
    invoke(&["exec", "--user", "root", "one", "--", "systemctl", "poweroff", "--force", "--force"]);
    let gone = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        invoke(&["ls", "--json"]).json().as_array().is_some_and(|all| all.iter().all(|it| it["state"] != "running"))
    });
    assert!(gone, "{}", ok(&["ls"]));
    server.end();
}
