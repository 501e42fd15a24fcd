//! What nobody spoke of does not pass, and what is broken leaves nothing behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;

use common::{Bench, cells, names};
use rusqlite::Connection;
use sloplet_mask::{Options, mask_file, mask_file_with};

const RULES: &str = "[table.t]\nid = \"id\"\nmail = \"email\"\nkind = \"keep\"";

#[test]
fn a_column_without_a_rule_is_refused_by_name_in_every_format() {
    let bench = Bench::new(RULES);
    let said = bench.refused("t.csv", "id,mail,phone,kind,age\n1,a@b.test,2,x,3\n");
    assert!(said.contains("'t.phone', 't.age'") && said.contains("keep") && said.contains("--suggest"), "{said}");
    let said = bench.refused("t.json", r#"[{"id":1,"who":{"tags":["x"],"more":[{"deep":1}]}}]"#);
    assert!(said.contains("'who.tags[]'") && said.contains("'who.more[].deep'"), "{said}");
    let said = bench.refused("t.jsonl", "{\"id\":1}\n{\"id\":2,\"late\":3}\n");
    assert!(said.contains("'late'"), "{said}");
    let said = bench.refused("t.sql", "INSERT INTO t (id, phone) VALUES (1,'2');\nINSERT INTO other (a) VALUES (1);\n");
    assert!(said.contains("'t.phone'") && said.contains("'other'"), "{said}");
    let source = bench.path("t.sqlite");
    let database = Connection::open(&source).unwrap();
    database.execute_batch("CREATE TABLE t (id, phone); CREATE TABLE u (a)").unwrap();
    database.close().unwrap();
    let before = names(bench.folder.path());
    let said = mask_file(&source, &bench.config, &bench.key, &bench.path("out")).unwrap_err().to_string();
    assert!(said.contains("'t.phone'") && said.contains("'u'"), "{said}");
    assert_eq!(names(bench.folder.path()), before);
}

#[test]
fn what_does_not_fit_its_rule_is_replaced_and_counted() {
    let rules = "[table.t]\nmail = \"email\"\ncard = \"card\"\niban = \"iban\"\nborn = \"date\"\nip = \"ip\"\nurl = \"url\"\nuuid = \"uuid\"\nnumber = \"number\"\nphone = \"phone\"";
    let text = "mail,card,iban,born,ip,url,uuid,number,phone\nnobody,4242424242424241,DE00370400440532013000,yesterday,localhost,nowhere,1234,much,call me\nn@b.test,Zoë,Zoë,Zoë,Zoë,Zoë,Zoë,Zoë,Zoë\n";
    let (masked, report) = Bench::new(rules).mask("t.csv", text).unwrap();
    let (real, fake) = (cells(text), cells(&masked));
    for (real, fake) in real.iter().flatten().zip(fake.iter().flatten()) {
        assert!(!fake.contains(real) && !fake.is_empty(), "{real} became {fake}");
    }
    assert_eq!(report.tables[0].columns.iter().map(|column| column.misfits).sum::<u64>(), 17);
    assert!(report.warnings.iter().any(|warning| warning.contains("1 of 2 values of t.mail are no email")), "{report}");
}

#[test]
fn broken_rows_are_refused_with_their_line() {
    let bench = Bench::new(RULES);
    assert!(bench.refused("t.csv", "id,mail,kind\n1,a@b.test,x\n2,c@d.test\n").contains("line 3: 2 fields"));
    assert!(bench.refused("t.csv", "id,mail,kind\n1,\"a@b.test,x\n").contains("never closed"));
    assert!(bench.refused("t.csv", "id,id,kind\n").contains("two columns 'id'"));
    assert!(bench.refused("t.csv", "").contains("empty"));
    assert!(bench.refused("t.jsonl", "{\"id\":1}\n{\"id\":\n").starts_with("line 2: "));
    assert!(bench.refused("t.json", "[{\"id\":1},\n{\"id\":]").starts_with("line 2: "));
    assert!(bench.refused("t.json", "[{\"id\":1}] more").contains("line 1"));
    assert!(bench.refused("t.sql", "UPDATE t SET id = 1;").contains("line 1: 'UPDATE'"));
    assert!(bench.refused("t.sql", "INSERT INTO t (id) VALUES (1,2);").contains("a row has not 1 values"));
    assert!(bench.refused("t.sql", "INSERT INTO t (id) VALUES (now());").contains("expression"));
    assert!(bench.refused("t.sql", "INSERT INTO t (id) SELECT 1;").contains("other than VALUES"));
    assert!(bench.refused("t.sql", "INSERT INTO t VALUES (1);").contains("not known"));
    assert!(bench.refused("t.sql", "INSERT INTO t (id) VALUES ('1").contains("never closed"));
    assert!(bench.refused("t.xyz", "").contains("no known format"));
    let latin = bench.path("t.csv");
    fs::write(&latin, b"id,mail,kind\n1,\xe4@b.test,x\n").unwrap();
    let said = mask_file(&latin, &bench.config, &bench.key, &bench.path("out.csv")).unwrap_err().to_string();
    assert!(said.contains("line 2: not UTF-8"), "{said}");
}

#[test]
fn the_source_is_never_overwritten() {
    let bench = Bench::new(RULES);
    let source = bench.write("t.csv", "id,mail,kind\n1,a@b.test,x\n");
    let said = mask_file(&source, &bench.config, &bench.key, &source).unwrap_err().to_string();
    assert!(said.contains("another name"), "{said}");
    assert_eq!(fs::read_to_string(source).unwrap(), "id,mail,kind\n1,a@b.test,x\n");
}

#[test]
fn kept_columns_with_personal_data_are_warned_of() {
    let (_, report) = Bench::new(RULES).mask("t.csv", "id,mail,kind\n1,a@b.test,c@d.test\n").unwrap();
    assert!(report.warnings[0].contains("t.kind is kept but holds email"), "{report}");
}

#[test]
fn strict_refuses_fakes_that_are_real() {
    // The fake of the first row is the real value of the second.
    let bench = Bench::new("[table.t]\nmail = \"email\"");
    let first = bench.mask("t.csv", "mail\na@b.test\n").unwrap().0;
    let fake = first.lines().nth(1).unwrap();
    let source = bench.write("t.csv", &format!("mail\na@b.test\n{fake}\n"));
    let run = |strict| {
        let options = Options { strict, ..Options::default() };
        mask_file_with(&source, &bench.config, &bench.key, &bench.path("out.csv"), &options)
    };
    assert_eq!(run(false).unwrap().coincidences(), 1);
    fs::remove_file(bench.path("out.csv")).unwrap();
    assert!(run(true).unwrap_err().to_string().contains("another key"));
    assert!(!bench.path("out.csv").exists());
}
