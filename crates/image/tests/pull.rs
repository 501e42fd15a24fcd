//! Pulls from a real registry on loopback (`docker-registry`), filled with `skopeo`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy sees only #[test] functions as tests")]

mod common;

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{Tar, gzip, layout, run, sha256, store};
use sloplet_image::{
    Image, ImageError, LimitExceeded, Limits, Platform, Progress, PullOptions, Store, Vet, Vetting, silent,
};

/// A registry of the test's own, stopped when dropped.
struct Registry {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl Registry {
    fn start() -> Registry {
        let dir = tempfile::tempdir().unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n",
            dir.path().join("data").display()
        );
        let config_path = dir.path().join("config.yml");
        std::fs::write(&config_path, config).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config_path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("this test needs the Debian package docker-registry: {e}"));
        let registry = Registry { child, port, dir };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "docker-registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }

    fn push(&self, layout: &Path, name: &str) -> String {
        let reference = format!("127.0.0.1:{}/{name}", self.port);
        let source = format!("oci:{}", layout.display());
        let target = format!("docker://{reference}");
        run("skopeo", &["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", &source, &target]);
        reference
    }

    /// Where the registry keeps a blob.
    fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.trim_start_matches("sha256:");
        self.dir.path().join("data/docker/registry/v2/blobs/sha256").join(&hex[..2]).join(hex).join("data")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pull(store: &Store, reference: &str) -> Result<Image, ImageError> {
    pull_as(store, reference, PullOptions::default(), &silent)
}

fn pull_as(
    store: &Store,
    reference: &str,
    options: PullOptions,
    progress: sloplet_image::ProgressFn<'_>,
) -> Result<Image, ImageError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(store.pull(reference, options, progress))
}

fn layers() -> [Vec<u8>; 2] {
    [Tar::new().file("etc/who", "bottom").done(), Tar::new().file("etc/who", "top").done()]
}

fn assert_nothing_kept(data: &Path) {
    for dir in ["names", "tmp", "info"] {
        assert_eq!(std::fs::read_dir(data.join("images").join(dir)).unwrap().count(), 0, "{dir} is not empty");
    }
}

#[test]
fn pulled_by_tag_and_by_digest_and_only_once() {
    let registry = Registry::start();
    let (data, store) = store();
    let reference = registry.push(&layout(data.path(), &layers()), "some/tool:1.0");
    let fetched = Mutex::new(0);
    let count = |what: Progress| {
        if matches!(what, Progress::Fetching { .. }) {
            *fetched.lock().unwrap() += 1;
        }
    };
    let image = pull_as(&store, &reference, PullOptions::default(), &count).unwrap();
    assert_eq!(image.name, reference);
    assert_eq!(std::fs::read_to_string(image.layers[0].join("etc/who")).unwrap(), "top");
    assert_eq!(std::fs::read_to_string(image.layers[1].join("etc/who")).unwrap(), "bottom");
    assert_eq!(image.config.workdir.as_deref(), Some("/srv"));
    assert_eq!(store.resolve(&reference).unwrap(), image);
    assert_eq!(*fetched.lock().unwrap(), 3, "a configuration and two layers");

    let by_digest = format!("{}@{}", reference.trim_end_matches(":1.0"), image.digest);
    let again = pull_as(&store, &by_digest, PullOptions::default(), &count).unwrap();
    assert_eq!((again.layers, again.digest), (image.layers, image.digest));
    assert_eq!(*fetched.lock().unwrap(), 4, "only the configuration: the layers are there");
    assert_eq!(std::fs::read_dir(data.path().join("images/tmp")).unwrap().count(), 0);
}

#[test]
fn a_blob_or_manifest_with_another_digest_is_refused() {
    let registry = Registry::start();
    let (data, store) = store();
    let source = layout(data.path(), &layers());
    let reference = registry.push(&source, "tool:latest");
    let read = |digest: &str| std::fs::read(registry.blob(digest)).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&std::fs::read(source.join("index.json")).unwrap()).unwrap();
    let manifest_digest = index["manifests"][0]["digest"].as_str().unwrap().to_owned();
    let manifest: serde_json::Value = serde_json::from_slice(&read(&manifest_digest)).unwrap();
    let config_digest = manifest["config"]["digest"].as_str().unwrap();
    let layer_digest = manifest["layers"][1]["digest"].as_str().unwrap();

    // Well-formed, of the same size or smaller: only the digest tells.
    let evil = gzip(&Tar::new().file("evil", "").done());
    let config = String::from_utf8(read(config_digest)).unwrap().replace("A=1", "A=2").into_bytes();
    for (digest, replacement) in [(layer_digest, evil), (config_digest, config)] {
        let good = read(digest);
        std::fs::write(registry.blob(digest), replacement).unwrap();
        let error = pull(&store, &reference).unwrap_err();
        assert!(error.to_string().to_lowercase().contains("digest"), "{error}");
        assert_nothing_kept(data.path());
        std::fs::write(registry.blob(digest), good).unwrap();
    }
    let by_digest = format!("{}@{manifest_digest}", reference.trim_end_matches(":latest"));
    let good = read(&manifest_digest);
    let changed = String::from_utf8(good.clone()).unwrap().replacen("\"schemaVersion\":2", "\"schemaVersion\": 2", 1);
    std::fs::write(registry.blob(&manifest_digest), changed).unwrap();
    assert!(pull(&store, &by_digest).is_err());
    assert_nothing_kept(data.path());
    std::fs::write(registry.blob(&manifest_digest), good).unwrap();
    pull(&store, &reference).unwrap();
    pull(&store, &by_digest).unwrap();
}

