//! `[data]`: files that go in masked. The original never does, whoever makes the sandbox.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Host, Server, Sloplet};
use serde_json::Value;

/// Values that are nobody's, so that finding one inside means that it came from the file.
const PEOPLE: [(&str, &str); 3] = [
    ("Zebedee Quillfeather", "zebedee.quill@hospital-of-oz.test"),
    ("Ottoline Brackenridge", "ottoline@brackenridge-and-daughters.test"),
    ("Thaddeus Marrowstone", "thaddeus.m@marrowstone.test"),
];

const RULES: &str = r#"
[table.customers]
id = { rule = "id", domain = "customer", unique = true }
name = "name"
email = { rule = "email", unique = true }
plan = "keep"

[table.orders]
number = { rule = "id", unique = true }
customer = { same_as = "customers.id" }
note = "text"
"#;

/// A folder with two tables, their rules and a `sloplet.toml`; returns that.
fn project(folder: &Path, rules: &str) -> PathBuf {
    fs::create_dir_all(folder.join("masks")).unwrap();
    let (mut customers, mut orders) = ("id,name,email,plan\n".to_owned(), "number,customer,note\n".to_owned());
    for (number, (name, email)) in PEOPLE.iter().enumerate() {
        customers.push_str(&format!("90{number}7731,{name},{email},team\n"));
        for order in 0..2 {
            orders.push_str(&format!("77{number}{order}4409,90{number}7731,Call {email} first\n"));
        }
    }
    fs::write(folder.join("customers.csv"), customers).unwrap();
    fs::write(folder.join("orders.csv"), orders).unwrap();
    fs::write(folder.join("masks/shop.toml"), rules).unwrap();
    let file = folder.join("sloplet.toml");
    fs::write(
        &file,
        r#"
        [data]
        mounts = [
            { from = "customers.csv", to = "/data/customers.csv", mask = "masks/shop.toml" },
            { from = "orders.csv", to = "/data/orders.csv", mask = "masks/shop.toml" },
        ]
        "#,
    )
    .unwrap();
    file
}

/// Every real value of a masked column.
fn real() -> Vec<String> {
    let people = PEOPLE.iter().enumerate().flat_map(|(number, (name, email))| {
        let words = name.split(' ').map(str::to_owned);
        words.chain([(*email).to_owned(), format!("90{number}7731"), format!("77{number}04409")])
    });
    people.collect()
}

/// Looks for all of them in all files of the sandbox; the pattern is put together inside, lest it find itself.
fn search() -> String {
    let halves: Vec<String> = real()
        .iter()
        .map(|value| {
            let (one, two) = value.split_at(value.len() / 2);
            format!("printf '%s%s\\n' '{one}' '{two}'")
        })
        .collect();
    format!(
        "({}) > /dev/shm/patterns; found=$(grep -rlaFf /dev/shm/patterns / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude=patterns 2>/dev/null); echo \"${{found:-nowhere}}\"",
        halves.join("; ")
    )
}

/// What both tables have inside, as rows of fields.
fn rows(text: &str) -> Vec<Vec<String>> {
    text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

#[track_caller]
fn masked_and_joined(customers: &str, orders: &str) {
    for value in real() {
        assert!(!customers.contains(&value) && !orders.contains(&value), "{value}: {customers}{orders}");
    }
    let (customers, orders) = (rows(customers), rows(orders));
    assert_eq!((customers.len(), orders.len()), (3, 6));
    assert!(customers.iter().all(|row| row[3] == "team" && row[2].ends_with(".example")), "{customers:?}");
    for customer in &customers {
        let own = orders.iter().filter(|order| order[1] == customer[0]).count();
        assert_eq!(own, 2, "joins still match: {customers:?} {orders:?}");
    }
}

/// Nothing of it is left under any name on the host.
#[track_caller]
fn nothing_left(sloplet: &Sloplet) {
    let left: Vec<PathBuf> =
        fs::read_dir(sloplet.data.join("masked")).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn only_the_masked_copy_enters_a_sandbox() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let file = project(&sloplet.folder("project"), RULES);
        let config = ["--config", file.to_str().unwrap()];
        let script = "cat /data/customers.csv; echo ==; cat /data/orders.csv; echo ==; ";
        let script = format!("{script}{}; echo ==; (echo x >> /data/orders.csv) 2>/dev/null || echo refused", search());
        let ended = sloplet.sh(&config, &script).expect_code(0);
        let out = ended.out();
        let parts: Vec<&str> = out.split("==\n").collect();
        masked_and_joined(parts[0], parts[1]);
        assert_eq!((parts[2], parts[3]), ("nowhere\n", "refused\n"), "{ended}");
        nothing_left(&sloplet);
        // The same fakes in every run.
        let again = sloplet.sh(&config, "cat /data/customers.csv").expect_code(0).out();
        assert_eq!(again, parts[0], "{}", sloplet.name);
        // The search would have found them.
        let shown = format!("--mount={}:/raw", file.parent().unwrap().join("customers.csv").display());
        let ended = sloplet.sh(&[&config[..], &[&shown]].concat(), &search()).expect_code(0);
        assert_eq!(ended.out(), "/raw\n", "{ended}");
        // Written down: what went in, by which rules.
        let ended = sloplet.invoke(&["audit", "--kind", "data_masked", "--json"]).finish().expect_code(0);
        let first: Value = serde_json::from_str(ended.out().lines().next().unwrap()).unwrap();
        let event = &first["event"];
        assert_eq!(event["path"], "/data/customers.csv", "{first}");
        for digest in ["source", "rules", "result"] {
            assert_eq!(event[digest].as_str().unwrap().len(), 64, "{first}");
        }
        assert_ne!(event["source"], event["result"]);
    }
}

