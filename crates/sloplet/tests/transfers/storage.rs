//! An S3 on loopback.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::common::{Host, Sloplet};

/// What the credentials are; nobody may see the second.
pub const KEY: &str = "test-key";
pub const SECRET: &str = "test-secret-that-nobody-may-see";

/// A running S3 with the bucket `bucket`; ends when dropped.
pub struct Storage {
    child: Child,
    folder: PathBuf,
    pub endpoint: String,
}

impl Storage {
    pub fn start(host: &Host) -> Self {
        let folder = host.dir().join("s3");
        fs::create_dir(&folder).unwrap();
        let program = folder.with_file_name("s3.py");
        fs::write(&program, include_str!("s3.py")).unwrap();
        let mut command = Command::new("python3");
        let mut child = command.arg(&program).arg(&folder).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let endpoint = format!("http://127.0.0.1:{}", port.trim());
        Self { child, folder, endpoint }
    }

    /// sloplet with the credentials for it.
    pub fn known_to(&self, sloplet: Sloplet) -> Sloplet {
        let sloplet = sloplet.with("AWS_ENDPOINT_URL_S3", &self.endpoint);
        sloplet.with("AWS_ACCESS_KEY_ID", KEY).with("AWS_SECRET_ACCESS_KEY", SECRET)
    }

    /// What goes wrong next, or how slow it is.
    pub fn trouble(&self, kind: &str, value: &str) {
        fs::write(self.folder.join(kind), value).unwrap();
    }

    /// What was carried out, of those lines that begin so.
    pub fn log(&self, start: &str) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        text.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    }

    /// The content of an object.
    pub fn object(&self, key: &str) -> Option<Vec<u8>> {
        fs::read(self.folder.join(format!("object%20{}", key.replace('/', "%2F")))).ok()
    }

    pub fn put(&self, key: &str, content: &[u8]) {
        let path = |kind: &str| self.folder.join(format!("{kind}%20{}", key.replace('/', "%2F")));
        fs::write(path("object"), content).unwrap();
        fs::write(path("etag"), format!("{:032x}", content.len())).unwrap();
    }

    /// Uploads that are neither complete nor given up.
    pub fn unfinished(&self) -> usize {
        let entries = fs::read_dir(&self.folder).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("upload")).count()
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
