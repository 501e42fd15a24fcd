//! One fake for one value: which one, the key decides.

mod figure;
mod money;
mod net;
mod person;
mod place;
pub mod time;

pub use money::{iban_is_valid, luhn_is_valid};

use std::collections::HashMap;

use crate::Key;
use crate::hash::QuickState;
use crate::permute::Permutations;
use crate::prf::{Draw, Prf};
use crate::rule::{Kind, Rule};
use crate::shape;
use crate::words::Words;

/// Letters of a suffix that no two values share.
const UNIQUE: usize = 13;
/// Hosts whose fakes are remembered, per column.
const HOSTS: usize = 1024;

/// Whether a value was what its rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It was.
    Fits,
    /// It was not, and was replaced by something of its shape.
    Misfit,
}

/// Makes the fakes of one column.
#[derive(Clone)]
pub struct Maker {
    rule: Rule,
    prf: Prf,
    all: Permutations,
    words: &'static Words,
    first: Prf,
    last: Prf,
    host: Prf,
    hosts: HashMap<String, String, QuickState>,
    /// By how many days dates are shifted that have no key.
    shift: i64,
    /// Above 0 if the fakes before were no good.
    attempt: u8,
}

impl Maker {
    /// For a rule, under a key.
    pub fn new(rule: &Rule, key: &Key) -> Self {
        let prf = Prf::new(key, rule.domain());
        let part = |kind: Kind| match &rule.domain {
            Some(domain) if rule.kind == Kind::Name => Prf::new(key, &format!("{domain}/{}", kind.name())),
            _ => Prf::new(key, kind.name()),
        };
        Self {
            all: Permutations::new(prf.clone()),
            first: part(Kind::FirstName),
            last: part(Kind::LastName),
            host: Prf::new(key, "host"),
            hosts: HashMap::default(),
            shift: time::shift(&prf, rule, None),
            words: rule.locale.as_deref().and_then(Words::find).unwrap_or_else(Words::default_language),
            rule: rule.clone(),
            prf,
            attempt: 0,
        }
    }

    /// Its rule.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Appends the fake of `value`, which is never `value`. `key` is what the rule's key column has in this row.
    pub fn make(&mut self, value: &str, key: Option<&str>, out: &mut String) -> Fit {
        let start = out.len();
        for attempt in 0..4 {
            self.attempt = attempt;
            out.truncate(start);
            let made = self.try_making(value, key, out);
            self.attempt = 0;
            match made {
                Some(()) if &out[start..] != value => return Fit::Fits,
                Some(()) => continue,
                None => break,
            }
        }
        out.truncate(start);
        self.generic(value, out);
        Fit::Misfit
    }

    fn try_making(&mut self, value: &str, key: Option<&str>, out: &mut String) -> Option<()> {
        match self.rule.kind {
            Kind::Email => self.email(value, out),
            Kind::Phone => self.phone(value, out),
            Kind::Card => self.card(value, out),
            Kind::Iban => self.iban(value, out),
            Kind::Name => self.name(value, out),
            Kind::FirstName => self.one_name(value, true, out),
            Kind::LastName => self.one_name(value, false, out),
            Kind::Address => self.address(value, out),
            Kind::Street => self.street(value, out),
            Kind::City => self.city(value, out),
            Kind::Company => self.company(value, out),
            Kind::Date => self.date(value, key, out),
            Kind::Number => self.number(value, out),
            Kind::Id | Kind::Postcode => shape::permute(&mut self.all, &self.prf, value, out),
            Kind::Uuid => self.uuid(value, out),
            Kind::Ip => self.ip(value, out),
            Kind::Url => self.url(value, out),
            Kind::Username => self.username(value, out),
            Kind::Hash => {
                self.hash(value, out);
                Some(())
            }
            Kind::Text | Kind::Constant | Kind::Null | Kind::Keep | Kind::Drop => None,
        }
    }

    /// For what does not fit its rule: something of the same shape, or a token if it has none.
    fn generic(&mut self, value: &str, out: &mut String) {
        let start = out.len();
        if shape::permute(&mut self.all, &self.prf, value, out).is_some() && &out[start..] != value {
            return;
        }
        out.truncate(start);
        self.draw(value).token(UNIQUE, out);
    }

    fn draw(&self, value: &str) -> Draw {
        self.prf.draw_again(value.as_bytes(), self.attempt)
    }

    /// A suffix if the rule wants one.
    fn unique_suffix(&self, draw: &mut Draw, before: char, out: &mut String) {
        if self.rule.unique {
            out.push(before);
            draw.token(UNIQUE, out);
        }
    }

    /// The fake of a host: one label below `.example`, which belongs to nobody.
    fn host(&mut self, host: &str, out: &mut String) {
        if let Some(known) = self.hosts.get(host) {
            out.push_str(known);
            return;
        }
        let mut fake = String::new();
        let mut draw = self.host.draw(host.to_lowercase().as_bytes());
        Words::default_language().last.invent(&mut draw, &mut fake);
        let mut fake = fake.to_lowercase().replace('\'', "");
        fake.push_str(".example");
        out.push_str(&fake);
        if self.hosts.len() >= HOSTS {
            self.hosts.clear();
        }
        self.hosts.insert(host.to_owned(), fake);
    }
}
