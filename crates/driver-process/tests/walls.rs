//! Real sandboxes with hostile commands in them, as whoever runs the tests: root or an ordinary user. The spawner runs
//! under a filter that forbids namespaces (see `examples/spawner.rs`).

#![allow(clippy::unwrap_used, reason = "a test's helpers fail by panicking")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use sloplet_driver_process::ProcessDriver;
use sloplet_engine::{Command, Engine, Patron, Places, Sandbox};
use sloplet_policy::{Bind, ByteSize, Isolation, Limits, Span, Spec};
use sloplet_wire::Target;

/// An engine with folders of its own, and a folder that everybody may enter with a file that everybody may read and
/// write: what keeps a sandbox out of it is no permission bit.
struct Host {
    engine: Engine,
    run: PathBuf,
    open: PathBuf,
    _dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().canonicalize().unwrap().join("open");
        fs::create_dir(&open).unwrap();
        fs::write(open.join("secret"), "canary").unwrap();
        for (path, mode) in [(dir.path(), 0o755), (&open, 0o777), (&open.join("secret"), 0o666)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let places = Places { data: dir.path().join("data"), run: dir.path().join("run") };
        // Beside the folder of this test's own binary.
        let own = std::env::current_exe().unwrap();
        let spawner = own.ancestors().nth(2).unwrap().join("examples/spawner");
        let run = places.run.clone();
        let engine = Engine::new(places, vec![Box::new(ProcessDriver::new(&spawner, &run))]);
        Self { engine, run, open, _dir: dir }
    }

    async fn sandbox(&self, change: impl FnOnce(&mut Spec)) -> Sandbox {
        let mut spec = Spec { isolation: Isolation::Process, ..Spec::default() };
        // An ordinary user may have no cgroups; nothing here depends on those.
        spec.best_effort = !root();
        change(&mut spec);
        self.engine.create(spec, &Patron::plain("test")).await.unwrap()
    }

    fn secret(&self) -> String {
        self.open.join("secret").display().to_string()
    }
}

/// A process outside.
struct Canary(std::process::Child);

