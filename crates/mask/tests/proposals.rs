//! Rules from looking, and rows from rules.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::HashSet;
use std::fs;

use common::{Bench, cells, names};
use sloplet_mask::rule::Kind;
use sloplet_mask::{Config, Format, generate, mask_file, suggest};

const PEOPLE: &str = "id,full_name,contactEmail,tel,zip code,iban,dob,remarks,x1,mystery,created_at\n\
    1,Anna Becker,a@real.test,+49 30 1234567,10115,DE89370400440532013000,1980-01-02,called,a@real.test,7,2020-01-01\n\
    2,Paul Conroy,b@real.test,+49 30 1234568,10116,DE89370400440532013000,1981-01-02,,b@real.test,8,2020-01-02\n";

#[test]
fn proposals_are_careful_and_never_quote_values() {
    let bench = Bench::new("");
    let source = bench.write("customers.csv", PEOPLE);
    let proposal = suggest(&source, None).unwrap();
    let rules: Vec<_> = proposal.columns.iter().map(|column| (column.column.as_str(), column.rule)).collect();
    assert_eq!(
        rules,
        [
            ("id", Some(Kind::Id)),
            ("full_name", Some(Kind::Name)),
            ("contactEmail", Some(Kind::Email)),
            ("tel", Some(Kind::Phone)),
            ("zip code", Some(Kind::Postcode)),
            ("iban", Some(Kind::Iban)),
            ("dob", Some(Kind::Date)),
            ("remarks", Some(Kind::Text)),
            ("x1", Some(Kind::Email)),
            ("mystery", None),
            ("created_at", None),
        ]
    );
    for real in ["Anna", "real.test", "1234567", "DE89"] {
        assert!(!serde_json::to_string(&proposal).unwrap().contains(real), "{real}");
    }
    assert!(proposal.rules.contains("# mystery = \"keep\""), "{}", proposal.rules);
    // As proposed it is refused, for what was not recognised; with that declared, it works.
    let config = Config::parse(&proposal.rules).unwrap();
    let out = bench.path("out.csv");
    let said = mask_file(&source, &config, &bench.key, &out).unwrap_err().to_string();
    assert!(said.contains("'customers.mystery', 'customers.created_at'"), "{said}");
    let config =
        Config::parse(&proposal.rules.replace("# mystery", "mystery").replace("# created_at", "created_at")).unwrap();
    mask_file(&source, &config, &bench.key, &out).unwrap();
}

#[test]
fn proposals_for_every_format() {
    let bench = Bench::new("");
    let check = |name: &str, text: &str, wanted: &[(&str, &str, Option<Kind>)]| {
        let proposal = suggest(&bench.write(name, text), None).unwrap();
        let got: Vec<_> =
            proposal.columns.iter().map(|one| (one.table.as_str(), one.column.as_str(), one.rule)).collect();
        assert_eq!(got, wanted);
        Config::parse(&proposal.rules).map(drop)
    };
    let nested = r#"{"user":{"mails":[{"address":"a@b.test"}]},"n":1}"#;
    let wanted = [("t", "user.mails[].address", Some(Kind::Email)), ("t", "n", None)];
    check("t.json", &format!("[{nested}]"), &wanted).unwrap();
    check("t.jsonl", nested, &wanted).unwrap();
    let dump = "CREATE TABLE orders (id int, customer_id int);\nINSERT INTO orders VALUES (1, 2);\nINSERT INTO customers (id) VALUES (2);";
    let ids = [
        ("orders", "id", Some(Kind::Id)),
        ("orders", "customer_id", Some(Kind::Id)),
        ("customers", "id", Some(Kind::Id)),
    ];
    check("d.sql", dump, &ids).unwrap();
    let proposal = suggest(&bench.path("d.sql"), None).unwrap();
    assert_eq!(proposal.columns[1].domain, proposal.columns[2].domain, "references share a domain");
    let database = rusqlite::Connection::open(bench.path("d.db")).unwrap();
    database.execute_batch(dump.split_once("\nINSERT INTO customers").unwrap().0).unwrap();
    let proposal = suggest(&bench.path("d.db"), None).unwrap();
    assert_eq!(proposal.columns.len(), 2);
}

