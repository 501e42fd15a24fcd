//! Every format, and every rule.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;

use common::{Bench, cells};
use proptest::prelude::*;
use rusqlite::Connection;
use serde_json::Value;
use sloplet_mask::fakes::{Fit, Maker, iban_is_valid, luhn_is_valid, time};
use sloplet_mask::rule::{Kind, Rule};
use sloplet_mask::{Key, mask_file};

const RULES: &str = r#"
locale = "de"
[table.people]
id = { rule = "id", domain = "person", unique = true }
name = "name"
mail = "email"
note = "text"
kind = "keep"
secret = "drop"
gone = "null"
fixed = { rule = "constant", value = "x" }
born = { rule = "date", days = 10 }
[table.visits]
person = { same_as = "people.id" }
hours = { rule = "number", jitter = 0.5 }
"#;

#[test]
fn csv_keeps_delimiter_line_ends_quotes_and_empty_fields() {
    let text = "\u{feff}id;name;mail;note;kind;secret;gone;fixed;born\r\n7;\"Ott; Otto\";a@b.test;\"said \"\"hi\"\"\nand left\";x;s;g;f;\r\n8;;;;;;;;2000-01-01 10:00\r\n";
    let masked = Bench::new(RULES).mask("people.csv", text).unwrap().0;
    let lines: Vec<&str> = masked.split("\r\n").collect();
    assert_eq!(lines[0], "id;name;mail;note;kind;gone;fixed;born");
    assert!(lines[1].contains("\"said \"\"hi\"\"\nand left\";x;;x;"), "{masked}");
    assert!(lines[2].contains(";;;;;;;") && lines[2].ends_with(" 10:00"), "{masked}");
    assert!(!masked.contains("Ott") && !masked.contains(";s;"), "{masked}");
}

#[test]
fn json_keeps_order_types_and_nesting() {
    let rules = "[table.people]\nid = \"id\"\n\"user.name\" = \"name\"\n\"user.mails[].address\" = \"email\"\n\"user.mails[].main\" = \"keep\"\n\"tags\" = \"keep\"\n\"scores[]\" = { rule = \"number\", jitter = 0.1 }\n\"raw\" = \"drop\"\n\"none\" = \"email\"\n\"when\" = { rule = \"date\", key = \"id\" }";
    let text = r#"[{"when":"2020-01-01","id":12345,"user":{"name":"Otto Ott","mails":[{"address":"a@b.test","main":true},{"address":"c@d.test","main":false}]},"tags":{"x":[1,2]},"scores":[1.5,100],"raw":{"y":1},"none":null}]"#;
    let bench = Bench::new(rules);
    let (masked, report) = bench.mask("people.json", text).unwrap();
    let value: Value = serde_json::from_str(&masked).unwrap();
    let one = &value[0];
    assert!(one["id"].as_u64().unwrap() > 9999 && one["id"] != 12345);
    assert_eq!(one["user"]["mails"][0]["main"], true);
    assert!(one["user"]["mails"][1]["address"].as_str().unwrap().ends_with(".example"));
    assert_eq!(one["tags"], serde_json::json!({"x": [1, 2]}));
    assert!(one["scores"][0].is_f64() && one["scores"][1].is_u64());
    assert!(one.get("raw").is_none() && one["none"].is_null());
    assert!(masked.find("\"when\"").unwrap() < masked.find("\"id\"").unwrap(), "order stays");
    assert_eq!(report.tables[0].columns.iter().find(|column| column.name == "user.mails[].address").unwrap().values, 2);
    // A document of one record, and one record on each line, have the same fakes.
    let lines = bench.mask("people.jsonl", &format!("{}\n", &text[1..text.len() - 1])).unwrap().0;
    let single = bench.mask("people.json", &text[1..text.len() - 1]).unwrap().0;
    assert_eq!(serde_json::from_str::<Value>(&lines).unwrap(), *one);
    assert_eq!(serde_json::from_str::<Value>(&single).unwrap(), *one);
    assert_eq!(bench.mask("people.json", "[]").unwrap().0, "[]\n");
}

