//! `sloplet mask`, as docs/masking.md tells it: every command in it is run as written.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const GUIDE: &str = include_str!("../../../docs/masking.md");

const CUSTOMERS: &str = "id,name,email,phone,card,born,notes,plan\n\
    1001,Anna Becker,anna@real.test,+49 30 1234567,4242424242424242,1980-02-29,Anna Becker asked for anna@real.test,free\n\
    1002,Paul Conroy,paul@real.test,+49 30 7654321,4000056655665556,1975-12-31,,team\n";
const ORDERS: &str = "number,customer,total\nA-00001,1002,19.90\nA-00002,1001,5.00\nA-00003,1002,7.25\n";

/// Runs a line in a shell that finds the binary.
fn shell(folder: &Path, line: &str) -> Output {
    let binaries = Path::new(env!("CARGO_BIN_EXE_sloplet")).parent().unwrap();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
    Command::new("sh").args(["-euc", line]).current_dir(folder).env("PATH", path).output().unwrap()
}

/// The text of the blocks that begin with this line.
fn blocks(fence: &str) -> Vec<&'static str> {
    GUIDE.split(fence).skip(1).map(|rest| rest.split("\n```").next().unwrap().trim()).collect()
}

#[test]
fn the_guide_works_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    fs::write(folder.path().join("customers.csv"), CUSTOMERS).unwrap();
    fs::write(folder.path().join("orders.csv"), ORDERS).unwrap();
    fs::write(folder.path().join("rules.toml"), blocks("```toml file=rules.toml\n")[0]).unwrap();
    let commands = blocks("```sh\n");
    assert_eq!(commands.len(), 4);
    for command in commands {
        let ended = shell(folder.path(), command);
        assert!(ended.status.success(), "{command}: {}", String::from_utf8_lossy(&ended.stderr));
    }
    assert_eq!(fs::metadata(folder.path().join("mask.key")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(read("proposed.toml").contains("email = \"email\""));
    let (customers, orders) = (read("fake-customers.csv"), read("fake-orders.csv"));
    for real in ["Anna", "Becker", "Paul", "Conroy", "real.test", "1234567", "4242424242424242", "1980-02-29", "1001"] {
        assert!(!customers.contains(real), "{real} came out: {customers}");
    }
    let ids: Vec<&str> = customers.lines().skip(1).map(|line| line.split(',').next().unwrap()).collect();
    let buyers: Vec<&str> = orders.lines().skip(1).map(|line| line.split(',').nth(1).unwrap()).collect();
    assert_eq!(buyers, [ids[1], ids[0], ids[1]], "joins match");
    let report: Value = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!(report["tables"][0]["rows"], 2);
    assert_eq!(report["source_digest"].as_str().unwrap().len(), 64);
    let key = read("mask.key");
    assert!(!read("report.json").contains(key.trim()) && !customers.contains(key.trim()), "the key came out");
    let made = read("made.csv");
    assert_eq!(made.lines().count(), 10_001);
    assert_eq!(made.lines().skip(1).map(|line| line.split(',').next().unwrap()).collect::<HashSet<_>>().len(), 10_000);
}

/// A file that is larger than the memory that may be had.
#[test]
fn files_larger_than_memory_are_streamed() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let mut file = std::io::BufWriter::new(fs::File::create(folder.path().join("long.csv")).unwrap());
    let (rows, filling) = (30_000, "x".repeat(8000));
    file.write_all(b"id,filling\n").unwrap();
    (0..rows).for_each(|row| writeln!(file, "{},{filling}", 100_000 + row).unwrap());
    file.flush().unwrap();
    let other = "y".repeat(4000);
    let rules = format!("[table.long]\nid = \"id\"\nfilling = {{ rule = \"constant\", value = \"{other}\" }}\n");
    fs::write(folder.path().join("rules.toml"), rules).unwrap();
    let line = "sloplet mask --new-key k >/dev/null; ulimit -d 131072; \
                sloplet mask long.csv --out out.csv --config rules.toml --key k";
    let ended = shell(folder.path(), line);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let size = |name: &str| fs::metadata(folder.path().join(name)).unwrap().len();
    assert!(size("long.csv") > 230_000_000);
    assert_eq!(size("out.csv"), 11 + rows * (6 + 1 + 4000 + 1));
    // That the bound is one: all of it at once does not go.
    let ended = shell(folder.path(), "ulimit -d 131072; python3 -c 'open(\"long.csv\").read()'");
    assert!(!ended.status.success());
}

#[test]
fn what_is_missing_is_said_on_one_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("t.csv"), "a,b\n1,2\n").unwrap();
    fs::write(folder.path().join("t.toml"), "[table.t]\na = \"id\"\n").unwrap();
    fs::write(folder.path().join("bad.toml"), "[table.t]\na = \"ids\"\n").unwrap();
    assert!(shell(folder.path(), "sloplet mask --new-key k").status.success());
    for (line, said) in [
        ("sloplet mask t.csv", "--out FILE is missing"),
        ("sloplet mask t.csv --out o.csv", "--suggest proposes one"),
        ("sloplet mask t.csv --out o.csv --config t.toml", "--new-key"),
        ("sloplet mask t.csv --out o.csv --config none.toml --key k", "none.toml"),
        ("sloplet mask t.csv --out o.csv --config t.toml --key none", "--new-key none"),
        ("sloplet mask t.csv --out o.csv --config bad.toml --key k", "there is no rule 'ids'"),
        ("sloplet mask t.csv --out o.csv --config t.toml --key k", "no rule for 't.b'"),
        ("sloplet mask t.csv --out t.csv --config t.toml --key k", "another name"),
        ("sloplet mask none.csv --out o.csv --config t.toml --key k", "none.csv"),
        ("sloplet mask t.csv --format x --out o.csv --config t.toml --key k", "no format"),
        ("sloplet mask --new-key k", "exists"),
        ("SLOPLET_MASK_KEY=short sloplet mask t.csv --out o.csv --config t.toml", "64 hexadecimal"),
    ] {
        let ended = shell(folder.path(), line);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(125), "{line}: {stderr}");
        assert!(stderr.contains(said) && stderr.lines().count() == 1, "{line}: {stderr}");
        assert!(!folder.path().join("o.csv").exists(), "{line}");
    }
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn json_is_json() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("t.csv"), "a\n1\n").unwrap();
    fs::write(folder.path().join("t.toml"), "[table.t]\na = \"id\"\n").unwrap();
    for line in [
        "sloplet mask --new-key k --json",
        "sloplet mask --suggest t.csv --json",
        "sloplet mask t.csv --out o.csv --config t.toml --key k --json",
        "SLOPLET_MASK_KEY=$(cat k) sloplet mask t.csv --out o.csv --config t.toml --json",
        "sloplet mask --rows 3 --schema t.toml --out m.jsonl --json",
    ] {
        let ended = shell(folder.path(), line);
        assert!(ended.status.success(), "{line}: {}", String::from_utf8_lossy(&ended.stderr));
        serde_json::from_slice::<Value>(&ended.stdout).expect(line);
    }
}
