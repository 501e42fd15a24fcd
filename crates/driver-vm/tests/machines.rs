//! Machines that really run, under emulation: a boot takes seconds, so each of them is asked for much.

#![allow(clippy::unwrap_used)]

use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sloplet_client::Agent;
use sloplet_client::wire::Exec;
use sloplet_driver_vm::kvm::{self, Kvm};
use sloplet_driver_vm::{Vm, kernel, qemu, setup};
use sloplet_engine::{Driver, Machine, MachineState, Overdue, PutFile, Wanted};
use sloplet_image::{Image, ImageConfig};
use sloplet_policy::{ByteSize, Cpus, Feature, Limits, Spec};

/// The example beside this test: the spawner and the guest.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples/machine")
}

struct World {
    dir: tempfile::TempDir,
    image: Image,
    spec: Spec,
    files: Vec<PutFile>,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path().join("layer");
        for folder in ["bin", "proc", "dev", "sys", "tmp", "etc", "home/user", "root", "run", "old"] {
            std::fs::create_dir_all(layer.join(folder)).unwrap();
        }
        std::fs::set_permissions(layer.join("tmp"), PermissionsExt::from_mode(0o1777)).unwrap();
        std::fs::write(layer.join("old/file"), "old").unwrap();
        std::fs::write(layer.join("etc/machine-id"), "").unwrap();
        std::fs::write(layer.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
            .unwrap();
        std::os::unix::fs::chown(layer.join("home/user"), Some(1000), Some(1000)).unwrap();
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].iter().find(|path| Path::new(path).exists()).unwrap();
        std::fs::copy(busybox, layer.join("bin/busybox")).unwrap();
        for name in ["sh", "cat", "dd", "uname", "id", "ls", "sleep", "date", "touch", "rm", "mkdir"] {
            std::os::unix::fs::symlink("busybox", layer.join("bin").join(name)).unwrap();
        }
        let image = Image::of_folders("busybox", vec![layer], Vec::new(), ImageConfig::default());
        let limits = Limits {
            memory: ByteSize::mib(96),
            cpus: Cpus { millis: 1000 },
            disk: ByteSize::mib(32),
            timeout: sloplet_policy::Span(Duration::from_secs(900)),
            ..Limits::default()
        };
        let spec = Spec { limits, isolation: sloplet_policy::Isolation::Vm, ..Spec::default() };
        Self { dir, image, spec, files: vec![PutFile::machine_id("m1")] }
    }

    fn driver(&self) -> Vm {
        Vm::new(&program(), &self.dir.path().join("run"), &self.dir.path().join("data")).lasting()
    }

    fn wanted(&self) -> Wanted<'_> {
        Wanted {
            id: "m1",
            spec: &self.spec,
            image: &self.image,
            egress: false,
            files: &self.files,
            memory: None,
            claimable: false,
            ear: false,
        }
    }
}

async fn sh(agent: &Agent, user: Option<&str>, script: &str) -> (String, Option<i32>) {
    let words = ["/bin/sh", "-c", script];
    let exec = Exec {
        argv: words.iter().map(|word| word.as_bytes().to_vec().into()).collect(),
        env: vec![b"PATH=/bin".to_vec().into()],
        user: user.map(str::to_owned),
        ..Exec::default()
    };
    let output = agent.exec(exec).await.unwrap().output(1 << 20).await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&said).trim().to_owned(), output.exit.code)
}