#[test]
fn a_layer_larger_than_announced_or_allowed() {
    let registry = Registry::start();
    let (data, store) = store();
    let reference = registry.push(&layout(data.path(), &[Tar::new().file("x", &"y".repeat(50_000)).done()]), "big:1");
    let tight = store.clone().with_limits(Limits { total_bytes: 40_000, ..Limits::default() });
    let error = pull(&tight, &reference).unwrap_err();
    assert!(matches!(error, ImageError::TooBig(LimitExceeded::Bytes(40_000))), "{error}");
    assert_nothing_kept(data.path());
}

#[test]
fn hostile_layers_are_refused_as_in_an_import() {
    let registry = Registry::start();
    let (data, store) = store();
    let reference = registry.push(&layout(data.path(), &[Tar::new().file("../x", "").done()]), "evil:1");
    assert!(matches!(pull(&store, &reference), Err(ImageError::Refused { .. })));
    assert_nothing_kept(data.path());
}

#[test]
fn another_platform_is_refused() {
    let registry = Registry::start();
    let (data, store) = store();
    let reference = registry.push(&layout(data.path(), &layers()), "tool:1");
    let platform = Platform { os: "linux".into(), architecture: "s390x".into() };
    let options = PullOptions { platform: Some(platform), ..PullOptions::default() };
    let error = pull_as(&store, &reference, options, &silent).unwrap_err();
    assert!(error.to_string().contains("s390x"), "{error}");
}

#[test]
fn the_fitting_image_of_an_index() {
    let registry = Registry::start();
    let (data, store) = store();
    let source = layout(data.path(), &layers());
    // The layout's index gets a second image, for another platform, and becomes what the tag names.
    let index_path = source.join("index.json");
    let mut index: serde_json::Value = serde_json::from_slice(&std::fs::read(&index_path).unwrap()).unwrap();
    let ours = Platform::of_host();
    index["manifests"][0]["platform"] = serde_json::json!({"os": "linux", "architecture": ours.architecture});
    let mut other = index["manifests"][0].clone();
    other["platform"]["architecture"] = "s390x".into();
    index["manifests"].as_array_mut().unwrap().push(other);
    index["mediaType"] = "application/vnd.oci.image.index.v1+json".into();
    let bytes = index.to_string();
    let digest = sha256(bytes.as_bytes());
    std::fs::write(source.join("blobs/sha256").join(&digest), &bytes).unwrap();
    let outer = serde_json::json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.index.v1+json", "digest": format!("sha256:{digest}"), "size": bytes.len()}]});
    std::fs::write(&index_path, outer.to_string()).unwrap();
    let reference = format!("127.0.0.1:{}/multi:1", registry.port);
    run(
        "skopeo",
        &[
            "--insecure-policy",
            "copy",
            "--all",
            "--quiet",
            "--dest-tls-verify=false",
            &format!("oci:{}", source.display()),
            &format!("docker://{reference}"),
        ],
    );
    let image = pull(&store, &reference).unwrap();
    assert_eq!(image.layers.len(), 3);
    assert_eq!(store.import(&source, Some("local"), &silent).unwrap().layers, image.layers);
}

#[test]
fn clear_errors() {
    let registry = Registry::start();
    let (_data, store) = store();
    let missing = pull(&store, &format!("127.0.0.1:{}/no/such:1", registry.port)).unwrap_err();
    assert!(matches!(missing, ImageError::Pull { .. }), "{missing}");
    let port = registry.port;
    drop(registry);
    let refused = pull(&store, &format!("localhost:{port}/x:1")).unwrap_err();
    assert!(matches!(refused, ImageError::Pull { .. }), "{refused}");
    for bad in ["", "UPPER CASE", "../x", "host", "a\nb"] {
        assert!(matches!(pull(&store, bad), Err(ImageError::BadName { .. } | ImageError::Pull { .. })), "{bad}");
    }
}

