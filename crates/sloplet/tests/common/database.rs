//! The database of a server that is not running, changed by hand: for what no client could bring about.

use std::path::Path;
use std::process::Command;

/// Runs a Python program on the open database `db` of a data folder; what it prints.
#[track_caller]
pub fn change(data: &Path, program: &str, arguments: &[&str]) -> String {
    let whole = format!("import json, sqlite3, sys\ndb = sqlite3.connect(sys.argv[1])\n{program}\ndb.commit()\n");
    let file = data.join("sloplet.db");
    let ran = Command::new("/usr/bin/python3").args(["-c", &whole]).arg(file).args(arguments).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap().trim().to_owned()
}
