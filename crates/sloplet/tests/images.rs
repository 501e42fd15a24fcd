//! Images through the command line: imported from everything that can be imported, pulled from a real registry, run,
//! removed; and hostile ones, refused with one line and without a trace.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, Permissions};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Ended, Host, Sloplet};

/// A root file system of one static program under many names.
fn rootfs(at: &Path) -> PathBuf {
    for folder in ["bin", "etc", "proc", "dev", "sys", "tmp", "root", "home/user", "usr/bin"] {
        fs::create_dir_all(at.join(folder)).unwrap();
    }
    fs::set_permissions(at.join("tmp"), Permissions::from_mode(0o1777)).unwrap();
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    fs::copy(busybox.expect("this test needs the Debian package busybox-static"), at.join("bin/busybox")).unwrap();
    for name in ["sh", "cat", "ls", "id", "echo", "stat", "test", "true", "sleep", "touch", "mount", "env"] {
        symlink("busybox", at.join("bin").join(name)).unwrap();
    }
    fs::write(at.join("etc/os-release"), "NAME=tiny\n").unwrap();
    fs::write(at.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n").unwrap();
    fs::write(at.join("etc/group"), "root:x:0:\nuser:x:1000:\n").unwrap();
    at.to_owned()
}

#[track_caller]
fn command(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output();
    let done = done.unwrap_or_else(|error| panic!("this test needs the program {program}: {error}"));
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The same root file system in every form that can be imported.
struct Forms {
    all: Vec<(&'static str, PathBuf)>,
    layout: PathBuf,
}

impl Forms {
    fn make(host: &Host) -> Self {
        let dir = host.dir().join("forms");
        fs::create_dir(&dir).unwrap();
        let root = rootfs(&dir.join("directory"));
        let tar = dir.join("rootfs.tar");
        command("tar", &["-C", text(&root), "--numeric-owner", "--owner=0", "--group=0", "-cf", text(&tar), "."]);
        let gz = dir.join("rootfs.tar.gz");
        command("sh", &["-c", &format!("gzip -k < {} > {}", tar.display(), gz.display())]);
        // skopeo turns a plain tarball into an OCI layout and that into what `docker save` writes.
        let (layout, saved) = (dir.join("layout"), dir.join("saved.tar"));
        oci_layout(&tar, &layout);
        let (from, to) =
            (format!("oci:{}:latest", layout.display()), format!("docker-archive:{}:tiny:1.0", saved.display()));
        command("skopeo", &["--insecure-policy", "copy", "--quiet", &from, &to]);
        let all = vec![("directory", root), ("tar", tar), ("gzip", gz), ("layout", layout.clone()), ("saved", saved)];
        Self { all, layout }
    }
}

/// An OCI layout with one layer, as the specification describes it.
fn oci_layout(layer: &Path, at: &Path) {
    let blobs = at.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let add = |bytes: &[u8]| {
        let path = at.join("blob");
        fs::write(&path, bytes).unwrap();
        let digest = command("sha256sum", &[text(&path)]).split(' ').next().unwrap().to_owned();
        fs::rename(&path, blobs.join(&digest)).unwrap();
        serde_json::json!({"digest": format!("sha256:{digest}"), "size": bytes.len()})
    };
    let with = |mut descriptor: serde_json::Value, kind: &str| {
        descriptor["mediaType"] = format!("application/vnd.oci.image.{kind}").into();
        descriptor
    };
    let layer = add(&fs::read(layer).unwrap());
    let config = serde_json::json!({
        "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" }, "os": "linux",
        "config": {"Env": ["PATH=/bin", "FROM_IMAGE=yes"], "WorkingDir": "/etc", "User": "user"},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    let config = with(add(config.to_string().as_bytes()), "config.v1+json");
    let layer = with(layer, "layer.v1.tar");
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = serde_json::json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer]});
    let mut manifest = with(add(manifest.to_string().as_bytes()), "manifest.v1+json");
    manifest["annotations"] = serde_json::json!({"org.opencontainers.image.ref.name": "latest"});
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(at.join("index.json"), index.to_string()).unwrap();
    fs::write(at.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}").unwrap();
}

fn names(sloplet: &Sloplet) -> Vec<String> {
    let listed = sloplet.invoke(&["image", "ls", "--json"]).finish().expect_code(0).json();
    listed.as_array().unwrap().iter().map(|image| image["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_form_is_imported_listed_run_and_removed() {
    let host = Host::shared();
    let forms = Forms::make(&host);
    for sloplet in [host.root(), host.user()] {
        for (name, path) in &forms.all {
            let ended = sloplet.invoke(&["image", "import", text(path), "--name", name]).finish().expect_code(0);
            assert!(ended.out().starts_with(&format!("{name}:latest ")) && ended.stderr.is_empty(), "{ended}");
            let ended = sloplet.run(&["--image", name], &["cat", "/etc/os-release"]).expect_code(0);
            assert_eq!(ended.out(), "NAME=tiny\n", "{name}: {ended}");
            // An ordinary user's own id is 1000 inside, and so is the owner of all that was unpacked by him.
            let owner = if sloplet.account.is_none() { "0:0\n0:0\n" } else { "1000:1000\n1000:1000\n" };
            let stat = ["stat", "-c", "%u:%g", "/etc", "/bin/busybox"];
            let ended = sloplet.run(&["--image", name, "--user", "root"], &stat).expect_code(0);
            assert_eq!(ended.out(), owner, "{name}: {ended}");
            // Nothing of the host's is there, and nothing that is written stays.
            let ended = sloplet
                .sh(&["--image", name, "--user", "root"], "ls /usr/bin; touch /etc/new && ls /etc")
                .expect_code(0);
            let etc = "group\nhostname\nhosts\nnew\nos-release\npasswd\nresolv.conf\n";
            assert_eq!(ended.out(), etc, "{name}: {ended}");
            let ended = sloplet.sh(&["--image", name], "test ! -e /etc/new").expect_code(0);
            assert_eq!(ended.stderr, "", "{name}");
        }
        assert_eq!(names(&sloplet), ["directory:latest", "gzip:latest", "layout:latest", "saved:latest", "tar:latest"]);
        let listed = sloplet.invoke(&["image", "ls"]).finish().expect_code(0);
        assert_eq!(listed.out().lines().count(), 6, "{listed}");
        sloplet.invoke(&["image", "rm", "directory", "gzip", "layout", "saved", "tar"]).finish().expect_code(0);
        assert_eq!(names(&sloplet), Vec::<String>::new());
        sloplet.run(&["--image", "tar"], &["true"]).expect_code(125).expect_said("unknown image 'tar'");
        let layers = fs::read_dir(sloplet.data.join("images/layers")).unwrap().flatten().map(|entry| entry.path());
        let left: Vec<PathBuf> = layers.filter(|path| !is_of_every_image(path)).collect();
        assert!(left.is_empty(), "layers were left: {left:?}");
    }
}

#[test]
fn what_an_image_says_about_commands_holds() {
    let host = Host::shared();
    let forms = Forms::make(&host);
    for sloplet in [host.root(), host.user()] {
        for (name, path) in forms.all.iter().filter(|(name, _)| matches!(*name, "layout" | "saved")) {
            let ended = sloplet.sh(&["--image", text(path)], "echo $FROM_IMAGE; pwd; id -u").expect_code(0);
            assert_eq!(ended.out(), "yes\n/etc\n1000\n", "{name}: {ended}");
            let options = ["--image", text(path), "--env", "FROM_IMAGE=no", "--workdir", "/tmp", "--user", "root"];
            let ended = sloplet.sh(&options, "echo $FROM_IMAGE; pwd; id -u").expect_code(0);
            assert_eq!(ended.out(), "no\n/tmp\n0\n", "{name}: {ended}");
        }
    }
}

#[test]
fn a_path_is_imported_once() {
    let host = Host::shared();
    let forms = Forms::make(&host);
    let tar = &forms.all[1].1;
    for sloplet in [host.root(), host.user()] {
        sloplet.run(&["--image", text(tar)], &["true"]).expect_code(0);
        let layers = || -> Vec<(PathBuf, std::time::SystemTime)> {
            let entries = fs::read_dir(sloplet.data.join("images/layers")).unwrap().flatten();
            entries
                .filter(|entry| !is_of_every_image(&entry.path()))
                .map(|entry| (entry.path(), entry.metadata().unwrap().created().unwrap()))
                .collect()
        };
        let before = layers();
        assert_eq!(before.len(), 1, "{before:?}");
        sloplet.run(&["--image", text(tar)], &["true"]).expect_code(0);
        assert_eq!(layers(), before, "it was unpacked again");
    }
}

/// A registry of the test's own, stopped when dropped.
struct Registry {
    child: Child,
    port: u16,
}

impl Registry {
    fn start(dir: &Path) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let config = dir.join("registry.yml");
        let storage = dir.join("registry");
        let lines = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n",
            storage.display()
        );
        fs::write(&config, lines).unwrap();
        let mut program = Command::new("docker-registry");
        program.arg("serve").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let child = program.spawn().expect("this test needs the Debian package docker-registry");
        let registry = Self { child, port };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "docker-registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_image_is_pulled_from_a_registry() {
    let host = Host::shared();
    let forms = Forms::make(&host);
    let registry = Registry::start(host.dir());
    let reference = format!("127.0.0.1:{}/tools/tiny:1.0", registry.port);
    let (from, to) = (format!("oci:{}:latest", forms.layout.display()), format!("docker://{reference}"));
    command("skopeo", &["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", &from, &to]);
    for sloplet in [host.root(), host.user()] {
        let unknown = sloplet.run(&["--image", &reference], &["true"]).expect_code(125);
        assert!(unknown.stderr.contains("sloplet image pull"), "{unknown}");
        let pulled = sloplet.invoke(&["image", "pull", &reference, "--json"]).finish().expect_code(0).json();
        assert_eq!(pulled["name"], reference.as_str(), "{pulled}");
        let ended = sloplet.run(&["--image", &reference], &["cat", "/etc/os-release"]).expect_code(0);
        assert_eq!(ended.out(), "NAME=tiny\n", "{ended}");
        let missing = format!("127.0.0.1:{}/tools/other:1.0", registry.port);
        let ended = sloplet.invoke(&["image", "pull", &missing]).finish().expect_code(125);
        assert_one_line(&ended, "cannot pull");
        sloplet.invoke(&["image", "rm", &reference]).finish().expect_code(0);
    }
}

#[track_caller]
fn assert_one_line(ended: &Ended, said: &str) {
    let one = ended.stderr.lines().count() == 1 && ended.stderr.starts_with("sloplet: ");
    assert!(ended.code == 125 && one && ended.stderr.contains(said), "must say '{said}': {ended}");
}

/// Writes archives that no archiver writes.
const CRAFT: &str = include_str!("probes/craft.py");

fn craft(kind: &str, dir: &Path, outside: &Path) -> PathBuf {
    let path = dir.join(format!("{kind}.tar"));
    command("python3", &["-c", CRAFT, kind, text(&path), text(outside)]);
    path
}

#[test]
fn hostile_images_are_refused_without_a_trace() {
    let host = Host::alone();
    let crafted = host.dir().join("crafted");
    fs::create_dir(&crafted).unwrap();
    for sloplet in [host.root(), host.user()] {
        let outside = sloplet.folder("outside");
        fs::set_permissions(&outside, Permissions::from_mode(0o777)).unwrap();
        fs::write(outside.join("precious"), "precious").unwrap();
        fs::set_permissions(outside.join("precious"), Permissions::from_mode(0o666)).unwrap();
        sloplet.run(&[], &["true"]).expect_code(0);
        let leaks = host.leaks();
        let mut kinds = vec!["parent", "link", "relative-link", "hardlink-up", "proc", "dev", "sys"];
        kinds.extend(["truncated", "deep", "long"]);
        if !common::fast() && sloplet.account.is_none() {
            kinds.push("bomb"); // without optimisation, unpacking up to the limit takes a while
        }
        let mut wrong = Vec::new();
        for kind in kinds {
            let archive = craft(kind, &crafted, &outside);
            let import = vec!["image", "import", text(&archive), "--name", "hostile"];
            let run = vec!["run", "--image", text(&archive), "--", "true"];
            for words in if kind == "bomb" { vec![import] } else { vec![import, run] } {
                let ended = sloplet.invoke(&words).within(Duration::from_secs(240)).finish();
                let one_line = ended.stderr.lines().count() == 1 && ended.stderr.starts_with("sloplet: ");
                if ended.code != 125 || !one_line {
                    wrong.push(format!("{kind}: {ended}"));
                }
            }
            let left = fs::read_dir(&outside).unwrap().count();
            assert_eq!(left, 1, "{kind}: something was written outside of the image");
            assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "precious", "{kind}");
            fs::remove_file(archive).unwrap();
        }
        assert!(wrong.is_empty(), "as {}: not refused, or not in one line:\n{}", sloplet.name, wrong.join("\n"));
        assert_eq!(names(&sloplet), Vec::<String>::new());
        for folder in ["images/tmp", "images/layers"] {
            let entries = fs::read_dir(sloplet.data.join(folder)).into_iter().flatten().flatten();
            let left: Vec<PathBuf> =
                entries.map(|entry| entry.path()).filter(|path| !is_of_every_image(path)).collect();
            assert!(left.is_empty(), "left in the store: {left:?}");
        }
        leaks.assert_none_new();
    }
}

/// Layers of sloplet's own, which are made once: of the image `host`, and the one below every other image.
fn is_of_every_image(path: &Path) -> bool {
    path.file_name().is_some_and(|name| ["host", "skeleton"].iter().any(|own| name.to_string_lossy().starts_with(own)))
}

/// Absolute names and links mean the image's own root, as with every other tool; they must not mean the host's.
#[test]
fn absolute_names_stay_below_the_images_root() {
    let host = Host::shared();
    let sloplet = host.root();
    let outside = sloplet.folder("outside");
    fs::write(outside.join("precious"), "precious").unwrap();
    for kind in ["absolute", "hardlink", "dev-null"] {
        let archive = craft(kind, host.dir(), &outside);
        sloplet.invoke(&["image", "import", text(&archive), "--name", kind]).finish();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{kind}");
        assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "precious", "{kind}");
    }
}

