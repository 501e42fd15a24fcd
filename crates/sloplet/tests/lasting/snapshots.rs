//! Snapshots: what is in them, that they are of one moment, and what is left of those that were cut off.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde_json::json;

use crate::common::{Host, rounds};
use crate::engine::{Engine, find, is_alive, until};

/// Makes one of everything, as root inside where there is a root.
const FILL: &str = r#"
set -e
mkdir -p /tmp/d/deep/er; cd /tmp/d
echo text > file; chmod 640 file; touch -d '2001-02-03 04:05:06.789' file
ln file deep/er/hard; ln -s /nowhere soft; ln soft deep/soft-too
mkfifo pipe; chmod 4755 file2 2>/dev/null || { echo x > file2; chmod 4755 file2; }
truncate -s 1G sparse; printf end | dd of=sparse bs=1 seek=1000000 conv=notrunc 2>/dev/null
python3 - <<'END'
import os, socket, struct
os.setxattr('file', 'user.note', b'kept')
os.setxattr('deep', 'user.note', b'folder')
entry = lambda tag, bits, who=-1: struct.pack('<HHi', tag, bits, who)
people = entry(1, 7) + entry(2, 5, 1000) + entry(4, 5) + entry(8, 4, 33) + entry(16, 5) + entry(32, 5)
try:
    os.setxattr('deep', 'system.posix_acl_access', struct.pack('<I', 2) + people)
except OSError as error:
    print(error)  # an ordinary user's sandbox has no such ids
socket.socket(socket.AF_UNIX).bind('socket')
os.mkdir(b'\xff\n odd'); open(b'\xff\n odd/$(x)', 'w').close()
END
mkdir sticky; chmod 1777 sticky; mkdir closed; chmod 0 closed
rm -r /etc/skel 2>/dev/null || true
touch -d '2002-02-02 02:02:02' deep
"#;

/// Says what is there.
const LOOK: &str = r#"
cd /tmp/d
stat -c '%n %F %a %u %g %h %.Y' file file2 soft pipe sparse sticky closed deep deep/er/hard deep/soft-too
stat -c '%n %s' file file2 soft sparse
[ $(stat -c %i file) = $(stat -c %i deep/er/hard) ] && echo linked
[ $(stat -c %i soft) = $(stat -c %i deep/soft-too) ] && echo soft linked
readlink soft; tail -c +1000001 sparse | head -c 3; echo; [ $(stat -c %b sparse) -lt 1000 ] && echo sparse
python3 -c "
import os
print(os.getxattr('file', 'user.note'), os.getxattr('deep', 'user.note'))
print('list', os.getxattr('deep', 'system.posix_acl_access').hex() if 'system.posix_acl_access' in os.listxattr('deep') else None)
print(sorted(os.listdir(b'.')))
print(os.listdir(b'\xff\n odd'))
"
"#;

#[test]
fn a_snapshot_has_everything_that_was_written() {
    let host = Host::alone();
    for sloplet in [host.root(), host.user()] {
        let leaks = host.leaks();
        let mut engine = Engine::start(&host, &sloplet);
        engine.create("one", "host");
        engine.sh("one", FILL);
        let before = engine.sh("one", LOOK);
        assert!(before.contains("linked\nsoft linked\n/nowhere\nend\nsparse\n"), "{before}");
        let listed = before.contains("list 0200000001000700ffffffff02000500e8030000");
        assert!(listed || sloplet.account.is_some(), "{before}");
        let saved = engine.ask(json!({ "do": "snapshot", "id": "one", "name": "saved" }));
        assert_eq!(saved["skipped"], 1, "the socket is left out: {saved}");
        assert!(saved["bytes"].as_u64().unwrap() < 1 << 20, "holes are not copied: {saved}");
        engine.create("two", "saved");
        let after = engine.sh("two", LOOK);
        assert_eq!(after, before.replace(", b'socket'", "").replace("b'socket', ", ""), "{}", sloplet.name);
        engine.destroy("one");
        engine.destroy("two");
        engine.ask(json!({ "do": "remove_image", "name": "saved" }));
        engine.end();
        until("nothing is left", || leaks.new_ones().is_empty());
        assert!(snapshot_layers(&sloplet.data).is_empty());
    }
}

