//! Nobody is found again, and yet everything still fits together.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use common::{Bench, cells};
use sloplet_mask::Key;
use sloplet_mask::fakes::{iban_is_valid, luhn_is_valid};

const RULES: &str = r#"
[table.customers]
id = { rule = "id", domain = "customer_id", unique = true }
name = "name"
email = { rule = "email", unique = true }
phone = { rule = "phone", unique = true }
card = "card"
iban = "iban"
street = "street"
city = "city"
company = "company"
birth = { rule = "date", key = "id", days = 300 }
uuid = "uuid"
ip = "ip"
url = "url"
login = { rule = "username", unique = true }
notes = "text"
plan = "keep"

[table.orders]
number = { rule = "id", unique = true }
customer = { same_as = "customers.id" }
contact = { same_as = "customers.email" }
amount = { rule = "number", jitter = 0.2 }
"#;

const GIVEN: &[&str] = &["Margaret", "Joseph", "Anna", "Paul", "Lucas", "Emma", "Noah", "Laura"];
const FAMILY: &[&str] = &["Abbott", "Becker", "Conroy", "Dietrich", "Fischer", "Goodwin", "Hansen", "Jacobi"];

fn with_check(digits: String) -> String {
    (0..10).map(|check| format!("{digits}{check}")).find(|number| luhn_is_valid(number)).unwrap()
}

fn iban(account: u64) -> String {
    (2..99).map(|check| format!("DE{check:02}{account:018}")).find(|number| iban_is_valid(number)).unwrap()
}

/// Rows of customers; values of masked columns that must not come out.
fn customers(count: u64) -> (String, Vec<String>) {
    let mut text = "id,name,email,phone,card,iban,street,city,company,birth,uuid,ip,url,login,notes,plan\n".to_owned();
    let mut secret = Vec::new();
    for row in 0..count {
        let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        let (given, family) = (GIVEN[(mixed % 8) as usize], FAMILY[(mixed / 8 % 8) as usize]);
        let name = format!("{given} {family}{}", ["x", "y", "z"][(row % 3) as usize]);
        let email = format!("{}.{row}@mail{}.test", given.to_lowercase(), row % 7);
        let phone = format!("+49 30 {:08}", 20_000_000 + mixed % 70_000_000);
        let card = with_check(format!("4{:014}", mixed));
        let account = iban(mixed);
        let street = format!("{} Elm{} Road", 1 + row % 99, mixed % 1000);
        let company = format!("{family}{row} Holdings");
        let uuid = format!("{:08x}-1111-4222-8333-{:012x}", row, mixed % (1 << 48));
        let ip = format!("203.0.{}.{}", row / 250 % 250, row % 250);
        let url = format!("https://host{row}.test/path/{row}");
        let login = format!("login{row}");
        let city = format!("Oldtown{}", mixed % 500);
        let notes =
            format!("{name} wrote from {email} and {phone}; card {card}; also {} lives there", given.to_uppercase());
        writeln!(
            text,
            "{},{name},{email},{phone},{card},{account},{street},{city},{company},19{:02}-0{}-1{},{uuid},{ip},{url},{login},{notes},plan{}",
            5_000_000 + row,
            50 + row % 50,
            1 + row % 9,
            row % 9,
            row % 3
        )
        .unwrap();
        secret.extend([name, email, card, account, street, company, uuid, ip, url, login, city]);
    }
    (text, secret)
}

fn orders(count: u64) -> String {
    let mut text = "number,customer,contact,amount\n".to_owned();
    for row in 0..count {
        let customer = row * 7 % 1000;
        let mixed = customer.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        let given = GIVEN[(mixed % 8) as usize].to_lowercase();
        writeln!(
            text,
            "O-{row:06},{},{given}.{customer}@mail{}.test,{}.50",
            5_000_000 + customer,
            customer % 7,
            row % 90 + 1
        )
        .unwrap();
    }
    text
}