#[test]
fn devices_are_left_out_and_what_lies_below_proc_and_dev_is_hidden() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let archive = craft("devices", sloplet.folder("crafted").as_path(), Path::new("/nowhere"));
        let ended = sloplet.invoke(&["image", "import", text(&archive), "--name", "devices"]).finish().expect_code(0);
        assert!(ended.stderr.contains("devices, sockets or FIFOs were left out"), "{ended}");
        let script = "for name in /disk /memory /dev/kmsg /fifo /proc/planted /dev/planted; do busybox test -e $name && busybox echo $name; done; \
                      busybox stat -c %a /powerful; busybox test -c /dev/null && busybox echo null; \
                      busybox cat /proc/self/comm";
        let script = script.replace("busybox", "/bin/busybox");
        let ended = sloplet.sh(&["--image", "devices"], &script).expect_code(0);
        assert!(ended.out() == "4755\nnull\nbusybox\n" || ended.out() == "755\nnull\nbusybox\n", "{ended}");
    }
}

#[test]
fn the_base_image_is_what_an_agent_expects() {
    if common::fast() {
        return; // builds a distribution
    }
    let host = Host::shared();
    let sloplet = host.root();
    let data = common::built::image("base");
    let data = text(&data);
    let run = |options: &[&str], script: &str| {
        let options = [&["--image", "base", "--data", data], options].concat();
        sloplet.run(&options, &["bash", "-c", script])
    };
    let ended =
        run(&[], "id -un; pwd; sudo id -u; for program in python3 git curl rg less; do command -v $program; done");
    let expected = "user\n/home/user\n0\n/usr/bin/python3\n/usr/bin/git\n/usr/bin/curl\n/usr/bin/rg\n/usr/bin/less\n";
    assert_eq!(ended.out(), expected, "{ended}");
    // It does not complain that it cannot find the machine by its name.
    assert_eq!(ended.stderr, "", "{ended}");
    // Root by sudo is root inside only.
    let ended = run(&[], "sudo mount -t tmpfs none /mnt || echo refused; sudo cat /proc/1/environ || echo refused");
    assert_eq!(ended.out(), "refused\nrefused\n", "{ended}");
    // A package is installed as anywhere.
    let package = "mkdir -p /tmp/p/DEBIAN /tmp/p/opt && printf 'Package: tiny\\nVersion: 1\\nArchitecture: all\\nMaintainer: x <x@x>\\n\
                   Description: x\\n' > /tmp/p/DEBIAN/control && echo installed > /tmp/p/opt/tiny && \
                   dpkg-deb --build /tmp/p /tmp/tiny.deb >/dev/null && sudo dpkg -i /tmp/tiny.deb >/dev/null && cat /opt/tiny && \
                   python3 -m venv --without-pip /tmp/venv && /tmp/venv/bin/python -c 'print(1)' && \
                   git init -q /tmp/repository && git -C /tmp/repository status --short";
    let ended = run(&[], package);
    assert_eq!((ended.code, ended.out().as_str()), (0, "installed\n1\n"), "{ended}");
    let ended = run(&[], "test ! -e /opt/tiny");
    assert_eq!(ended.code, 0, "what was installed is there in the next run: {ended}");
}