const SCHEMA: &str = r#"
[table.customers]
id = { rule = "id", unique = true, pattern = "C-######" }
name = { rule = "name", locale = "fr" }
email = { rule = "email", unique = true }
card = "card"
iban = "iban"
uuid = "uuid"
born = { rule = "date", from = "1950-01-01", to = "2005-12-31" }
score = { rule = "number", min = 1, max = 5 }
plan = { rule = "keep", values = ["free", "team"] }
note = { rule = "text", null_rate = 0.5 }
[table.orders]
customer = { same_as = "customers.id" }
total = { rule = "number", min = 0.5, max = 99.5 }
"#;

#[test]
fn rows_from_nothing_fit_their_rules_and_come_again() {
    let bench = Bench::new(SCHEMA);
    let make = |seed, name: &str| {
        let out = bench.path(name);
        generate(&bench.config, Some("customers"), 500, seed, &out, None).unwrap();
        fs::read_to_string(out).unwrap()
    };
    let text = make(1, "a.csv");
    assert_eq!(text, make(1, "b.csv"));
    assert_ne!(text, make(2, "c.csv"));
    assert!(
        text.starts_with("id,name,email,card,iban,uuid,born,score,plan,note\n"),
        "columns are in the order of the file"
    );
    let rows = cells(&text);
    assert_eq!(rows.len(), 500);
    for column in [0, 2, 5] {
        assert_eq!(rows.iter().map(|row| row[column]).collect::<HashSet<_>>().len(), 500, "column {column}");
    }
    for row in &rows {
        assert!(row[0].starts_with(|c: char| c.is_ascii_uppercase()) && row[0].len() == 8, "{row:?}");
        assert!(sloplet_mask::fakes::luhn_is_valid(row[3]) && sloplet_mask::fakes::iban_is_valid(row[4]), "{row:?}");
        assert!(("1950-01-01"..="2005-12-31").contains(&row[6]) && ("1"..="5").contains(&row[7]), "{row:?}");
        assert!(row[8] == "free" || row[8] == "team");
    }
    let empty = rows.iter().filter(|row| row[9].is_empty()).count();
    assert!((150..350).contains(&empty), "{empty}");
    let json = make(1, "d.jsonl");
    let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(first["id"], rows[0][0]);
}

#[test]
fn references_of_rows_from_nothing_lead_somewhere() {
    let bench = Bench::new(SCHEMA);
    let folder = bench.path("made");
    fs::create_dir(&folder).unwrap();
    generate(&bench.config, None, 200, 5, &folder, None).unwrap();
    assert_eq!(names(&folder), ["customers.csv", "orders.csv"]);
    let (customers, orders) = (
        fs::read_to_string(folder.join("customers.csv")).unwrap(),
        fs::read_to_string(folder.join("orders.csv")).unwrap(),
    );
    let known: HashSet<&str> = cells(&customers).iter().map(|row| row[0]).collect::<Vec<_>>().into_iter().collect();
    for order in cells(&orders) {
        assert!(known.contains(order[0]), "{order:?}");
    }
}

#[test]
fn what_cannot_be_made_is_refused() {
    let refused = |rules: &str, rows| {
        let bench = Bench::new(rules);
        let error = generate(&bench.config, None, rows, 1, &bench.path("x.csv"), Some(Format::Csv)).unwrap_err();
        assert_eq!(names(bench.folder.path()), [""; 0]);
        error.to_string()
    };
    assert!(refused("[table.t]\na = \"keep\"", 1).contains("needs 'values'"));
    assert!(refused("[table.t]\na = { rule = \"id\", unique = true, pattern = \"##\" }", 101).contains("room for 100"));
    assert!(refused("[table.t]\na = { rule = \"date\", from = \"soon\" }", 1).contains("not a date"));
    assert!(refused("[table.t]\na = \"id\"\n[table.u]\na = \"id\"", 1).contains("folder"));
}
