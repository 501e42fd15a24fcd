//! Anthropic's and OpenAI's own Python packages, unmodified, behind the gateway: the tests are in `tests/packages`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::fs::{FlockOperation, flock};

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages")
}

/// A Python with the packages that the list names, installed once for each state of the list.
fn python() -> PathBuf {
    let usual = || PathBuf::from("/var/cache/sloplet/tools");
    let tools = std::env::var_os("SLOPLET_TEST_TOOLS").map_or_else(usual, PathBuf::from);
    let list = tests().join("requirements.txt");
    let digest = ring::digest::digest(&ring::digest::SHA256, &fs::read(&list).unwrap());
    let digest: String = digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let folder = tools.join(format!("gateway-{digest}"));
    fs::create_dir_all(&tools).unwrap();
    let lock = fs::File::create(tools.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    if !folder.join("complete").exists() {
        let _ = fs::remove_dir_all(&folder);
        let script = "python3 -m venv \"$0\" && \"$0/bin/pip\" install --quiet --requirement \"$1\"";
        let output = Command::new("sh").args(["-c", script]).arg(&folder).arg(&list).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::write(folder.join("complete"), "").unwrap();
    }
    folder.join("bin/python")
}

/// A certificate for the stand-in, and who signed it.
fn certificates(folder: &Path) {
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = ["api.anthropic.com", "api.openai.com"].map(String::from);
    let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
    fs::write(folder.join("roots.pem"), ca.pem()).unwrap();
    fs::write(folder.join("chain.pem"), leaf.pem()).unwrap();
    fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}

#[test]
fn the_python_packages_work_unmodified() {
    if std::env::var("SLOPLET_TEST_MODE").is_ok_and(|mode| mode == "fast") {
        return; // installs packages
    }
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    // Built by cargo beside the tests: target/…/deps/test → target/…/examples/forward.
    let own = std::env::current_exe().unwrap();
    let forward = own.ancestors().nth(2).unwrap().join("examples/forward");
    let output = Command::new(python())
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "."])
        .current_dir(tests())
        .env("GATEWAY_FORWARD", forward)
        .env("GATEWAY_CERTIFICATES", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .process_group(0)
        .output()
        .unwrap();
    let said = [String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)].concat();
    println!("{said}");
    assert!(output.status.success(), "the packages' tests failed, see above");
}