async fn agent_of(machine: &dyn Machine) -> Agent {
    Agent::connect(machine.connect().await.unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_lives_is_bounded_saved_frozen_adopted_and_leaves_nothing() {
    let world = World::new();
    let driver = world.driver();
    let report = driver.report();
    assert_eq!(report.unavailable, None);
    let told = report.capabilities.iter().find(|known| known.feature == Feature::OwnKernel).unwrap().detail.clone();
    let machine = driver.create_lasting(world.wanted()).await.unwrap();
    let agent = agent_of(&*machine).await;

    // A kernel of its own, a user of its own, no network, the right time.
    let host = rustix::system::uname().release().to_string_lossy().into_owned();
    let (kernel, code) = sh(&agent, None, "uname -r").await;
    assert!(code == Some(0) && kernel != host, "{kernel} is the host's kernel");
    assert!(told.contains(&format!("Linux {kernel} ")) && told.contains("sha256:"), "{told} does not name {kernel}");
    assert_eq!(sh(&agent, None, "id -u; exit 7").await, ("1000".into(), Some(7)));
    assert_eq!(sh(&agent, None, "ls /sys /dev/vda /dev/vport0p1 2>/dev/null").await.0, "/sys:");
    let (devices, _) = sh(&agent, None, "cat /proc/net/dev").await;
    assert_eq!(devices.lines().count(), 3, "{devices}");
    let clock: i64 = sh(&agent, None, "date +%s").await.0.parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    assert!((clock - now).abs() < 30, "{clock} is not {now}");
    let (said, code) =
        sh(&agent, Some("root"), "mount -t proc none /old 2>&1 || busybox mount -t tmpfs none /old").await;
    assert_ne!(code, Some(0), "root inside can mount: {said}");

    // Bounds: the disk, the memory.
    let (said, code) = sh(&agent, None, "dd if=/dev/zero of=/tmp/big bs=1M count=64 2>&1; rm /tmp/big").await;
    assert!(said.contains("No space left"), "{said} ({code:?})");
    let (said, _) = sh(&agent, None, "dd if=/dev/zero of=/dev/null bs=200M count=1 2>&1; echo over").await;
    assert!(!said.contains("1+0 records out"), "{said}");
    let usage = machine.usage().await.unwrap();
    assert!(usage.cpu_us > 0 && usage.memory > 0 && usage.pids > 0, "{usage:?}");
    assert!(usage.disk_total > 16 << 20 && usage.disk_total <= 32 << 20, "{usage:?}");

    // Saved: what was written, and what was removed.
    sh(&agent, None, "echo kept > /tmp/file; mkdir /tmp/folder; touch /tmp/folder/'odd name'").await;
    sh(&agent, Some("root"), "rm /old/file").await;
    let target = world.dir.path().join("saved");
    std::fs::create_dir(&target).unwrap();
    let folder: OwnedFd = std::fs::File::open(&target).unwrap().into();
    let saved = machine.snapshot(folder).await.unwrap();
    // Besides what was written, the table in which the machine finds itself by name.
    let hosts = std::fs::metadata(target.join("etc/hosts")).unwrap().len();
    assert!(saved.files >= 5 && saved.bytes == 5 + hosts, "{saved:?}");
    assert_eq!(std::fs::read_to_string(target.join("tmp/file")).unwrap(), "kept\n");
    assert!(target.join("tmp/folder/odd name").exists());
    let removed = std::fs::symlink_metadata(target.join("old/file")).unwrap();
    assert!(removed.file_type().is_char_device(), "a removed file is marked");

    // Frozen and thawed: nothing happens meanwhile, and it goes on.
    machine.pause(true).await.unwrap();
    let mut state = machine.state();
    let told = state.wait_for(|state| matches!(state, MachineState::Frozen { overdue: false }));
    tokio::time::timeout(Duration::from_secs(60), told).await.unwrap().unwrap();
    let waited = tokio::time::timeout(Duration::from_secs(1), sh(&agent, None, "echo too soon")).await;
    assert!(waited.is_err(), "{waited:?}");
    machine.pause(false).await.unwrap();
    assert_eq!(sh(&agent, None, "cat /tmp/file").await.0, "kept");

    // Saved with its memory: two others go on from there, with what ran, a clock and random numbers of their own.
    sh(&agent, None, "(n=0; while :; do n=$((n+1)); echo $n > /tmp/new; busybox mv /tmp/new /tmp/count; sleep 0.1; done) >/dev/null 2>&1 &").await;
    let memory = world.dir.path().join("memory");
    std::fs::create_dir(&memory).unwrap();
    let nothing: OwnedFd = std::fs::File::open(&memory).unwrap().into();
    let saved = machine.checkpoint(&memory, nothing).await.unwrap();
    assert!(saved.memory_bytes > 1 << 20, "{saved:?}");
    assert_eq!(sh(&agent, None, "cat /tmp/file").await.0, "kept", "it goes on");
    sh(&agent, None, "echo later > /tmp/file").await;
    let own = "cat /proc/sys/kernel/random/boot_id /etc/machine-id; busybox hostname";
    let mut identities = vec![sh(&agent, None, own).await.0];
    let mut drawn = Vec::new();
    for id in ["m2", "m3"] {
        let (files, spec) = ([PutFile::machine_id(id)], Spec { hostname: id.into(), ..world.spec.clone() });
        let wanted = Wanted { id, spec: &spec, files: &files, memory: Some(&memory), ..world.wanted() };
        let fork = driver.create(wanted).await.unwrap();
        let agent = agent_of(&*fork).await;
        assert_eq!(sh(&agent, None, "cat /tmp/file").await.0, "kept");
        let counts = "cat /tmp/count; sleep 1; cat /tmp/count";
        let (counts, _) = sh(&agent, None, counts).await;
        let counts: Vec<u64> = counts.lines().map(|line| line.parse().unwrap()).collect();
        assert!(counts[0] < counts[1], "{counts:?}");
        drawn.push(sh(&agent, None, "busybox od -An -tx1 -N16 /dev/urandom").await.0);
        let clock: i64 = sh(&agent, None, "date +%s").await.0.parse().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
        assert!((clock - now).abs() < 30, "{clock} is not {now}");
        identities.push(sh(&agent, None, own).await.0);
        let (said, code) = sh(&agent, Some("root"), "echo x >/etc/machine-id").await;
        assert_ne!(code, Some(0), "it can change who it is: {said}");
        fork.destroy().await.unwrap();
    }
    let words: Vec<Vec<&str>> = identities.iter().map(|all| all.split_whitespace().collect()).collect();
    for part in 0..3 {
        let different: std::collections::BTreeSet<&str> = words.iter().map(|words| words[part]).collect();
        assert_eq!(different.len(), 3, "{identities:?}");
    }
    assert!(drawn[0].len() > 30 && drawn[0] != drawn[1], "{drawn:?}");

    // Two that start anew begin with the same booted machine, and share no number, no file and no time with it.
    let booted = || {
        let kept = std::fs::read_dir(world.dir.path().join("data/vm")).unwrap().flatten();
        kept.filter(|entry| entry.file_name().to_string_lossy().starts_with("booted-")).count()
    };
    assert_eq!(booted(), 1);
    for id in ["m4", "m5"] {
        let fresh = driver.create(Wanted { id, ..world.wanted() }).await.unwrap();
        let agent = agent_of(&*fresh).await;
        drawn.push(sh(&agent, None, "busybox od -An -tx1 -N16 /dev/urandom").await.0);
        drawn.push(sh(&agent, None, "cat /proc/sys/kernel/random/boot_id").await.0);
        assert_eq!(sh(&agent, None, "ls /tmp; date +%s >/tmp/file; cat /old/file").await.0, "old");
        let clock: u64 = sh(&agent, None, "cat /tmp/file").await.0.parse().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(clock.abs_diff(now) < 30, "{clock} is not {now}");
        fresh.destroy().await.unwrap();
    }
    assert_eq!(booted(), 1, "another was booted");
    let different: std::collections::BTreeSet<&String> = drawn.iter().collect();
    assert_eq!(different.len(), 6, "{drawn:?}");
    sh(&agent, None, "echo kept > /tmp/file").await;

    // The engine goes away; the next one finds the machine, and all in it.
    drop((agent, machine, driver));
    let driver = world.driver();
    let mut adoption = driver.adopt().await.unwrap();
    assert_eq!((adoption.living.len(), adoption.ended.len()), (1, 0));
    let adopted = adoption.living.remove(0);
    assert_eq!((adopted.id.as_str(), adopted.frozen), ("m1", false));
    let agent = agent_of(&*adopted.machine).await;
    assert_eq!(sh(&agent, None, "cat /tmp/file").await.0, "kept");
    assert!(adopted.machine.usage().await.unwrap().memory > 0);

    // Its time is kept by the host.
    adopted.machine.set_deadline(Some(Duration::from_millis(200)), Overdue::Destroy).await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(60), adopted.machine.ended()).await.unwrap();
    assert!(end.timed_out, "{end:?}");
    let pid = adopted.machine.pid().unwrap();
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "its first process is still there");
    drop((agent, adopted));
    assert!(driver.adopt().await.unwrap().living.is_empty());
    driver.shut_down();
    drop(driver);
    // A spawner has the ids of its next sandbox ready as long as it lives; one that nobody needs ends by itself.
    let leases = world.dir.path().join("uids");
    let left = || std::fs::read_dir(&leases).unwrap().count();
    let since = std::time::Instant::now();
    while left() > 0 && since.elapsed() < Duration::from_secs(120) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(left(), 0, "user ids are still leased");
    let notes = world.dir.path().join("data/vm/living");
    assert_eq!(std::fs::read_dir(notes).unwrap().count(), 0, "machines that are gone are still written down");
}

#[tokio::test]
async fn what_a_machine_cannot_have_is_refused() {
    let mut world = World::new();
    let from = world.dir.path().join("layer");
    world.spec.mounts =
        vec![sloplet_policy::bind::Bind { from, to: "/w".into(), writable: true, ..Default::default() }];
    let error = world.driver().create(world.wanted()).await.err().unwrap();
    assert!(error.to_string().contains("read-only mount"), "{error}");
}

#[test]
fn whether_kvm_runs_a_guest_is_tried_once_and_told() {
    let data = tempfile::tempdir().unwrap();
    let (kernel, qemu) = (kernel::find(data.path()).unwrap(), qemu::find().unwrap());
    let tried = setup::try_kvm(data.path(), &kernel, &program()).unwrap();
    assert_ne!(tried, Kvm::Untried);
    assert_eq!(kvm::known(data.path(), &qemu, &kernel), tried);
    let since = std::time::Instant::now();
    assert_eq!(setup::try_kvm(data.path(), &kernel, &program()).unwrap(), tried);
    assert!(since.elapsed() < Duration::from_secs(4), "it was tried again");
}
