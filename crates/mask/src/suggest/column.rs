//! One column: what its name says and what its values look like.

use std::collections::{BTreeMap, HashSet};

use crate::detect::{self, Found};
use crate::fakes::time;
use crate::rule::Kind;

/// Rows that are looked at.
pub const ROWS: u64 = 1000;

/// What was seen of a column.
#[derive(Default)]
pub struct Column {
    pub name: String,
    values: u64,
    different: HashSet<String>,
    found: BTreeMap<Found, u64>,
    inside: u64,
    dates: u64,
    uuids: u64,
}

/// Words of names, with what they say. The first that fits counts.
const HINTS: &[(&[&str], Kind)] = &[
    (&["email", "mail", "courriel"], Kind::Email),
    (&["phone", "telephone", "tel", "mobile", "fax", "telefon", "handy"], Kind::Phone),
    (&["iban"], Kind::Iban),
    (&["card", "pan", "creditcard", "cardnumber"], Kind::Card),
    (&["password", "passwd", "secret", "token", "apikey", "hash", "salt"], Kind::Hash),
    (&["ssn", "passport", "nin", "nino", "cpf", "dni", "taxid", "license", "licence", "national"], Kind::Id),
    (&["firstname", "forename", "givenname", "vorname", "prenom", "nome"], Kind::FirstName),
    (&["lastname", "surname", "familyname", "nachname", "sobrenome"], Kind::LastName),
    (&["username", "login", "handle", "nickname"], Kind::Username),
    (&["company", "organisation", "organization", "employer", "firma"], Kind::Company),
    (&["birth", "birthday", "birthdate", "dob", "geburtsdatum", "born"], Kind::Date),
    (&["zip", "zipcode", "postcode", "postal", "plz", "cep"], Kind::Postcode),
    (&["city", "town", "ort", "ville", "cidade"], Kind::City),
    (&["street", "strasse", "rue", "rua"], Kind::Street),
    (&["address", "adresse", "addr", "endereco"], Kind::Address),
    (&["ip", "ipaddress", "ipaddr"], Kind::Ip),
    (&["url", "website", "homepage", "link", "uri"], Kind::Url),
    (&["uuid", "guid"], Kind::Uuid),
    (&["note", "notes", "comment", "comments", "description", "message", "text", "body", "remarks", "bio"], Kind::Text),
    (&["name", "fullname", "customername", "contact", "person"], Kind::Name),
];

impl Column {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Looks at a value.
    pub fn saw(&mut self, value: &str) {
        if value.trim().is_empty() || self.values >= ROWS {
            return;
        }
        self.values += 1;
        self.different.insert(value.to_owned());
        match detect::whole(value) {
            Some(found) => *self.found.entry(found).or_default() += 1,
            None => self.inside += u64::from(!detect::scan(value).is_empty()),
        }
        self.dates += u64::from(time::is_date(value));
        let hex = |byte: u8| byte == b'-' || byte.is_ascii_hexdigit();
        self.uuids += u64::from(
            value.len() == 36 && value.bytes().filter(|byte| *byte == b'-').count() == 4 && value.bytes().all(hex),
        );
    }

    pub fn all_different(&self) -> bool {
        self.values >= 20 && self.different.len() as u64 == self.values
    }

    /// Words of the name: `billingAddress.zip_code` is billing, address, zip, code.
    fn words(&self) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut before_lower = false;
        for c in self.name.chars() {
            if !c.is_alphanumeric() || (c.is_uppercase() && before_lower) {
                words.push(String::new());
            }
            if let (true, Some(last)) = (c.is_alphanumeric(), words.last_mut()) {
                last.extend(c.to_lowercase());
            }
            before_lower = c.is_lowercase();
        }
        words.retain(|word| !word.is_empty());
        words
    }

    fn hint(&self) -> Option<Kind> {
        let words = self.words();
        let joined: Vec<String> = words.windows(2).map(|pair| pair.concat()).collect();
        let has = |wanted: &&str| words.iter().chain(&joined).any(|word| word == wanted);
        let by_name = HINTS.iter().find(|(names, _)| names.iter().any(&has)).map(|(_, kind)| *kind);
        by_name.or_else(|| (words.last().is_some_and(|last| last == "id" || last == "ids")).then_some(Kind::Id))
    }

    /// The rule, or none, and why.
    pub fn judge(&self) -> (Option<Kind>, String) {
        if self.values > 0 && self.uuids * 10 >= self.values * 9 {
            return (Some(Kind::Uuid), "values are UUIDs".into());
        }
        if let Some((found, count)) = self.found.iter().max_by_key(|(_, count)| **count)
            && *count * 10 >= self.values * 6
        {
            let kind = found.kind().unwrap_or(Kind::Hash);
            // "Main Street 5" may look like this or that; a name that says it is more precise.
            let kind = self.hint().filter(|hint| *found == Found::Address && *hint != Kind::Text).unwrap_or(kind);
            return (Some(kind), format!("{} of {} values look like {}", count, self.values, found.name()));
        }
        if let Some(kind) = self.hint() {
            if kind == Kind::Date && self.values > 0 && self.dates * 2 < self.values {
                return (None, "named like a date, but values are none".into());
            }
            return (Some(kind), "by its name".into());
        }
        let total: u64 = self.found.values().sum::<u64>() + self.inside;
        if total > 0 {
            return (Some(Kind::Text), format!("personal data or secrets in {total} of {} values", self.values));
        }
        if self.values > 0 && self.dates * 10 >= self.values * 9 {
            return (None, "dates; \"date\" shifts them".into());
        }
        (None, format!("nothing recognised in {} values", self.values))
    }

    /// `customers.id` and `orders.customer_id` are one domain.
    pub fn domain(&self, table: &str) -> Option<String> {
        let words = self.words();
        match words.as_slice() {
            [only] if only == "id" || only == "uuid" => {
                let table = table.rsplit('.').next().unwrap_or(table).to_lowercase();
                let one = table.strip_suffix("ies").map(|stem| format!("{stem}y"));
                let one = one.unwrap_or_else(|| table.strip_suffix('s').unwrap_or(&table).to_owned());
                Some(format!("{one}_id"))
            }
            [rest @ .., last] if last == "id" => Some(format!("{}_id", rest.join("_"))),
            _ => None,
        }
    }
}