#[test]
fn owners_and_capabilities_are_the_same_in_the_copy() {
    let host = Host::shared();
    let sloplet = host.root();
    let mut engine = Engine::start(&host, &sloplet);
    // Also from a disk on a file, which other ids are stored on.
    for (number, disk) in [(1, json!({})), (2, json!({ "memory_mib": 128, "disk_mib": 512 }))] {
        let (from, to, name) = (format!("from{number}"), format!("to{number}"), format!("owned{number}"));
        let mut create = json!({ "do": "create", "id": from, "image": "host" });
        create.as_object_mut().unwrap().extend(disk.as_object().unwrap().clone());
        engine.ask(create);
        let fill = "set -e; mkdir /srv 2>/dev/null || true; cd /var; for id in 0 7 1000 65534; do echo > f$id; \
             chown $id:$((id/2)) f$id; ln -s x l$id; chown -h $id:$id l$id; done; cp /bin/true priv; chmod 4755 f0; \
             python3 -c \"import os; os.setxattr('priv', 'security.capability', bytes.fromhex('0100000200040000000000000000000000000000'))\"";
        let filled = engine.ask(json!({ "do": "exec", "id": from, "script": fill, "user": "root" }));
        assert_eq!(filled["code"], 0, "{filled}");
        let look = "cd /var; stat -c '%n %u %g %a' f* l*; \
             python3 -c \"import os; print(os.getxattr('priv', 'security.capability'))\"";
        let before = engine.ask(json!({ "do": "exec", "id": from, "script": look, "user": "root" }));
        assert_eq!(before["code"], 0, "{before}");
        engine.ask(json!({ "do": "snapshot", "id": from, "name": name }));
        engine.create(&to, &name);
        let after = engine.ask(json!({ "do": "exec", "id": to, "script": look, "user": "root" }));
        assert_eq!(before, after);
        engine.destroy(&from);
        engine.destroy(&to);
    }
    engine.end();
}

#[test]
fn what_was_removed_stays_removed_through_a_chain() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let mut engine = Engine::start(&host, &sloplet);
        engine.create("a", "host");
        engine.sh("a", "mkdir /tmp/dir; echo 1 > /tmp/dir/one; echo 1 > /tmp/gone; echo 1 > /tmp/stays");
        engine.ask(json!({ "do": "snapshot", "id": "a", "name": "s1" }));
        engine.create("b", "s1");
        // A whiteout, and a folder that hides the lower one of its name.
        engine.sh("b", "rm /tmp/gone; rm -r /tmp/dir; mkdir /tmp/dir; echo 2 > /tmp/dir/two");
        engine.ask(json!({ "do": "pause", "id": "b", "frozen": true }));
        let saved = engine.ask(json!({ "do": "snapshot", "id": "b", "name": "s2" }));
        assert_eq!(saved["frozen_us"], 0, "it was frozen anyway");
        engine.ask(json!({ "do": "pause", "id": "b", "frozen": false }));
        assert_eq!(engine.sh("b", "echo on"), "on");
        engine.create("c", "s2");
        assert_eq!(engine.sh("c", "cd /tmp; echo *; echo dir/*"), "dir stays\ndir/two", "{}", sloplet.name);
        engine.sh("c", "echo 3 > /tmp/dir/three");
        engine.ask(json!({ "do": "snapshot", "id": "c", "name": "s3" }));
        // What is below stays as long as something is on top, and nothing that runs loses its layers.
        for name in ["s1", "s2"] {
            engine.ask(json!({ "do": "remove_image", "name": name }));
        }
        engine.create("d", "s3");
        assert_eq!(engine.sh("d", "cd /tmp; echo *; echo dir/*"), "dir stays\ndir/three dir/two");
        // From the first on, nothing of the later ones is seen.
        assert_eq!(engine.sh("a", "cd /tmp; echo *; echo dir/*"), "dir gone stays\ndir/one");
        engine.ask(json!({ "do": "remove_image", "name": "s3" }));
        engine.kill();
        // Nobody but the spawner is there to keep the layers.
        sloplet.invoke(&["gc"]).finish().expect_code(0);
        assert_eq!(snapshot_layers(&sloplet.data).len(), 3);
        let mut engine = Engine::start(&host, &sloplet);
        let adoption = engine.adopt();
        assert!(find(&adoption, "living", "d").is_some());
        assert_eq!(engine.sh("d", "cat /tmp/stays /tmp/dir/*"), "1\n3\n2");
        ["a", "b", "c", "d"].iter().for_each(|id| engine.destroy(id));
        engine.end();
        sloplet.invoke(&["gc"]).finish().expect_code(0);
        assert_eq!(snapshot_layers(&sloplet.data), Vec::<String>::new());
    }
}

