//! Files between the host and real sandboxes: mounts through the binary, and the engine's file interface against
//! programs inside that try to lead it astray.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, Permissions};
use std::future::Future;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::Host;
use sloplet_client::ClientError;
use sloplet_driver_namespaces::Namespaces;
use sloplet_engine::{Command, Engine, Places, Sandbox};
use sloplet_policy::{ByteSize, Limits, Spec};
use sloplet_wire::{ErrorCode, Target};

/// Runs `test` with a sandbox of root's.
fn with_sandbox<F: Future<Output = Sandbox>>(host: &Host, spec: Spec, test: impl FnOnce(Sandbox) -> F) {
    let places = Places { data: host.root().data, run: host.root().run_dir };
    let driver = Namespaces::new(host.binary(), &places.own_run().unwrap(), &places.data, 1);
    let engine = Engine::new(places, vec![Box::new(driver)]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sandbox = engine.create(spec, &sloplet_engine::Patron::plain("test")).await.unwrap();
        let limit = Duration::from_secs(60);
        let sandbox = tokio::time::timeout(limit, test(sandbox)).await.expect("HANGS");
        sandbox.agent().ping().await.expect("the agent lives");
        sandbox.destroy().await.unwrap();
    });
    engine.shut_down();
}

fn at(path: &str) -> Target {
    Target { path: path.as_bytes().to_vec().into(), ..Target::default() }
}

fn as_root(path: &str) -> Target {
    Target { user: Some("root".into()), ..at(path) }
}

