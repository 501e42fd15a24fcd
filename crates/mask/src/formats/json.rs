//! JSON and JSON Lines. Members keep their order; every value must have a rule by its path, like `user.emails[].address`.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead, Read, Write};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::pipeline::{self, Piece};
use crate::MaskError;
use crate::config::Table;
use crate::table::{Masker, Outcome};
use crate::{Key, rule::Kind};

/// Paths without a rule that are listed before it is enough.
const LISTED: usize = 64;
/// A longer line is a mistake.
const LONGEST: usize = 64 << 20;

/// A value whose members keep their order.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// An object.
    Map(Vec<(String, Node)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Builder;
        impl<'de> Visitor<'de> for Builder {
            type Value = Node;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(Node::Bool(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(Node::Number(value.into()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(Node::Number(value.into()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                Ok(Number::from_f64(value).map_or(Node::Null, Node::Number))
            }
            fn visit_str<E>(self, value: &str) -> Result<Node, E> {
                Ok(Node::Text(value.to_owned()))
            }
            fn visit_string<E>(self, value: String) -> Result<Node, E> {
                Ok(Node::Text(value))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Node, A::Error> {
                let mut list = Vec::new();
                while let Some(one) = all.next_element()? {
                    list.push(one);
                }
                Ok(Node::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Node, A::Error> {
                let mut members = Vec::new();
                while let Some(one) = all.next_entry()? {
                    members.push(one);
                }
                Ok(Node::Map(members))
            }
        }
        deserializer.deserialize_any(Builder)
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(value) => value.serialize(serializer),
            Self::Text(value) => serializer.serialize_str(value),
            Self::List(list) => {
                let mut all = serializer.serialize_seq(Some(list.len()))?;
                list.iter().try_for_each(|one| all.serialize_element(one))?;
                all.end()
            }
            Self::Map(members) => {
                let mut all = serializer.serialize_map(Some(members.len()))?;
                members.iter().try_for_each(|(name, one)| all.serialize_entry(name, one))?;
                all.end()
            }
        }
    }
}

/// Masks records.
#[derive(Clone)]
struct Records {
    masker: Masker,
    unknown: BTreeSet<String>,
}

impl Records {
    fn new(table: &Table, key: &Key) -> Result<Self, MaskError> {
        let mut masker = Masker::new(table, key);
        masker.find_keys()?;
        Ok(Self { masker, unknown: BTreeSet::new() })
    }

    fn mask(&mut self, record: &mut Node) {
        let mut cells = Vec::new();
        self.collect(record, &mut String::new(), &mut cells);
        let borrowed: Vec<_> = cells.iter().map(|(place, text)| (*place, text.as_deref())).collect();
        self.masker.mask(&borrowed);
        let mut next = 0;
        self.apply(record, &mut String::new(), &mut next);
    }

    /// Whether the rule at this path speaks of everything below it.
    fn whole(&self, node: &Node, path: &str) -> bool {
        match node {
            Node::List(_) | Node::Map(_) => self.masker.kind_of(path).is_some_and(Kind::covers_subtrees),
            _ => true,
        }
    }

    fn collect(&mut self, node: &Node, path: &mut String, cells: &mut Vec<(usize, Option<String>)>) {
        if self.whole(node, path) {
            let name = if path.is_empty() { "$" } else { path.as_str() };
            let Some(place) = self.masker.place(name) else {
                if self.unknown.len() < LISTED {
                    self.unknown.insert(name.to_owned());
                }
                return;
            };
            cells.push((place, text(node)));
            return;
        }
        let length = path.len();
        match node {
            Node::List(list) => {
                path.push_str("[]");
                list.iter().for_each(|one| self.collect(one, path, cells));
            }
            Node::Map(members) => {
                for (name, one) in members {
                    join(path, name);
                    self.collect(one, path, cells);
                    path.truncate(length);
                }
            }
            _ => {}
        }
        path.truncate(length);
    }

    /// Puts the fakes in, in the order in which values were collected. False: this one goes.
    fn apply(&self, node: &mut Node, path: &mut String, next: &mut usize) -> bool {
        if self.whole(node, path) {
            let name = if path.is_empty() { "$" } else { path.as_str() };
            if self.unknown.contains(name) || self.unknown.len() >= LISTED {
                return true; // nothing of this will be written
            }
            let cell = *next;
            *next += 1;
            match self.masker.outcome(cell) {
                Outcome::Dropped => return false,
                Outcome::Null => *node = Node::Null,
                Outcome::Kept => {}
                Outcome::Masked => {
                    let fake = self.masker.fake(cell);
                    let number = matches!(node, Node::Number(_)).then(|| fake.parse::<Number>().ok()).flatten();
                    *node = number.map_or_else(|| Node::Text(fake.to_owned()), Node::Number);
                }
            }
            return true;
        }
        let length = path.len();
        match node {
            Node::List(list) => {
                path.push_str("[]");
                list.retain_mut(|one| self.apply(one, path, next));
            }
            Node::Map(members) => members.retain_mut(|(name, one)| {
                join(path, name);
                let stays = self.apply(one, path, next);
                path.truncate(length);
                stays
            }),
            _ => {}
        }
        path.truncate(length);
        true
    }

    fn refuse_unknown(&self) -> Result<(), MaskError> {
        if self.unknown.is_empty() {
            return Ok(());
        }
        Err(MaskError::NoRule { names: self.unknown.iter().cloned().collect() })
    }
}

fn join(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

fn text(node: &Node) -> Option<String> {
    match node {
        Node::Null => None,
        Node::Bool(value) => Some(value.to_string()),
        Node::Number(value) => Some(value.to_string()),
        Node::Text(value) => Some(value.clone()),
        Node::List(_) | Node::Map(_) => Some(serde_json::to_string(node).unwrap_or_default()),
    }
}

/// Leaves of a record by path, for those who want to look at it.
pub fn leaves(node: &Node, path: &mut String, saw: &mut impl FnMut(&str, Option<String>)) {
    let length = path.len();
    match node {
        Node::List(list) => {
            path.push_str("[]");
            list.iter().for_each(|one| leaves(one, path, saw));
        }
        Node::Map(members) => {
            for (name, one) in members {
                join(path, name);
                leaves(one, path, saw);
                path.truncate(length);
            }
        }
        _ => saw(if path.is_empty() { "$" } else { path.as_str() }, text(node)),
    }
    path.truncate(length);
}

/// Masks a document: element by element if it is a list.
pub fn mask(source: impl Read, sink: &mut impl Write, table: &Table, key: &Key) -> Result<Masker, MaskError> {
    let mut records = Records::new(table, key)?;
    let mut written = 0u64;
    let list = each(source, |mut record, of_list| {
        records.mask(&mut record);
        if records.unknown.is_empty() {
            let before: &[u8] = match (of_list, written) {
                (false, _) => b"",
                (true, 0) => b"[\n",
                (true, _) => b",\n",
            };
            sink.write_all(before).map_err(|error| error.to_string())?;
            serde_json::to_writer(&mut *sink, &record).map_err(|error| error.to_string())?;
            written += 1;
        }
        Ok(records.unknown.len() < LISTED)
    });
    records.refuse_unknown()?;
    let end: &[u8] = match (list?, written) {
        (false, _) => b"\n",
        (true, 0) => b"[]\n",
        (true, _) => b"\n]\n",
    };
    sink.write_all(end).map_err(|error| MaskError::malformed(0, format!("cannot write: {error}")))?;
    Ok(records.masker)
}

/// Gives every record of a document to `use_it`, until that says no; tells whether the document is a list.
pub fn each(source: impl Read, mut use_it: impl FnMut(Node, bool) -> Result<bool, String>) -> Result<bool, MaskError> {
    let mut reader = serde_json::Deserializer::from_reader(source);
    let mut stopped = false;
    let outcome = Each { use_it: &mut use_it, stopped: &mut stopped }.deserialize(&mut reader);
    match outcome.and_then(|list| if stopped { Ok(list) } else { reader.end().map(|()| list) }) {
        Ok(list) => Ok(list),
        Err(error) if error.to_string().starts_with(STOP) => Ok(true),
        Err(error) => Err(MaskError::malformed(error.line() as u64, plain(&error))),
    }
}

const STOP: &str = "enough";

/// Streams the elements of a list; anything else is one record.
struct Each<'a, F> {
    use_it: &'a mut F,
    stopped: &'a mut bool,
}

impl<'de, F: FnMut(Node, bool) -> Result<bool, String>> DeserializeSeed<'de> for Each<'_, F> {
    type Value = bool;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnMut(Node, bool) -> Result<bool, String>> Visitor<'de> for Each<'_, F> {
    type Value = bool;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of records, or one record")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<bool, A::Error> {
        while let Some(record) = all.next_element()? {
            if !(self.use_it)(record, true).map_err(serde::de::Error::custom)? {
                *self.stopped = true;
                return Err(serde::de::Error::custom(STOP));
            }
        }
        Ok(true)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<bool, A::Error> {
        let mut members = Vec::new();
        while let Some(one) = all.next_entry()? {
            members.push(one);
        }
        (self.use_it)(Node::Map(members), false).map_err(serde::de::Error::custom)?;
        Ok(false)
    }
}

/// Without the place, which is said otherwise, and without any data.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line").next().unwrap_or_default().to_owned()
}

/// Masks lines.
pub fn mask_lines(
    mut source: impl BufRead + Send,
    sink: &mut impl Write,
    table: &Table,
    key: &Key,
    threads: usize,
) -> Result<Masker, MaskError> {
    let records = Records::new(table, key)?;
    let mut line = 1;
    let read = move || {
        let mut bytes = Vec::new();
        let begin = line;
        while bytes.len() < 1 << 18 {
            let wrong = |why: String| MaskError::malformed(line, why);
            let limited = &mut (&mut source).take(LONGEST as u64);
            let before = bytes.len();
            limited.read_until(b'\n', &mut bytes).map_err(|error| wrong(error.to_string()))?;
            match bytes.len() - before {
                0 => break,
                LONGEST => return Err(wrong("a line of more than 64 MiB".into())),
                _ => line += 1,
            }
        }
        Ok((!bytes.is_empty()).then_some(Piece { bytes, line: begin }))
    };
    let work = |records: &mut Records, piece: Piece| {
        let mut out = Vec::with_capacity(piece.bytes.len() * 5 / 4);
        for (number, text) in piece.bytes.split(|byte| *byte == b'\n').enumerate() {
            if text.trim_ascii().is_empty() {
                continue;
            }
            let wrong = |error: serde_json::Error| MaskError::malformed(piece.line + number as u64, plain(&error));
            let mut record: Node = serde_json::from_slice(text).map_err(wrong)?;
            records.mask(&mut record);
            if records.unknown.is_empty() {
                serde_json::to_writer(&mut out, &record).map_err(wrong)?;
                out.push(b'\n');
            }
        }
        if records.unknown.len() >= LISTED {
            records.refuse_unknown()?;
        }
        Ok(out)
    };
    let failed = |error: std::io::Error| MaskError::malformed(0, format!("cannot write: {error}"));
    let workers = vec![records.clone(); threads.max(1)];
    let done = pipeline::run(workers, read, work, |bytes| sink.write_all(bytes).map_err(failed))?;
    let mut all = records;
    for one in done {
        all.unknown.extend(one.unknown);
        all.masker.absorb(one.masker);
    }
    all.refuse_unknown()?;
    Ok(all.masker)
}