#[test]
fn sqlite_keeps_schema_types_and_references_and_holds_no_real_value() {
    let bench = Bench::new(RULES);
    let source = bench.path("shop.sqlite");
    let database = Connection::open(&source).unwrap();
    database
        .execute_batch(
            "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL, mail TEXT UNIQUE, note TEXT, kind, secret, gone, fixed, born TEXT, twice AS (id * 2));
             CREATE TABLE visits (person INTEGER REFERENCES people(id), hours REAL);
             CREATE INDEX by_person ON visits(person);
             CREATE VIEW busy AS SELECT name FROM people;
             CREATE TRIGGER t AFTER INSERT ON visits BEGIN DELETE FROM people; END;
             PRAGMA user_version = 7;",
        )
        .unwrap();
    for row in 100..400 {
        database
            .execute(
                "INSERT INTO people (id, name, mail, note, kind, secret, gone, fixed, born) VALUES (?1, ?2, ?3, ?4, x'00ff', 'topsecret', 1, 2, '1999-12-31')",
                (row, format!("Quirin Zz{row}q"), format!("m{row}@real.test"), format!("Quirin Zz{row}q called")),
            )
            .unwrap();
    }
    database.execute_batch("DROP TRIGGER t; INSERT INTO visits SELECT id, 1.5 FROM people; CREATE TRIGGER t AFTER INSERT ON visits BEGIN DELETE FROM people; END;").unwrap();
    database.close().unwrap();
    let out = bench.path("fake.sqlite");
    let report = mask_file(&source, &bench.config, &bench.key, &out).unwrap();
    assert_eq!(report.rows(), 600);
    assert_eq!(report.source_digest.len(), 64);
    let bytes = fs::read(&out).unwrap();
    for real in ["Quirin", "real.test", "topsecret", "1999-12-31"] {
        assert!(!bytes.windows(real.len()).any(|window| window == real.as_bytes()), "{real} is in the file");
    }
    let masked = Connection::open(&out).unwrap();
    let number = |query: &str| masked.query_row(query, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("SELECT count(*) FROM people JOIN visits ON person = id"), 300);
    assert_eq!(
        number("SELECT count(*) FROM people WHERE typeof(id) = 'integer' AND length(id) = 3 AND twice = id * 2"),
        300
    );
    assert_eq!(
        number("SELECT count(*) FROM people WHERE kind = x'00ff' AND secret IS NULL AND gone IS NULL AND fixed = 'x'"),
        300
    );
    assert_eq!(number("SELECT count(*) FROM visits WHERE typeof(hours) = 'real'"), 300);
    assert_eq!(
        number("SELECT count(*) FROM sqlite_master WHERE type IN ('index', 'view', 'trigger') AND sql IS NOT NULL"),
        3
    );
    assert_eq!(number("PRAGMA user_version"), 7);
}

#[test]
fn dumps_of_postgres() {
    let text = "--\n-- PostgreSQL database dump on host db7\n--\n\\restrict abc\nSET client_encoding = 'UTF8';\nSELECT pg_catalog.set_config('search_path', '', false);\nCREATE TABLE public.people (\n    id integer NOT NULL,\n    name text DEFAULT 'x'::text,\n    CONSTRAINT c CHECK ((id >= 0))\n);\nCREATE FUNCTION f() RETURNS int AS $_$ BEGIN; RETURN 1; END $_$;\nCOPY public.people (id, name, mail, note) FROM stdin;\n1234\tOtto \\\\ Ott\ta@b.test\tline\\none\\ttab\n1235\t\\N\t\\N\t\n\\.\n\nINSERT INTO public.visits (person, hours) VALUES (1234, -1.5), (1235, NULL) ON CONFLICT DO NOTHING;\nSELECT pg_catalog.setval('s', 5, true);\nALTER TABLE ONLY public.people ADD CONSTRAINT k PRIMARY KEY (id);\n";
    let masked = Bench::new(RULES).mask("dump.sql", text).unwrap().0;
    assert!(!masked.contains("db7") && !masked.contains("Ott") && !masked.contains("a@b.test"), "{masked}");
    let lines: Vec<&str> = masked.lines().collect();
    let copy = lines.iter().position(|line| *line == "COPY public.people (id, name, mail, note) FROM stdin;").unwrap();
    let row: Vec<&str> = lines[copy + 1].split('\t').collect();
    assert!(
        row[0].len() == 4 && row[0] != "1234" && row[2].ends_with(".example") && row[3] == "line\\none\\ttab",
        "{row:?}"
    );
    let second: Vec<&str> = lines[copy + 2].split('\t').collect();
    assert_eq!(second[1..], ["\\N", "\\N", ""]);
    assert_eq!(lines[copy + 3], "\\.");
    assert!(
        masked.contains(&format!("({},-", row[0])) && masked.contains(&format!("({},NULL)", second[0])),
        "{masked}"
    );
    assert!(
        masked.contains("ON CONFLICT DO NOTHING;") && masked.contains("'x'::text") && masked.contains(">=0"),
        "{masked}"
    );
    assert!(masked.contains("$_$ BEGIN; RETURN 1; END $_$"), "{masked}");
}