async fn run(sandbox: &Sandbox, script: &str) -> String {
    let process = sandbox.exec(Command::new(["sh", "-c", script])).await.unwrap();
    let output = process.output(1 << 20).await.unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// At most the first MiB: what a careless reader would be flooded with.
async fn read(sandbox: &Sandbox, target: Target) -> Result<Vec<u8>, ClientError> {
    let (_, mut download) = sandbox.agent().read(target, 0, Some(1 << 20)).await?;
    let mut content = Vec::new();
    while let Some(bytes) = download.chunk().await? {
        content.extend_from_slice(&bytes);
        assert!(content.len() <= 1 << 20, "more than was asked for");
    }
    Ok(content)
}

async fn write(sandbox: &Sandbox, target: Target, content: &[u8]) -> Result<(), ClientError> {
    let mut upload = sandbox.agent().write(target, 0o644, false).await?;
    upload.write(content.to_vec()).await?;
    upload.finish().await.map(drop)
}

#[test]
fn what_the_host_writes_is_read_inside_and_back() {
    let host = Host::shared();
    with_sandbox(&host, Spec::default(), |sandbox| async {
        write(&sandbox, at("hello"), b"from outside").await.unwrap();
        assert_eq!(run(&sandbox, "cat /home/user/hello; stat -c ' %U %a' hello").await, "from outside user 644\n");
        run(&sandbox, "echo from inside > /tmp/answer").await;
        assert_eq!(read(&sandbox, at("/tmp/answer")).await.unwrap(), b"from inside\n");
        let agent = sandbox.agent();
        agent.make_dir(at("/tmp/a/b"), 0o755, true).await.unwrap();
        agent.move_(at("/tmp/answer"), "/tmp/a/b/moved").await.unwrap();
        agent.set_mode(at("/tmp/a/b/moved"), 0o600).await.unwrap();
        let listed = agent.list(at("/tmp/a"), 3).await.unwrap();
        assert_eq!(listed.len(), 2, "{listed:?}");
        assert_eq!(agent.stat(at("/tmp/a/b/moved")).await.unwrap().mode & 0o777, 0o600);
        agent.remove(at("/tmp/a"), true).await.unwrap();
        assert_eq!(run(&sandbox, "ls /tmp").await, "");
        // As an ordinary user inside, whoever the host is.
        for path in ["/etc/new", "/usr/bin/new", "/proc/sys/kernel/core_pattern", "/root/new", "/dev/new"] {
            let refused = write(&sandbox, at(path), b"x").await.unwrap_err();
            assert!(refused.failure().is_some(), "{path}: {refused}");
        }
        assert!(!Path::new("/etc/new").exists() && !Path::new("/root/new").exists());
        sandbox
    });
}

/// Names that lead out of a careless file interface: `..`, links of /proc, encodings, NUL.
#[test]
fn no_name_leads_to_the_host() {
    let host = Host::shared();
    let canary = host.dir().join("canary");
    fs::write(&canary, "of the host").unwrap();
    let canary = canary.to_str().unwrap().to_owned();
    // Unconfined, they do.
    assert_eq!(fs::read_to_string(format!("/{}{canary}", "../".repeat(30))).unwrap(), "of the host");
    assert_eq!(fs::read_to_string(format!("/proc/self/root{canary}")).unwrap(), "of the host");
    with_sandbox(&host, Spec::default(), |sandbox| async {
        let link = format!(
            "ln -s {canary} /tmp/link; ln -s / /tmp/all; ln -s /proc/1/root /tmp/first; ln -s /proc/self/cwd /tmp/own"
        );
        run(&sandbox, &link).await;
        let names = [
            canary.clone(),
            format!("/{}{canary}", "../".repeat(30)),
            format!("/tmp/{}{canary}", "../".repeat(30)),
            format!("{}{canary}", "../".repeat(30)),
            format!("/proc/self/root{canary}"),
            format!("/proc/1/root{canary}"),
            format!("/proc/thread-self/cwd{canary}"),
            format!("/proc/self/fd/3{canary}"),
            format!("/proc/1/cwd/..{canary}"),
            "/tmp/link".into(),
            format!("/tmp/all{canary}"),
            format!("/tmp/first{canary}"),
            format!("/tmp/own{canary}"),
            format!("/%2e%2e/%2e%2e{canary}"),
            format!("{canary}\0"),
            format!("/tmp/x\0/../..{canary}"),
            String::new(),
            "/".into(),
        ];
        for name in &names {
            for target in [at(name), as_root(name)] {
                let agent = sandbox.agent();
                let content = read(&sandbox, target.clone()).await;
                assert!(!content.as_ref().is_ok_and(|text| text == b"of the host"), "{name:?} was read");
                let _ = write(&sandbox, target.clone(), b"from inside").await;
                let _ = agent.set_mode(target.clone(), 0o777).await;
                let _ = agent.move_(target.clone(), "/tmp/moved").await;
                if name != "/" {
                    let _ = agent.remove(target.clone(), false).await;
                }
                assert_eq!(fs::read_to_string(&canary).unwrap(), "of the host", "{name:?}");
                assert_ne!(fs::metadata(&canary).unwrap().mode() & 0o777, 0o777, "{name:?}");
            }
        }
        sandbox
    });
}

/// CVE-2018-15664: a folder and a symlink change places while the host copies.
#[test]
fn a_race_of_links_never_reaches_the_host() {
    let host = Host::shared();
    let canary = host.dir().join("canary");
    fs::write(&canary, "of the host").unwrap();
    let dir = host.dir().to_str().unwrap().to_owned();
    with_sandbox(&host, Spec::default(), |sandbox| async {
        // The same path exists inside, with a link in it that leads where the canary is on the host.
        let program = format!(
            "
import ctypes, os
os.makedirs('/tmp/real'), os.symlink('{dir}', '/tmp/fake')
for folder in ('/tmp/real',):
    open(folder + '/canary', 'w').write('inside')
libc = ctypes.CDLL(None)
print('ready', flush=True)
while True:
    libc.renameat2(-100, b'/tmp/real', -100, b'/tmp/fake', 2)
"
        );
        let racer = Command { background: true, ..Command::new(["python3", "-c", &program]) };
        let mut racer = sandbox.exec(racer).await.unwrap();
        racer.next().await.unwrap().unwrap();
        let (mut worked, mut failed) = (0, 0);
        for _ in 0..300 {
            for result in [
                read(&sandbox, as_root("/tmp/real/canary")).await.map(|content| assert_ne!(content, b"of the host")),
                write(&sandbox, as_root("/tmp/real/canary"), b"written").await,
                sandbox.agent().set_mode(as_root("/tmp/real/canary"), 0o600).await,
            ] {
                if result.is_ok() { worked += 1 } else { failed += 1 }
            }
        }
        assert!(worked > 0 && failed > 0, "there was no race: {worked} worked, {failed} failed");
        assert_eq!(fs::read_to_string(&canary).unwrap(), "of the host");
        assert_eq!(fs::metadata(&canary).unwrap().mode() & 0o777, 0o644);
        sandbox
    });
}

/// Files that never end, never begin, or are none.
#[test]
fn odd_files_neither_hang_nor_flood_the_reader() {
    let host = Host::shared();
    with_sandbox(&host, Spec::default(), |sandbox| async {
        let script = "cd /tmp; mkfifo fifo; truncate -s 8E sparse || truncate -s 4T sparse; mkdir folder; ln -s loop loop; \
                      python3 -c 'import socket; socket.socket(1).bind(\"socket\")'";
        run(&sandbox, script).await;
        for path in
            ["/tmp/fifo", "/dev/zero", "/dev/tty", "/dev/ptmx", "/tmp/socket", "/tmp/folder", "/tmp/loop", "/dev/stdin"]
        {
            let attempt = tokio::time::timeout(Duration::from_secs(5), read(&sandbox, at(path)));
            let result = attempt.await.unwrap_or_else(|_| panic!("reading {path} hangs"));
            let refused = result.expect_err(path);
            assert!(refused.failure().is_some(), "{path}: {refused}");
            let attempt = tokio::time::timeout(Duration::from_secs(5), write(&sandbox, at(path), b"x"));
            let _ = attempt.await.unwrap_or_else(|_| panic!("writing {path} hangs"));
        }
        // As long as was asked for, and no longer.
        assert_eq!(read(&sandbox, at("/tmp/sparse")).await.map(|content| content.len()).unwrap_or(1 << 20), 1 << 20);
        // Files whose size the kernel does not tell.
        assert!(read(&sandbox, at("/proc/uptime")).await.is_ok_and(|content| !content.is_empty()));
        for path in ["/proc/1/environ", "/proc/1/mem", "/proc/kmsg", "/proc/1/root/etc/passwd", "/proc/self/fd/0"] {
            let content =
                tokio::time::timeout(Duration::from_secs(5), read(&sandbox, as_root(path))).await.expect(path);
            assert!(content.is_err() || content.is_ok_and(|content| content.is_empty()), "{path} was read");
        }
        // The agent's own memory, which it alone could open.
        let maps = read(&sandbox, as_root("/proc/1/maps")).await.unwrap_or_default();
        let start =
            String::from_utf8_lossy(&maps).split('-').next().and_then(|text| u64::from_str_radix(text, 16).ok());
        if let Some(start) = start {
            let memory = sandbox.agent().read(as_root("/proc/1/mem"), start, Some(16)).await;
            let bytes = match memory {
                Ok((_, mut download)) => download.chunk().await.ok().flatten(),
                Err(_) => None,
            };
            assert_eq!(bytes.map(|bytes| bytes.len()), None, "the agent's memory was read");
        }
        sandbox
    });
}

/// Archives that lead a careless unpacker astray.
#[test]
fn hostile_archives_stay_where_they_are_unpacked() {
    let host = Host::shared();
    let outside = host.root().folder("outside");
    fs::set_permissions(&outside, Permissions::from_mode(0o777)).unwrap();
    fs::write(outside.join("precious"), "precious").unwrap();
    let archives = host.root().folder("archives");
    let craft = host.dir().join("craft.py");
    fs::write(&craft, include_str!("probes/craft.py")).unwrap();
    let kinds = [
        "parent",
        "absolute",
        "link",
        "relative-link",
        "hardlink",
        "hardlink-up",
        "devices",
        "truncated",
        "deep",
        "long",
    ];
    let archive_of = |kind: &str| {
        let path = archives.join(kind);
        let mut command = std::process::Command::new("python3");
        let done = command.arg(&craft).arg(kind).arg(&path).arg(&outside).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        fs::read(path).unwrap()
    };
    let archives: Vec<(&str, Vec<u8>)> = kinds.iter().map(|kind| (*kind, archive_of(kind))).collect();
    let limits = Limits { disk: ByteSize::mib(32), ..Limits::default() };
    with_sandbox(&host, Spec { limits, ..Spec::default() }, |sandbox| async {
        let unpack = async |target: Target, archive: &[u8]| {
            let mut upload = sandbox.agent().unpack(target).await?;
            for piece in archive.chunks(1 << 18) {
                upload.write(piece.to_vec()).await?;
            }
            upload.finish().await
        };
        for (kind, archive) in &archives {
            for target in [at("/tmp/unpacked"), as_root("/tmp/unpacked")] {
                let result = unpack(target, archive).await;
                let refused = ["parent", "truncated"].contains(kind);
                assert!(!refused || result.is_err(), "{kind} was unpacked");
                assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{kind}");
                assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "precious", "{kind}");
                // Nor anywhere else inside.
                let strayed = run(&sandbox, &format!("ls -d {}/slipped /slipped 2>/dev/null", outside.display())).await;
                assert_eq!(strayed, "", "{kind}");
                let devices = run(&sandbox, "find /tmp -type b -o -type c; find /tmp -perm /6000 -user root").await;
                assert!(devices.is_empty() || *kind == "devices" && !devices.contains("disk"), "{kind}: {devices}");
                sandbox.agent().remove(as_root("/tmp/unpacked"), true).await.unwrap_or_default();
            }
        }
        // More than there is room for.
        let mut big = sandbox.agent().write(at("/tmp/big"), 0o644, false).await.unwrap();
        let mut result = Ok(());
        for _ in 0..64 {
            result = big.write(vec![1u8; 1 << 20]).await;
            if result.is_err() {
                break;
            }
        }
        let result = match result {
            Ok(()) => big.finish().await.map(drop),
            Err(error) => Err(error),
        };
        let error = result.expect_err("64 MiB on a disk of 32");
        assert_eq!(error.failure().map(|failure| failure.code), Some(ErrorCode::Exhausted), "{error}");
        sandbox
    });
}