impl Canary {
    fn start() -> Self {
        let mut sleep = std::process::Command::new("sleep");
        Self(sleep.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Exit code and output, both kinds together.
async fn sh(sandbox: &Sandbox, script: &str) -> (Option<i32>, String) {
    let command = Command::new(["bash", "-c", script]);
    let output = sandbox.exec(command).await.unwrap().output(1 << 20).await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.exit.code, String::from_utf8_lossy(&text).into_owned())
}

fn home(sandbox: &Sandbox) -> PathBuf {
    Path::new("/var/tmp").join(format!("sloplet-{}", sandbox.id()))
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Living processes with this word in their command line.
fn running(word: &str) -> usize {
    let commands =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    commands.filter(|command| String::from_utf8_lossy(command).split('\0').any(|argument| argument == word)).count()
}

#[tokio::test]
async fn ordinary_programs_work_in_a_home_of_their_own() {
    let host = Host::new();
    let sandbox = host.sandbox(|_| ()).await;
    let script = r#"set -e; test "$PWD" = "$HOME"; test "$TMPDIR" = "$HOME"; echo one > file; cat <(cat file)
        mkdir -p a/b; mv file a/b; ln a/b/file link; cat a/b/file; echo '#!/bin/sh
echo ran' > script; chmod +x script; ./script; rm -r a"#;
    assert_eq!(sh(&sandbox, script).await, (Some(0), "one\none\nran\n".into()));
    let end = sandbox.destroy().await.unwrap();
    assert!(!end.timed_out && !end.over_disk);
}

#[tokio::test]
async fn files_have_the_same_path_for_requests_and_for_commands() {
    let host = Host::new();
    let sandbox = host.sandbox(|_| ()).await;
    let path = home(&sandbox).join("from/outside");
    let target = |path: &Path| Target { path: path.display().to_string().into_bytes().into(), ..Target::default() };
    let mut upload = sandbox.agent().write(target(&path), 0o644, true).await.unwrap();
    upload.write("hello").await.unwrap();
    upload.finish().await.unwrap();
    assert_eq!(sh(&sandbox, &format!("cat {}", path.display())).await, (Some(0), "hello".into()));
    // The same wall stands around requests.
    for path in [host.open.join("secret"), "/etc/shadow".into()] {
        let read = sandbox.agent().read(target(&path), 0, None).await;
        let failed = match read {
            Err(_) => true,
            Ok((_, mut download)) => download.chunk().await.is_err(),
        };
        assert!(failed, "{}", path.display());
    }
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn nothing_else_of_the_host_can_be_read_or_changed() {
    let host = Host::new();
    let sandbox = host.sandbox(|_| ()).await;
    let secret = host.secret();
    let outside = host.open.display();
    let attacks = [
        format!("cat {secret}"),
        format!("ls {outside}"),
        format!("echo x > {secret}"),
        format!("echo x >> {secret}"),
        format!("truncate -s 0 {secret}"),
        format!("rm {secret}"),
        format!("mv {secret} ."),
        format!("ln {secret} hard"),
        format!("mv /usr/bin/env {outside}/"),
        format!("touch {outside}/new"),
        format!("ln -s {secret} link && cat link"),
        "cat /etc/shadow".into(),
        "cat /etc/passwd".into(),
        "ls /root".into(),
        "ls /home".into(),
        "ls /var/tmp".into(),
        "touch /tmp/sloplet-test-file".into(),
        "touch /dev/shm/sloplet-test-file".into(),
        "ls /proc".into(),
        "cat /proc/1/cmdline".into(),
        "cat /proc/$PPID/environ".into(),
        "cat /proc/$PPID/maps".into(),
        "cp /proc/$PPID/exe copy".into(),
        "ls /sys".into(),
        "ls /run".into(),
    ];
    for attack in attacks {
        let (code, output) = sh(&sandbox, &attack).await;
        assert!(code != Some(0), "{attack}: {output}");
    }
    assert_eq!(fs::read_to_string(&secret).unwrap(), "canary");
    assert_eq!(fs::read_dir(&host.open).unwrap().count(), 1);
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn there_is_no_network_and_no_other_process_to_reach() {
    let host = Host::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut canary = Canary::start();
    let sandbox = host.sandbox(|_| ()).await;
    let pid = canary.0.id();
    for attack in [
        format!("exec 3<>/dev/tcp/127.0.0.1/{port}"),
        format!("exec 3<>/dev/udp/127.0.0.1/{port}"),
        format!("kill -9 {pid}"),
        format!("kill -STOP {pid}"),
        "kill -9 1".into(),
        format!("cat /proc/{pid}/environ"),
        format!("readlink /proc/{pid}/exe"),
        "unshare -U true".into(),
        "unshare -n true".into(),
        "sudo -n true".into(),
    ] {
        let (code, output) = sh(&sandbox, &attack).await;
        assert!(code != Some(0), "{attack}: {output}");
    }
    // All that can be killed at once is what is inside, the agent included: there may be no answer.
    if let Ok(command) = sandbox.exec(Command::new(["bash", "-c", "kill -9 -1"])).await {
        let _ = command.output(1 << 20).await;
    }
    assert!(listener.accept().is_err(), "something connected");
    assert!(canary.0.try_wait().unwrap().is_none(), "the canary is dead");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn daemons_die_with_their_sandbox_and_nothing_is_left() {
    let host = Host::new();
    let sandbox = host.sandbox(|_| ()).await;
    let other = host.sandbox(|_| ()).await;
    let word = format!("60{}", std::process::id());
    let daemon = format!("setsid sh -c 'setsid sleep {word} & setsid sleep {word} &' > /dev/null 2>&1 < /dev/null");
    assert_eq!(sh(&sandbox, &daemon).await.0, Some(0));
    until("the daemons start", || running(&word) == 2).await;
    let scratch = home(&sandbox);
    assert!(scratch.is_dir());
    sandbox.destroy().await.unwrap();
    assert_eq!(running(&word), 0);
    assert!(!scratch.exists());
    // Others live on.
    assert_eq!(sh(&other, "echo alive").await, (Some(0), "alive\n".into()));
    other.destroy().await.unwrap();
    host.engine.shut_down();
    let left: Vec<_> = fs::read_dir(&host.run).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(fs::read_dir(host.run.with_file_name("uids")).map_or(0, Iterator::count), 0);
}

#[tokio::test]
async fn a_fork_bomb_is_bounded_and_dies_in_time() {
    let host = Host::new();
    let limits = Limits { pids: 64, timeout: Span(Duration::from_secs(2)), ..Limits::default() };
    let sandbox = host.sandbox(|spec| spec.limits = limits).await;
    let scratch = home(&sandbox);
    let word = format!("61{}", std::process::id());
    let bomb = Command::new(["bash", "-c", "f() { f | f & f; }; f", &word]);
    let running_bomb = sandbox.exec(bomb).await.unwrap();
    let mut most = 0;
    until("its time is over", || {
        most = most.max(running(&word));
        !scratch.exists()
    })
    .await;
    // Without a user id of its own or a cgroup, other processes of this user that end make room for more.
    let bound = if root() { 64 } else { 256 };
    assert!((2..=bound).contains(&most), "{most} processes");
    assert_eq!(running(&word), 0);
    drop(running_bomb);
    assert!(sandbox.destroy().await.unwrap().timed_out);
}

#[tokio::test]
async fn who_writes_too_much_is_stopped() {
    let host = Host::new();
    let limits = Limits { disk: ByteSize::mib(8), ..Limits::default() };
    let sandbox = host.sandbox(|spec| spec.limits = limits.clone()).await;
    let (code, output) = sh(&sandbox, "head -c 9M /dev/zero > file").await;
    assert!(code != Some(0), "{output}");
    assert_eq!(fs::metadata(home(&sandbox).join("file")).unwrap().len(), 8 << 20);
    let scratch = home(&sandbox);
    let script = "mkdir d; for i in 1 2 3; do head -c 7M /dev/zero > d/$i; done; chmod 0 d; sleep 600";
    let writer = sandbox.exec(Command::new(["bash", "-c", script])).await.unwrap();
    until("it is stopped", || !scratch.exists()).await;
    drop(writer);
    assert!(sandbox.destroy().await.unwrap().over_disk);
}

#[tokio::test]
async fn a_mount_is_shown_as_it_was_asked_for() {
    let host = Host::new();
    let bind = |writable| Bind { from: host.open.clone(), to: host.open.clone(), writable, ..Bind::default() };
    let (secret, open) = (host.secret(), host.open.display());
    let reader = host.sandbox(|spec| spec.mounts = vec![bind(false)]).await;
    assert_eq!(sh(&reader, &format!("cat {secret}")).await, (Some(0), "canary".into()));
    for attack in [format!("echo x > {secret}"), format!("touch {open}/new"), format!("rm {secret}")] {
        assert!(sh(&reader, &attack).await.0 != Some(0), "{attack}");
    }
    reader.destroy().await.unwrap();
    let writer = host.sandbox(|spec| spec.mounts = vec![bind(true)]).await;
    assert_eq!(sh(&writer, &format!("echo -n new > {secret}; touch {open}/more")).await, (Some(0), String::new()));
    writer.destroy().await.unwrap();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "new");
    assert!(host.open.join("more").exists());
}

#[tokio::test]
async fn a_killed_spawner_leaves_nothing_that_is_not_collected() {
    let host = Host::new();
    let sandbox = host.sandbox(|_| ()).await;
    let scratch = home(&sandbox);
    assert_eq!(sh(&sandbox, "mkdir -p a/b; echo x > a/b/c; chmod 0 a").await.0, Some(0));
    let agent = sandbox.pid().unwrap();
    let status = fs::read_to_string(format!("/proc/{agent}/status")).unwrap();
    let spawner: i32 = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(spawner).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    until("the agent dies with its spawner", || !Path::new(&format!("/proc/{agent}")).exists()).await;
    assert!(scratch.exists());
    assert!(host.engine.collect().unwrap() > 0);
    assert!(!scratch.exists());
    assert_eq!(fs::read_dir(host.run.with_file_name("uids")).map_or(0, Iterator::count), 0);
    assert_eq!(host.engine.collect().unwrap(), 0);
}
