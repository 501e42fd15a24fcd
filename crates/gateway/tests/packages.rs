//! Anthropic's and OpenAI's own Python packages, unmodified, behind the gateway: the tests are in `tests/packages`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

#[allow(dead_code, clippy::panic, reason = "a part of what another crate's tests have in common")]
#[path = "../../sloplet/tests/common/tools.rs"]
mod tools;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages")
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
        return; // takes long
    }
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    // Built by cargo beside the tests: target/…/deps/test → target/…/examples/forward.
    let own = std::env::current_exe().unwrap();
    let forward = own.ancestors().nth(2).unwrap().join("examples/forward");
    let output = Command::new(tools::python("llm-python"))
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