#[test]
fn the_interpreter_image_runs_code_in_kernels() {
    if common::fast() {
        return; // builds a distribution
    }
    let host = Host::shared();
    let sloplet = host.root();
    let data = common::built::image("code-interpreter");
    let image = sloplet_image::Store::open(&data).unwrap().resolve("code-interpreter").unwrap();
    let (start, ready) = (image.config.start.unwrap(), image.config.ready.unwrap());
    let script = format!(
        "({start}) >/dev/null 2>&1 &
         until {ready} 2>/dev/null; do sleep 0.1; done
         run() {{ curl -sS http://127.0.0.1:49999/execute -d \"$1\"; }}
         run '{{\"code\": \"import getpass, os; x = 41; (getpass.getuser(), os.getcwd())\"}}'
         run '{{\"code\": \"x + 1\"}}'
         run '{{\"code\": \"import matplotlib.pyplot as plt; plt.bar([1], [2]); plt.show()\"}}' | tr , '\\n' | grep -E 'iVBOR|chart'
         run '{{\"code\": \"echo $((40 + 2))-bash\", \"language\": \"bash\"}}'
         run '{{\"code\": \"console.log(await 42)\", \"language\": \"js\"}}'
         run '{{\"code\": \"const a: number = 43; a\", \"language\": \"ts\"}}'
         pkill -9 -f 'lib/sloplet/[i]nterpreter$'
         until {ready} 2>/dev/null; do sleep 0.1; done
         run '{{\"code\": \"x\"}}'"
    );
    let options = ["--image", "code-interpreter", "--data", text(&data), "--memory", "2G", "--timeout", "5m"];
    let ended = sloplet.invoke(&[&["run"][..], &options, &["--", "bash", "-c", &script]].concat());
    let ended = ended.within(Duration::from_secs(300)).finish().expect_code(0);
    let out = ended.out();
    for expected in
        ["('user', '/home/user')", "\"42\"", "iVBOR", "\"bar\"", "42-bash\\n", "\"42\\n\"", "\"43\"", "NameError"]
    {
        assert!(out.contains(expected), "{expected} is missing: {ended}");
    }
}