/// Answers every request with what `answer` says of its path, and remembers the requests.
fn fake(answer: impl Fn(&str) -> String + Send + 'static) -> (u16, std::sync::Arc<Mutex<Vec<String>>>) {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, seen) = (listener.local_addr().unwrap().port(), std::sync::Arc::new(Mutex::new(Vec::new())));
    let kept = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let path = lines.next().unwrap_or_default().split(' ').nth(1).unwrap_or_default().to_owned();
            while lines.next().is_some_and(|line| !line.is_empty()) {}
            let reply = answer(&path);
            kept.lock().unwrap().push(path);
            let _ = stream.write_all(reply.as_bytes());
        }
    });
    (port, seen)
}

fn reply(status: &str, header: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\n{header}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Lets a pull connect to one port of this machine.
struct Only(u16);

impl Vet for Only {
    fn admit(&self, _: &str, port: u16, address: Option<std::net::IpAddr>) -> Result<(), String> {
        match address {
            Some(_) if port != self.0 => Err(format!("port {port} is refused")),
            _ => Ok(()),
        }
    }

    fn dial(&self, name: &str, address: std::net::IpAddr) -> Result<(), String> {
        Err(format!("{name} at {address} is refused"))
    }
}

#[test]
fn a_pull_connects_to_nobody_that_was_not_vetted_whoever_leads_there() {
    let (_data, store) = store();
    let (inner, reached) = fake(|_| reply("200 OK", "X: y", "INTERNAL-SERVICE-SECRET-BODY"));
    let leads = move |path: &str| match path {
        _ if path.contains("realm") => {
            let place = format!("WWW-Authenticate: Bearer realm=\"http://127.0.0.1:{inner}/admin?x=1\",service=\"x\"");
            reply("401 Unauthorized", &place, "{}")
        }
        _ if path.contains("name") => {
            let place = format!("WWW-Authenticate: Bearer realm=\"http://localhost:{inner}/admin\"");
            reply("401 Unauthorized", &place, "{}")
        }
        _ => reply("307 Temporary Redirect", &format!("Location: http://127.0.0.1:{inner}/admin"), ""),
    };
    let (port, _) = fake(leads);
    let pull = |reference: String, vetting: Vetting| {
        let options = PullOptions { vetting: Some(vetting), ..PullOptions::default() };
        pull_as(&store, &reference, options, &silent).unwrap_err().to_string()
    };
    for repository in ["realm", "name", "redirect"] {
        let error = pull(format!("127.0.0.1:{port}/{repository}/x:1"), Vetting::new(Only(port)));
        assert!(error.contains("is refused"), "{repository}: {error}");
    }
    // The registry itself, by its address and by a name.
    for host in ["127.0.0.1", "localhost"] {
        let error = pull(format!("{host}:{inner}/x:1"), Vetting::new(Only(port)));
        assert!(error.contains("is refused"), "{host}: {error}");
    }
    assert_eq!(*reached.lock().unwrap(), [""; 0]);
}

#[test]
fn what_a_registry_says_when_it_refuses_is_not_told() {
    let (_data, store) = store();
    let (port, _) = fake(|path| match path {
        _ if path.contains("missing") => reply("404 Not Found", "X: y", "INTERNAL-SERVICE-SECRET-BODY"),
        _ if path.contains("account") => reply("401 Unauthorized", "WWW-Authenticate: Basic", "SECRET-BODY"),
        _ if path.contains("broken") => reply("500 Oh SECRET-BODY", "X: y", "INTERNAL-SERVICE-SECRET-BODY"),
        _ => reply("200 OK", "X: y", "INTERNAL-SERVICE-SECRET-BODY"),
    });
    for repository in ["missing", "account", "broken", "other"] {
        let error = pull(&store, &format!("127.0.0.1:{port}/{repository}:1")).unwrap_err().to_string();
        assert!(!error.contains("SECRET-BODY"), "{repository}: {error}");
    }
}

#[test]
fn an_image_is_stored_under_the_name_that_was_asked_for() {
    let registry = Registry::start();
    let (data, store) = store();
    let reference = registry.push(&layout(data.path(), &layers()), "tool:1");
    let options = PullOptions { name: Some("pulled-for-me".into()), ..PullOptions::default() };
    let image = pull_as(&store, &reference, options, &silent).unwrap();
    assert_eq!(image.name, "pulled-for-me:latest");
    assert!(store.resolve("pulled-for-me").is_ok() && store.resolve(&reference).is_err());
}