#[test]
fn dumps_of_mysql() {
    let text = "-- MySQL dump 10.13  Distrib 8.0, for Linux\n/*!40101 SET NAMES utf8mb4 */;\nDROP TABLE IF EXISTS `people`;\nCREATE TABLE `people` (\n  `id` int NOT NULL AUTO_INCREMENT,\n  `name` varchar(20) DEFAULT NULL COMMENT 'it''s',\n  `note` text,\n  `kind` blob,\n  PRIMARY KEY (`id`),\n  KEY `k` (`name`)\n) ENGINE=InnoDB;\nLOCK TABLES `people` WRITE;\nINSERT INTO `people` VALUES (1234,'O\\'Brien; Ott','a \\\\ b\\nc',_binary 'x'),(1235,NULL,'',0x00ff);\nUNLOCK TABLES;\n";
    let (masked, report) = Bench::new(RULES).mask("dump.sql", text).unwrap();
    assert!(!masked.contains("Brien") && !masked.contains("Distrib"), "{masked}");
    assert!(masked.contains("INSERT INTO `people` (`id`, `name`, `note`, `kind`)"), "{masked}");
    assert!(masked.contains("'a \\\\ b\\nc','x')") && masked.contains(",NULL,'',X'00ff');"), "{masked}");
    assert!(masked.contains("/*!40101 SET NAMES utf8mb4 */;") && masked.contains("ENGINE=InnoDB"), "{masked}");
    assert_eq!(report.rows(), 2);
}

#[test]
fn a_dump_of_sqlite_can_be_read_again() {
    let text = "PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\nCREATE TABLE visits(person int, hours real, CHECK (hours <> 99));\nINSERT INTO visits VALUES(1,2.5);\nINSERT INTO visits VALUES(2,NULL);\nCREATE TRIGGER t AFTER DELETE ON visits BEGIN DELETE FROM visits; SELECT 1; END;\nCREATE INDEX i ON visits(person);\nCOMMIT;\n";
    let masked = Bench::new(RULES).mask("dump.sql", text).unwrap().0;
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch(&masked).unwrap();
    let rows: i64 = database.query_row("SELECT count(DISTINCT person) FROM visits", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 2);
}

fn fake(rule: &Rule, value: &str) -> (String, Fit) {
    let mut out = String::new();
    let fit = Maker::new(rule, &Key::from_bytes([9; 32])).make(value, None, &mut out);
    (out, fit)
}

fn plain(kind: Kind, value: &str) -> String {
    let (out, fit) = fake(&Rule::new(kind), value);
    assert_eq!(fit, Fit::Fits, "{value} is no {}", kind.name());
    out
}

