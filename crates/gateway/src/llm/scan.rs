//! Walks through JSON of any size and shape without building it.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// What was found on the way.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Parts that are images.
    pub images: u64,
    /// Parts whose size in tokens cannot be told from their bytes: documents, files, sound, references.
    pub opaque: bool,
    /// Something is to be written to a cache.
    pub cached: bool,
    /// …for an hour.
    pub cached_1h: bool,
    /// Text, cut.
    pub text: String,
}

/// Where text is kept.
const TEXT_KEYS: [&str; 5] = ["text", "content", "input", "output", "arguments"];

/// Walks through a value; text only up to this many bytes.
pub(super) fn scan(json: &str, text_bytes: usize) -> Found {
    let mut found = Found::default();
    let mut reader = serde_json::Deserializer::from_str(json);
    // What cannot be walked through to its end is not understood.
    if (Walk { found: &mut found, key: "text", text_bytes }).deserialize(&mut reader).is_err() {
        found.opaque = true;
    }
    found
}

struct Walk<'f, 'k> {
    found: &'f mut Found,
    key: &'k str,
    text_bytes: usize,
}

impl Walk<'_, '_> {
    fn string(self, value: &str) {
        match (self.key, value) {
            ("type", "image" | "image_url" | "input_image" | "computer_screenshot") => self.found.images += 1,
            ("type", "document" | "file" | "input_file" | "input_audio" | "audio" | "video" | "video_url") => {
                self.found.opaque = true;
            }
            ("type", "container_upload" | "item_reference" | "compaction") | ("file_id", _) => self.found.opaque = true,
            ("ttl", "1h") => self.found.cached_1h = true,
            (key, text) if TEXT_KEYS.contains(&key) && self.found.text.len() < self.text_bytes => {
                if !self.found.text.is_empty() {
                    self.found.text.push('\n');
                }
                let room = self.text_bytes.saturating_sub(self.found.text.len());
                let end = (0..=room.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
                self.found.text.push_str(&text[..end]);
            }
            _ => {}
        }
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.string(value);
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { found, key, text_bytes } = self;
        while list.next_element_seed(Walk { found: &mut *found, key, text_bytes })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { found, text_bytes, .. } = self;
        while let Some(Key(key)) = map.next_key()? {
            found.cached |= key == "cache_control";
            map.next_value_seed(Walk { found: &mut *found, key: &key, text_bytes })?;
        }
        Ok(())
    }
}

/// A key, borrowed where it can be.
struct Key<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Cow<'de, str>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(key))
            }
            fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(key.to_owned()))
            }
        }
        reader.deserialize_str(Text).map(Key)
    }
}

/// The fields of an object, in their order, unread.
pub(super) struct Fields<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

/// More fields than any API has.
const FIELDS: usize = 256;

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields: Self::Value = Vec::new();
                while let Some((Key(key), value)) = map.next_entry()? {
                    // One reader takes the first of two, another the last.
                    if fields.len() >= FIELDS || fields.iter().any(|(known, _)| *known == key) {
                        return Err(serde::de::Error::custom(format_args!(
                            "field '{key}' is there twice, or one too many"
                        )));
                    }
                    fields.push((key, value));
                }
                Ok(fields)
            }
        }
        reader.deserialize_map(Object).map(Fields)
    }
}

/// The last element of a list, unread, and how many there are.
pub(super) struct Last<'a> {
    pub last: Option<&'a RawValue>,
    pub count: u64,
}

impl<'de: 'a, 'a> Deserialize<'de> for Last<'a> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Last<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut found = Last { last: None, count: 0 };
                while let Some(value) = list.next_element()? {
                    found = Last { last: Some(value), count: found.count + 1 };
                }
                Ok(found)
            }
        }
        reader.deserialize_seq(List)
    }
}

/// The types of the elements of a list of objects, and how many have none.
pub(super) struct Types(pub Vec<String>);

/// More tools than a model is given.
const TYPES: usize = 4096;

impl<'de> Deserialize<'de> for Types {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct List;
        #[derive(serde::Deserialize)]
        struct Element {
            #[serde(rename = "type")]
            kind: Option<String>,
        }
        impl<'de> Visitor<'de> for List {
            type Value = Vec<String>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut types: Vec<String> = Vec::new();
                while let Some(element) = list.next_element::<Element>()? {
                    if let Some(kind) = element.kind
                        && !types.contains(&kind)
                    {
                        types.push(kind);
                    }
                    if types.len() > TYPES {
                        return Err(serde::de::Error::custom("too many types"));
                    }
                }
                Ok(types)
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Vec::new())
            }
        }
        reader.deserialize_any(List).map(Types)
    }
}