#[test]
fn no_real_value_comes_out_anywhere() {
    let bench = Bench::new(RULES);
    let (text, secret) = customers(400);
    let (masked, report) = bench.mask("customers.csv", &text).unwrap();
    for value in &secret {
        assert!(!masked.contains(value.as_str()), "'{value}' came out");
    }
    // Nor do names in free text, word by word and in another case.
    for word in GIVEN.iter().chain(FAMILY) {
        assert!(
            !masked.to_lowercase().split(|c: char| !c.is_alphabetic()).any(|own| own == word.to_lowercase()),
            "{word}"
        );
    }
    // Rows are in order, so each can be compared with its own.
    for (real, fake) in cells(&text).iter().zip(cells(&masked)) {
        for at in 0..15 {
            assert_ne!(real[at], fake[at]);
        }
        assert_eq!(real[15], fake[15], "what is kept stays");
    }
    assert_eq!(report.coincidences(), 0, "{report}");
    assert_eq!(report.rows(), 400);
    assert!(report.check.iter().all(|one| one.share == 1.0));
    assert!(report.to_string().contains("no row keeps a masked value"));
    assert_eq!(report.tables[0].columns.iter().map(|column| column.misfits).sum::<u64>(), 0, "{report}");
}

#[test]
fn joins_match_and_what_was_unique_is() {
    let bench = Bench::new(&RULES.replace("notes = \"text\"", "notes = \"null\""));
    let (customers, orders) = (customers(1000).0, orders(3000));
    let masked_customers = bench.mask("customers.csv", &customers).unwrap().0;
    let masked_orders = bench.mask("orders.csv", &orders).unwrap().0;
    let by_id = |text: &str| -> HashMap<String, usize> {
        cells(text).iter().enumerate().map(|(at, row)| (row[0].to_owned(), at)).collect()
    };
    let (real, fake) = (by_id(&customers), by_id(&masked_customers));
    assert_eq!(fake.len(), 1000);
    let fakes = cells(&masked_customers);
    for (order, masked) in cells(&orders).iter().zip(cells(&masked_orders)) {
        assert_eq!(real[order[1]], fake[masked[1]], "the order belongs to the same customer");
        assert_eq!(fakes[fake[masked[1]]][2], masked[2], "and has the same contact");
    }
    for column in [0, 2, 3, 13] {
        let different: HashSet<&str> = fakes.iter().map(|row| row[column]).collect();
        assert_eq!(different.len(), 1000, "column {column}");
    }
    let numbers: HashSet<&str> =
        cells(&masked_orders).iter().map(|row| row[0]).collect::<Vec<_>>().into_iter().collect();
    assert_eq!(numbers.len(), 3000);
}

#[test]
fn the_same_key_makes_the_same_fakes_and_another_makes_others() {
    let (mut bench, text) = (Bench::new(RULES), customers(100).0);
    let first = bench.mask("customers.csv", &text).unwrap();
    let again = bench.mask("customers.csv", &text).unwrap();
    assert_eq!(first.0, again.0);
    assert_eq!(first.1.output_digest, again.1.output_digest);
    bench.key = Key::from_bytes([43; 32]);
    let other = bench.mask("customers.csv", &text).unwrap().0;
    for (one, two) in cells(&first.0).iter().zip(cells(&other)) {
        assert!(one[0] != two[0] || one[2] != two[2], "rows are alike under two keys");
    }
}

#[test]
fn the_order_of_threads_does_not_matter() {
    use sloplet_mask::{Options, mask_file_with};
    // Enough for several pieces.
    let bench = Bench::new(&RULES.replace("notes = \"text\"", "notes = \"hash\""));
    let source = bench.write("customers.csv", &customers(8000).0);
    let run = |threads| {
        let out = bench.path("out.csv");
        let options = Options { threads: Some(threads), ..Options::default() };
        let report = mask_file_with(&source, &bench.config, &bench.key, &out, &options).unwrap();
        (report.output_digest.clone(), serde_json::to_value(&report.tables).unwrap())
    };
    let one = run(1);
    assert_eq!(run(3), one);
}

#[test]
fn dates_of_one_customer_keep_their_distance() {
    let rules = "[table.t]\nid = \"id\"\nborn = { rule = \"date\", key = \"id\", days = 90 }\nseen = { rule = \"date\", key = \"id\", days = 90 }";
    let text = "id,born,seen\n17,2000-01-01,2000-01-31\n18,2000-01-01,2000-01-31\n19,31.12.1999,1/30/2000\n";
    let masked = Bench::new(rules).mask("t.csv", text).unwrap().0;
    let day = |text: &str| sloplet_mask::fakes::time::day(text).unwrap();
    let rows = cells(&masked);
    for row in &rows {
        assert_eq!(day(row[2]) - day(row[1]), 30, "{row:?}");
        assert!((1..=90).contains(&(day(row[1]) - day("2000-01-01")).abs()), "{row:?}");
    }
    assert!(rows[2][1].contains('.') && rows[2][2].contains('/'), "forms stay");
    assert_ne!(rows[0][1], rows[1][1], "another customer, another shift");
}
