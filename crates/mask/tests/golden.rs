//! The same key makes the same fakes in every version: who masked a table last year can join it with one masked today.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fmt::Write;
use std::fs;

use sloplet_mask::{Config, Key, mask_file};

const RULES: &str = r#"
[table.people]
id = { rule = "id", domain = "person", unique = true }
first = "first_name"
last = { rule = "last_name", locale = "de" }
name = "name"
unique_name = { rule = "name", unique = true, domain = "n" }
email = { rule = "email", unique = true }
contact = "email"
phone = "phone"
card = "card"
bin = { rule = "card", keep_bin = true, domain = "b" }
iban = "iban"
street = "street"
strasse = { rule = "street", locale = "de", domain = "s" }
city = "city"
postcode = "postcode"
address = "address"
company = "company"
birth = { rule = "date", key = "id", days = 300 }
seen = { rule = "date", domain = "d" }
us_date = { rule = "date", format = "mdy", domain = "us" }
unix = { rule = "date", format = "unix", domain = "unix" }
amount = { rule = "number", jitter = 0.2 }
count = { rule = "number", domain = "c" }
uuid = "uuid"
ip = "ip"
url = "url"
login = { rule = "username", unique = true }
digest = "hash"
notes = "text"
plan = "keep"
gone = "drop"
empty = "null"
same = { rule = "constant", value = "x" }
"#;

/// SHA-256 of the masked rows, as the first version that had a test for it made them.
const EXPECTED: &str = "aa400e3e7dda11bc2ecca6246b2d1d4bc243343fa40f42c208fdfe3e9b1b8a08";

const GIVEN: &[&str] = &["Margaret", "josé", "ANNA", "Paul-Henri", "Łucja", "Emma", "n0ah", "L."];
const FAMILY: &[&str] = &["Abbott", "de la Cruz", "O'Neill", "Müller", "Fischer", "goodwin", "HANSEN", ""];
const STREETS: &[&str] = &["12 Elm Road", "Hauptstraße 5a", "Broadway", "221B Baker Street", "Am Markt", "77"];

#[test]
fn fakes_stay_what_they_were() {
    let names: Vec<&str> =
        RULES.lines().filter_map(|line| line.split(" =").next()).filter(|name| !name.is_empty()).collect();
    let names: Vec<&str> = names.into_iter().filter(|name| !name.starts_with('[')).collect();
    let mut text = format!("{}\n", names.join(","));
    for row in 0u64..3000 {
        let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        let pick = |list: &[&'static str], by: u64| list[(mixed / by % list.len() as u64) as usize];
        let (given, family, street) = (pick(GIVEN, 1), pick(FAMILY, 8), pick(STREETS, 64));
        let email = format!("{}.{row}@Mail{}.test", given.to_lowercase().replace(' ', ""), row % 7);
        let cells = [
            (1000 + row).to_string(),
            given.to_owned(),
            family.to_owned(),
            format!("Dr. {given} {family}"),
            format!("{family} {given}"),
            email.clone(),
            format!("x{}@y.test", row % 50),
            format!("+49 30 {:08}", 20_000_000 + mixed % 70_000_000),
            "4111 1111 1111 1111".to_owned(),
            "5500000000000004".to_owned(),
            "DE89 3704 0044 0532 0130 00".to_owned(),
            street.to_owned(),
            street.to_owned(),
            format!("{family}town"),
            format!("{:05}", mixed % 100_000),
            format!("\"{street}, {:05} {family}ville, CA\"", mixed % 100_000),
            format!("{family} Ltd"),
            format!("19{:02}-{:02}-{:02}", row % 100, 1 + row % 12, 1 + row % 28),
            format!("20{:02}-0{}-1{}T10:00:00Z", row % 30, 1 + row % 9, row % 9),
            format!("{}/{}/2001", 1 + row % 12, 1 + row % 28),
            (1_600_000_000 + row * 777).to_string(),
            format!("{}.{:02}", mixed % 5000, row % 100),
            (mixed % 100_000).to_string(),
            format!("{:08x}-0000-4000-8000-{:012x}", row, mixed),
            if row % 2 == 0 { format!("10.0.{}.{}", row % 256, mixed % 256) } else { format!("2001:db8::{row:x}") },
            format!("https://intranet{}.corp/a/{row}?q={family}", row % 5),
            format!("{}_{row}", given.to_lowercase()),
            format!("v{row}"),
            format!("\"Met {given} {family}, mail {email}, card 4111111111111111, key AKIAIOSFODNN7EXAMPLE\""),
            "team".to_owned(),
            "secret".to_owned(),
            "something".to_owned(),
            "y".to_owned(),
        ];
        writeln!(text, "{}", cells.join(",")).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("people.csv"), folder.path().join("masked.csv"));
    fs::write(&source, text).unwrap();
    let report = mask_file(&source, &Config::parse(RULES).unwrap(), &Key::from_seed(7), &out).unwrap();
    assert_eq!(report.rows(), 3000);
    assert_eq!(report.output_digest, EXPECTED, "{}", fs::read_to_string(&out).unwrap().lines().nth(1).unwrap());
}