#[test]
fn a_snapshot_is_of_one_moment() {
    let host = Host::shared();
    let mut engine = Engine::start(&host, &host.root());
    engine.create("writer", "host");
    // Several processes; in each pair, `a` is never behind `b`, and never more than one ahead.
    let writer = "for n in 1 2 3 4; do (mkdir -p /tmp/$n; cd /tmp/$n; i=0; while :; do i=$((i+1)); \
         echo $i > a.new; mv a.new a; echo $i > b.new; mv b.new b; done) & done; wait";
    engine.ask(json!({ "do": "background", "id": "writer", "script": writer }));
    engine.sh(
        "writer",
        "until [ -s /tmp/4/b ] && [ -s /tmp/1/b ] && [ -s /tmp/2/b ] && [ -s /tmp/3/b ]; do sleep 0.05; done; \
         head -c 200M /dev/zero > /tmp/big",
    );
    let mut last = 0;
    for round in 0..rounds(10, 4) {
        let name = format!("moment{round}");
        let saved = engine.ask(json!({ "do": "snapshot", "id": "writer", "name": name }));
        assert!(saved["frozen_us"].as_u64().unwrap() > 0);
        let layer = saved["layers"][0].as_str().unwrap().to_owned();
        let read = |file: &str| -> i64 {
            fs::read_to_string(Path::new(&layer).join("tmp").join(file)).unwrap().trim().parse().unwrap()
        };
        for pair in 1..=4 {
            let (a, b) = (read(&format!("{pair}/a")), read(&format!("{pair}/b")));
            assert!(a == b || a == b + 1, "round {round}: a {a}, b {b}");
        }
        // It goes on between them.
        assert!(read("1/a") > last);
        last = read("1/a");
        engine.ask(json!({ "do": "remove_image", "name": name }));
        thread::sleep(Duration::from_millis(50));
    }
    engine.destroy("writer");
    engine.end();
}

#[test]
fn a_snapshot_that_is_cut_off_leaves_only_what_is_collected() {
    let host = Host::alone();
    for sloplet in [host.root(), host.user()] {
        let mut engine = Engine::start(&host, &sloplet);
        let pid = engine.create("one", "host");
        engine.sh("one", "cd /tmp; for i in $(seq 2000); do echo $i > $i; done; head -c 300M /dev/zero > big");
        for delay in [5, 20, 60] {
            engine.order(&json!({ "do": "snapshot", "id": "one", "name": "never" }));
            thread::sleep(Duration::from_millis(delay));
            engine.kill();
            engine = Engine::start(&host, &sloplet);
            let adoption = engine.adopt();
            assert_eq!(find(&adoption, "living", "one").unwrap()["frozen"], false);
            // Thawed again.
            assert_eq!(engine.sh("one", "cat /tmp/2000"), "2000");
            engine.ask(json!({ "do": "gc" }));
            assert_eq!(fs::read_dir(sloplet.data.join("images/tmp")).unwrap().count(), 0);
            if engine.try_ask(json!({ "do": "remove_image", "name": "never" }))["error"].is_null() {
                assert!(snapshot_layers(&sloplet.data).is_empty());
            }
        }
        // A sandbox that ends meanwhile ends the snapshot.
        engine.order(&json!({ "do": "snapshot", "id": "one", "name": "never" }));
        thread::sleep(Duration::from_millis(20));
        kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        until("it dies although frozen", || {
            // As its deadline or an order would do.
            !is_alive(pid) || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default().contains(") Z")
        });
        engine.kill();
        sloplet.invoke(&["gc"]).finish().expect_code(0);
        assert_eq!(fs::read_dir(sloplet.data.join("images/tmp")).unwrap().count(), 0);
    }
}