#[test]
fn what_has_no_rule_is_refused_and_nothing_is_made() {
    let host = Host::shared();
    let root = host.root();
    let folder = root.folder("refused");
    let file = project(&folder, &RULES.replace("email = { rule = \"email\", unique = true }\n", ""));
    let config = ["--config", file.to_str().unwrap()];
    let ended = root.run(&config, &["true"]).expect_code(125);
    assert!(ended.stderr.contains("customers.email") && ended.stderr.lines().count() == 1, "{ended}");
    nothing_left(&root);
    let ended = root.invoke(&["audit", "--kind", "sandbox_created"]).finish().expect_code(0);
    assert_eq!(ended.out(), "", "{ended}");
    // What is protected may go in masked, and not otherwise: no column may be kept.
    let file = project(&folder, RULES);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}\n[protect]\npaths = [\"{}\"]\n", folder.join("customers.csv").display())).unwrap();
    let ended = root.run(&config, &["true"]).expect_code(125);
    assert!(ended.stderr.contains("customers.plan"), "{ended}");
    fs::write(folder.join("masks/shop.toml"), RULES.replace("plan = \"keep\"", "plan = \"drop\"")).unwrap();
    root.run(&config, &["test", "-s", "/data/customers.csv"]).expect_code(0);
    // Nor anything from where the host keeps its own.
    fs::write(&file, "[data]\nmounts = [{ from = \"/etc/passwd\", to = \"/data/x\", mask = \"masks/shop.toml\" }]\n")
        .unwrap();
    let ended = root.run(&config, &["true"]).expect_code(125);
    assert!(ended.stderr.contains("protected"), "{ended}");
    fs::write(&file, "[data]\nmounts = [{ from = \"x\", to = \"/proc/x\", mask = \"y\" }]\n").unwrap();
    root.run(&config, &["true"]).expect_code(125);
}

#[test]
fn a_server_masks_for_sandboxes_that_stay() {
    let host = Host::shared();
    let root = host.root();
    let file = project(&root.folder("served"), RULES);
    let server = Server::start_with(&root, &[]);
    let command = |words: &[&str]| server.command(words);
    let id = command(&["create", "--timeout=never", "--config", file.to_str().unwrap()]).expect_code(0).word();
    let read = |id: &str| {
        let show = |name: &str| command(&["exec", id, "--", "cat", &format!("/data/{name}.csv")]).expect_code(0).out();
        (show("customers"), show("orders"))
    };
    let (customers, orders) = read(&id);
    masked_and_joined(&customers, &orders);
    let found = command(&["exec", &id, "--", "sh", "-c", &search()]).expect_code(0);
    assert_eq!(found.out(), "nowhere\n", "{found}");
    nothing_left(&root);
    // A fork has its own, of the same fakes.
    let fork = command(&["fork", &id]).expect_code(0).word();
    assert_eq!(read(&fork), (customers, orders));
    let ended = command(&["audit", &id, "--kind", "data_masked"]).expect_code(0);
    assert_eq!(ended.out().lines().count(), 2, "{ended}");
    // Refused, nothing is made.
    let bad = project(&root.folder("bad"), &RULES.replace("name = \"name\"\n", ""));
    let ended = command(&["create", "--config", bad.to_str().unwrap()]).expect_code(125);
    assert!(ended.stderr.contains("customers.name"), "{ended}");
    assert_eq!(command(&["ls", "--json"]).expect_code(0).json().as_array().unwrap().len(), 2);
    nothing_left(&root);
    server.end();
}

#[test]
fn a_copy_half_made_is_removed_by_the_next() {
    let host = Host::shared();
    let root = host.root();
    let folder = root.folder("large");
    let file = project(&folder, RULES);
    // Large enough to be killed in the middle of.
    let text = fs::read_to_string(folder.join("customers.csv")).unwrap();
    let body = text.split_once('\n').unwrap().1.repeat(200_000);
    fs::write(folder.join("customers.csv"), format!("id,name,email,plan\n{body}")).unwrap();
    let running = root.invoke_run(&["--config", file.to_str().unwrap()], &["true"]).start();
    let masked = root.data.join("masked");
    let count = || fs::read_dir(&masked).map_or(0, Iterator::count);
    let started = std::time::Instant::now();
    while count() == 0 && started.elapsed() < std::time::Duration::from_secs(30) {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    running.signal(rustix::process::Signal::KILL);
    running.finish();
    assert_eq!(count(), 1, "it was not killed in the middle");
    root.invoke(&["gc"]).finish().expect_code(0);
    nothing_left(&root);
}
