//! One fake for one value: which one, the key decides.

mod figure;
mod money;
mod net;
mod person;
mod place;
pub mod time;

pub use money::{iban_is_valid, luhn_is_valid};

use std::collections::HashMap;

use figure::PhoneNumber;
use money::CardNumber;

use crate::Key;
use crate::hash::QuickState;
use crate::permute::Permutations;
use crate::prf::{Draw, Prf};
use crate::rule::{Kind, Rule};
use crate::shape::{self, Shape};
use crate::words::{Words, lowered};

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
    foreseen: Foreseen,
    /// Room for a name before it has its case.
    scratch: String,
}

/// What the value that is now replaced draws first: for itself, or for the name that it is.
#[derive(Clone, Default)]
struct Foreseen {
    value: Option<Draw>,
    name: Option<Draw>,
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
            foreseen: Foreseen::default(),
            scratch: String::new(),
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

    /// Appends the fakes of two values that have no key, one behind the other, and says where each ends: what takes longest is
    /// done for both at once.
    pub fn make_two(&mut self, values: [&str; 2], out: &mut String) -> [(usize, Fit); 2] {
        match self.rule.kind {
            Kind::Id | Kind::Postcode => {
                let shapes = values.map(|value| Shape::of(value.as_bytes()));
                let images = self.images(&shapes);
                self.finish_two(values, |at, out| shapes[at].write(images[at]?, out), out)
            }
            Kind::Phone => {
                let numbers = values.map(PhoneNumber::read);
                let shapes = [0, 1].map(|at| Shape::of(numbers[at].variable()));
                let images = self.images(&shapes);
                let write = |at: usize, out: &mut String| {
                    let image = images[at]?;
                    numbers[at].write(values[at], |fake| shapes[at].write(image, fake), out)
                };
                self.finish_two(values, write, out)
            }
            Kind::Card => {
                let (cards, kept) = (values.map(CardNumber::read), self.kept_digits());
                let images = match &cards {
                    [Some(first), Some(second)] => self.all.apply_two([first.place(kept), second.place(kept)]),
                    _ => [None, None],
                };
                let write = |at: usize, out: &mut String| cards[at].as_ref()?.write(values[at], kept, images[at]?, out);
                self.finish_two(values, write, out)
            }
            _ => {
                let [first, second] = self.foresee(values);
                [(values[0], first), (values[1], second)].map(|(value, foreseen)| {
                    self.foreseen = foreseen;
                    let fit = self.make(value, None, out);
                    self.foreseen = Foreseen::default();
                    (out.len(), fit)
                })
            }
        }
    }

    /// Appends two fakes as `write` does it, or else as they are made one by one.
    fn finish_two(
        &mut self,
        values: [&str; 2],
        write: impl Fn(usize, &mut String) -> Option<()>,
        out: &mut String,
    ) -> [(usize, Fit); 2] {
        [0, 1].map(|at| {
            let (start, value) = (out.len(), values[at]);
            if write(at, out).is_some() && &out[start..] != value {
                return (out.len(), Fit::Fits);
            }
            out.truncate(start);
            let fit = self.make(value, None, out);
            (out.len(), fit)
        })
    }

    /// Which texts of their shapes two texts become.
    fn images(&mut self, [first, second]: &[Shape<'_>; 2]) -> [Option<u128>; 2] {
        if !first.is_ascii() || !second.is_ascii() {
            return [None, None];
        }
        self.all.apply_two([(first.size, first.index), (second.size, second.index)])
    }

    /// What two values will draw first, where that depends on nothing else.
    fn foresee(&self, values: [&str; 2]) -> [Foreseen; 2] {
        let kind = self.rule.kind;
        let by_value = match kind {
            Kind::Email | Kind::Street | Kind::City | Kind::Company | Kind::Username | Kind::Hash => true,
            Kind::Number => self.rule.jitter.is_some(),
            _ => false,
        };
        if by_value {
            let draws = self.prf.draw_two(values.map(str::as_bytes));
            return draws.map(|draw| Foreseen { value: Some(draw), name: None });
        }
        if matches!(kind, Kind::FirstName | Kind::LastName) && !values.iter().any(|value| person::has_space(value)) {
            let prf = if kind == Kind::FirstName { &self.first } else { &self.last };
            let [one, two] = values;
            let draws = lowered(one, |one| lowered(two, |two| prf.draw_two([one, two].map(str::as_bytes))));
            return draws.map(|draw| Foreseen { value: None, name: Some(draw) });
        }
        Default::default()
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

    fn draw(&mut self, value: &str) -> Draw {
        match self.foreseen.value.take() {
            Some(draw) if self.attempt == 0 => draw,
            _ => self.prf.draw_again(value.as_bytes(), self.attempt),
        }
    }

    /// A suffix if the rule wants one.
    fn unique_suffix(&self, draw: &mut Draw, before: char, out: &mut String) {
        if self.rule.unique {
            out.push(before);
            draw.token(UNIQUE, out);
        }
    }

    /// The fake of a host: one label below `.example`, which belongs to nobody. Those that come first are remembered: where
    /// few hosts have most of the mailboxes, they are among them.
    fn host(&mut self, host: &str, out: &mut String) {
        if let Some(known) = self.hosts.get(host) {
            out.push_str(known);
            return;
        }
        let start = out.len();
        let mut draw = lowered(host, |host| self.host.draw(host.as_bytes()));
        Words::default_language().last.invent(&mut draw, out);
        plain_from(start, out);
        out.push_str(".example");
        if self.hosts.len() < HOSTS {
            self.hosts.insert(host.to_owned(), out[start..].to_owned());
        }
    }
}

/// Small letters, without what no mail server takes.
fn plain_from(start: usize, out: &mut String) {
    if !out[start..].is_ascii() {
        let small = out[start..].to_lowercase();
        out.truncate(start);
        out.push_str(&small);
    }
    out[start..].make_ascii_lowercase();
    if memchr::memchr(b'\'', &out.as_bytes()[start..]).is_some() {
        let plain = out[start..].replace('\'', "");
        out.truncate(start);
        out.push_str(&plain);
    }
}