#[test]
fn forms_stay() {
    let name = plain(Kind::Name, "Dr. OTTO von Ott");
    assert!(name.starts_with("Dr. ") && name.split(' ').count() == 4, "{name}");
    assert!(name.split(' ').nth(1).unwrap().chars().all(char::is_uppercase), "{name}");
    let (first, last) = (plain(Kind::FirstName, "Otto"), plain(Kind::LastName, "Ott"));
    assert_eq!(plain(Kind::Name, "Otto Ott"), format!("{first} {last}"));
    assert_eq!(plain(Kind::Name, "Ott, Otto"), format!("{last}, {first}"));
    let (one, two) = (plain(Kind::Phone, "+49 (30) 123-4567"), plain(Kind::Phone, "+49301234567"));
    let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>();
    assert_eq!(digits(&one), digits(&two), "one number, however it is written");
    assert!(one.starts_with("+49 (") && one.contains('-'), "{one}");
    assert!(plain(Kind::Street, "12 Elm Road").starts_with(|c: char| c.is_ascii_digit()));
    assert!(plain(Kind::Street, "Ulmenweg 12").ends_with(|c: char| c.is_ascii_digit()));
    let address = plain(Kind::Address, "12 Elm Road, 10115 Berlin, DE");
    assert_eq!(address.matches(", ").count(), 2, "{address}");
    assert!(!address.contains("Berlin") && !address.contains("10115") && !address.contains("Elm"), "{address}");
    assert!(plain(Kind::Ip, "8.8.8.8/24").starts_with("198.1") && plain(Kind::Ip, "::1").starts_with("2001:db8:"));
    let uuid = plain(Kind::Uuid, "6BA7B810-9DAD-11D1-80B4-00C04FD430C8");
    assert!(&uuid[14..15] == "1" && &uuid[19..20] == "8" && uuid.chars().all(|c| !c.is_lowercase()), "{uuid}");
    let url = plain(Kind::Url, "https://user:pass@intra.test:8443/a/b?c=d");
    assert!(url.starts_with("https://") && url.contains(".example/") && !url.contains("pass"), "{url}");
    let mails = [plain(Kind::Email, "a@real.test"), plain(Kind::Email, "b@real.test")];
    let host = |mail: &str| mail.split_once('@').unwrap().1.to_owned();
    assert_eq!(host(&mails[0]), host(&mails[1]), "one host stays one host");
    let de = Rule { locale: Some("de".into()), ..Rule::new(Kind::City) };
    assert!(!fake(&de, "Berlin").0.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cards_stay_valid(digits in "[1-9][0-9]{10,17}", keep_bin: bool) {
        let card = (0..10).map(|check| format!("{digits}{check}")).find(|card| luhn_is_valid(card)).unwrap();
        let (out, fit) = fake(&Rule { keep_bin, ..Rule::new(Kind::Card) }, &card);
        prop_assert_eq!(fit, Fit::Fits);
        prop_assert!(luhn_is_valid(&out) && out.len() == card.len() && out != card);
        prop_assert_eq!(&out[..if keep_bin { 6 } else { 1 }], &card[..if keep_bin { 6 } else { 1 }]);
    }

    #[test]
    fn accounts_stay_valid(country in "DE|GB|FR|NL|XY", account in "[A-Z]{0,4}[0-9]{11,20}") {
        let found = (2..99).map(|check| format!("{country}{check:02}{account}")).find(|iban| iban_is_valid(iban));
        let iban = found.unwrap();
        let (out, fit) = fake(&Rule::new(Kind::Iban), &iban);
        prop_assert_eq!(fit, Fit::Fits);
        prop_assert!(iban_is_valid(&out) && out[..2] == iban[..2] && out[4..] != iban[4..], "{} {}", iban, out);
    }

    #[test]
    fn dates_stay_dates(day in -200_000i64..200_000, days in 1u32..1000) {
        let real = time::iso(day);
        if let Some(day) = time::day(&real) {
            let out = fake(&Rule { days: Some(days), ..Rule::new(Kind::Date) }, &real).0;
            let distance = (time::day(&out).unwrap() - day).unsigned_abs();
            prop_assert!(distance >= 1 && distance <= u64::from(days));
        }
    }

    #[test]
    fn numbers_stay_near(number in -1_000_000.0f64..1_000_000.0, decimals in 0usize..6) {
        let real = format!("{number:.decimals$}");
        let out = fake(&Rule { jitter: Some(0.1), ..Rule::new(Kind::Number) }, &real).0;
        prop_assert!(out != real);
        let (a, b): (f64, f64) = (real.parse().unwrap(), out.parse().unwrap());
        prop_assert!((a - b).abs() <= a.abs() * 0.1 + 1.01 * 0.1f64.powi(decimals as i32));
        prop_assert_eq!(out.split_once('.').map_or(0, |(_, rest)| rest.len()), decimals);
    }

    /// Whatever the value and the rule: something else comes out, the same every time, and nothing panics.
    #[test]
    fn anything_under_any_rule(value in "\\PC{1,40}", kind in 0usize..19) {
        let kinds = [Kind::Email, Kind::Phone, Kind::Card, Kind::Iban, Kind::Name, Kind::FirstName, Kind::LastName,
            Kind::Address, Kind::Street, Kind::City, Kind::Postcode, Kind::Company, Kind::Date, Kind::Number, Kind::Id,
            Kind::Uuid, Kind::Ip, Kind::Url, Kind::Username];
        for unique in [false, true] {
            let rule = Rule { unique, ..Rule::new(kinds[kind]) };
            let out = fake(&rule, &value).0;
            prop_assert!(!out.is_empty() && out != value);
            prop_assert_eq!(&out, &fake(&rule, &value).0);
        }
    }

    #[test]
    fn any_csv_comes_out_with_its_shape(rows in prop::collection::vec(("[0-9]{1,8}", "\\PC{0,20}"), 1..30)) {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(["id", "kind"]).unwrap();
        for (id, kind) in &rows {
            writer.write_record([id, kind]).unwrap();
        }
        let text = String::from_utf8(writer.into_inner().unwrap()).unwrap();
        let masked = Bench::new("[table.t]\nid = \"id\"\nkind = \"keep\"").mask("t.csv", &text).unwrap().0;
        let mut reader = csv::Reader::from_reader(masked.as_bytes());
        let out: Vec<_> = reader.records().map(|record| record.unwrap()).collect();
        prop_assert_eq!(out.len(), rows.len());
        for (record, (id, kind)) in out.iter().zip(&rows) {
            prop_assert_eq!(&record[1], kind.as_str());
            prop_assert!(&record[0] != id.as_str() && record[0].len() == id.len());
        }
    }
}

#[test]
fn every_unique_rule_keeps_thousands_of_values_apart() {
    for kind in [
        Kind::Email,
        Kind::Phone,
        Kind::Name,
        Kind::LastName,
        Kind::Street,
        Kind::City,
        Kind::Company,
        Kind::Id,
        Kind::Ip,
        Kind::Url,
        Kind::Username,
        Kind::Hash,
        Kind::Uuid,
        Kind::Date,
        Kind::Number,
        Kind::Postcode,
    ] {
        let mut maker = Maker::new(&Rule { unique: true, ..Rule::new(kind) }, &Key::from_bytes([9; 32]));
        let mut seen = std::collections::HashSet::new();
        for number in 0..3000u32 {
            let letters: String = number.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
            let real = match kind {
                Kind::Email => format!("{number}@x.test"),
                Kind::Phone => format!("+4930{number:07}"),
                Kind::Ip => std::net::Ipv4Addr::from(number).to_string(),
                Kind::Url => format!("https://x.test/{number}"),
                Kind::Date => time::iso(i64::from(number)),
                Kind::Uuid => format!("00000000-0000-4000-8000-{number:012}"),
                Kind::Name | Kind::LastName | Kind::Street | Kind::City => letters,
                _ => number.to_string(),
            };
            let mut out = String::new();
            maker.make(&real, None, &mut out);
            assert!(seen.insert(out.clone()), "{} makes {out} twice", kind.name());
        }
    }
}

#[test]
fn an_empty_table_is_masked_too() {
    let (masked, report) = Bench::new(RULES).mask("visits.csv", "person,hours\n").unwrap();
    assert_eq!((masked.as_str(), report.rows()), ("person,hours\n", 0));
    assert!(cells(&masked).is_empty());
}