/// A folder of the host, writable inside: what is made there belongs to its owner.
#[test]
fn a_writable_mount_is_the_owners_own() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let project = sloplet.folder("project");
        fs::write(project.join("input"), "from the host").unwrap();
        let owner = fs::metadata(&project).unwrap();
        let mount = format!("{}:/workspace:rw", project.display());
        let script = "cat input; echo result > output; mkdir folder; echo deep > folder/file; mv input renamed";
        let ended = sloplet.sh(&["--mount", &mount, "--workdir", "/workspace"], script).expect_code(0);
        assert_eq!(ended.out(), "from the host", "{ended}");
        for (name, content) in [("output", "result\n"), ("folder/file", "deep\n"), ("renamed", "from the host")] {
            let path = project.join(name);
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            let meta = fs::metadata(&path).unwrap();
            let expected = if name == "renamed" { (0, 0) } else { (owner.uid(), owner.gid()) };
            assert_eq!((meta.uid(), meta.gid()), expected, "{path:?}, sandbox of {}", sloplet.name);
        }
        assert!(!project.join("input").exists());
    }
}

#[test]
fn a_mount_is_read_only_unless_said_otherwise() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let project = sloplet.folder("project");
        fs::write(project.join("file"), "as it was").unwrap();
        let mount = |end: &str| format!("{}:/workspace{end}", project.display());
        for mount in [mount(""), mount(":ro")] {
            let script = "cat file; echo x > file; touch new; rm file; mkdir folder; chmod 777 file; ln file file2; mv file other; \
                          truncate -s 0 file; touch -d 2000-01-01 file";
            let ended = sloplet.sh(&["--mount", &mount, "--workdir", "/workspace"], script);
            assert_eq!(ended.out(), "as it was", "{ended}");
            let refusals =
                ended.stderr.lines().filter(|line| line.contains("Read-only") || line.contains("denied")).count();
            assert_eq!(refusals, 9, "{ended}");
            assert_eq!(fs::read_dir(&project).unwrap().count(), 1);
            assert_eq!(fs::read_to_string(project.join("file")).unwrap(), "as it was");
        }
        // A single file, and a place that does not exist inside.
        let file = format!("{}:/deep/in/side/name", project.join("file").display());
        let ended = sloplet.run(&["--mount", &file], &["cat", "/deep/in/side/name"]).expect_code(0);
        assert_eq!(ended.out(), "as it was");
    }
}