#[test]
fn a_tree_that_is_too_deep_is_refused_and_a_tied_sandbox_has_no_snapshot() {
    let host = Host::shared();
    let mut engine = Engine::start(&host, &host.root());
    engine.create("deep", "host");
    engine.sh("deep", "python3 -c \"import os\nos.chdir('/tmp')\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\"");
    let answer = engine.try_ask(json!({ "do": "snapshot", "id": "deep" }));
    assert!(answer["error"].as_str().unwrap().contains("nested more than 256 deep"), "{answer}");
    assert_eq!(engine.sh("deep", "echo thawed"), "thawed");
    let tied = engine.ask(json!({ "do": "create_tied" }))["id"].as_str().unwrap().to_owned();
    let answer = engine.try_ask(json!({ "do": "snapshot", "id": tied }));
    assert!(answer["error"].as_str().unwrap().contains("not ready"), "{answer}");
    engine.destroy("deep");
    engine.end();
}

fn snapshot_layers(data: &Path) -> Vec<String> {
    let entries = fs::read_dir(data.join("images/layers")).unwrap().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("snapshot-"))
        .collect()
}

/// A chain past what one stack of layers can be: it is merged on the way, and shows what it would have shown.
#[test]
fn a_long_chain_of_snapshots_keeps_content_removals_and_modes() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let mut engine = Engine::start(&host, &sloplet);
        let mut image = "host".to_owned();
        let length = rounds(140, 60);
        for number in 0..length {
            let id = format!("s{number}");
            engine.create(&id, &image);
            let script = format!(
                "set -e; mkdir -p /tmp/c/d; cd /tmp/c; echo {number} > f{number}; chmod 6{}4 f{number}; echo {number} > last; \
                 rm -f f$(({number} - 3)); [ {number} != 10 ] || {{ rm -r /tmp/c/d; mkdir d; }}; \
                 [ {number} != 5 ] || {{ echo old > d/old; ln d/old linked; ln -s x soft; rm -rf /tmp/extra; }}; \
                 [ {number} != 2 ] || {{ mkdir /tmp/extra; echo > /tmp/extra/x; rm /etc/hostname 2>/dev/null || true; }}; \
                 [ {number} != 12 ] || {{ ln linked linked-too; chmod 0 d; }}",
                number % 8
            );
            engine.sh(&id, &script);
            let next = format!("chain{number}");
            engine.ask(json!({ "do": "snapshot", "id": id, "name": next }));
            engine.destroy(&id);
            if number > 0 {
                engine.ask(json!({ "do": "remove_image", "name": image }));
            }
            image = next;
        }
        engine.create("end", &image);
        let last = length - 1;
        let seen = engine.sh(
            "end",
            "cd /tmp/c; ls; cat last; stat -c '%n %a' f* d; stat -c %h linked linked-too; cat linked; readlink soft; ls /tmp",
        );
        let kept = [last - 2, last - 1, last];
        let mut names: Vec<String> = kept.iter().map(|n| format!("f{n}")).collect();
        names.sort();
        let mut expected = format!("d\n{}\nlast\nlinked\nlinked-too\nsoft\n{last}\n", names.join("\n"));
        for name in &names {
            let number: usize = name[1..].parse().unwrap();
            expected.push_str(&format!("{name} 6{}4\n", number % 8));
        }
        expected.push_str("d 0\n2\n2\nold\nx\nc");
        assert_eq!(seen, expected, "{}", sloplet.name);
        assert!(snapshot_layers(&sloplet.data).len() <= 51);
        engine.destroy("end");
        engine.end();
    }
}