/// Links in a mounted folder mean places inside; other mounts below it are not shown.
#[test]
fn a_mount_shows_that_folder_and_nothing_beyond() {
    let host = Host::shared();
    let secret = host.dir().join("secret");
    fs::write(&secret, "of the host").unwrap();
    for sloplet in [host.root(), host.user()] {
        let project = sloplet.folder("project");
        for (name, target) in
            [("link", secret.clone()), ("up", PathBuf::from("../../secret")), ("shadow", "/etc/shadow".into())]
        {
            symlink(target, project.join(name)).unwrap();
        }
        let mount = format!("{}:/workspace:rw", project.display());
        let script =
            "cat link up shadow; cat ../secret ../../secret; cat /workspace/../../secret; echo x > link; exit 0";
        let ended = sloplet.sh(&["--mount", &mount, "--workdir", "/workspace"], script);
        assert!(!ended.out().contains("of the host") && ended.out().is_empty(), "{ended}");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "of the host");
    }
    // A mount below: in a mount namespace of its own, so that the host never sees it.
    let sloplet = host.root();
    let project = sloplet.folder("with-mount");
    fs::create_dir(project.join("below")).unwrap();
    let script = "mount -t tmpfs none \"$0\" && echo hidden > \"$0/file\" && cat \"$0/file\"; exec \"$@\"";
    let (below, mount) = (project.join("below").display().to_string(), format!("{}:/workspace", project.display()));
    let inner = [
        "sh",
        "-c",
        script,
        &below,
        host.binary().to_str().unwrap(),
        "run",
        "--mount",
        &mount,
        "--",
        "ls",
        "-A",
        "/workspace/below",
    ];
    let ended = sloplet.other_program(&[&["unshare", "--mount"], inner.as_slice()].concat()).finish().expect_code(0);
    assert_eq!(ended.out(), "hidden\n", "{ended}");
}
