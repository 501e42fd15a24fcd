//! Values as protobuf writes them in JSON, and what else it lets others write.

use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);

const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// Bytes: base64 of either alphabet, with or without padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base64(pub Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Base64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes in base64")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Base64, E> {
                let decoded = STANDARD.decode(text).or_else(|_| URL_SAFE.decode(text));
                decoded.map(Base64).map_err(|_| E::custom("bytes are not in base64"))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// A number: as such or as a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Number(pub u32);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of 32 bits without a sign")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Number, E> {
                u32::try_from(value).map(Number).map_err(|_| E::custom("a number is too large"))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                text.parse().map(Number).map_err(|_| E::custom("not a number"))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_in_all_of_their_forms() {
        for text in ["\"++//\"", "\"--__\""] {
            assert_eq!(serde_json::from_str::<Base64>(text).unwrap().0, [0xfb, 0xef, 0xff]);
        }
        for text in ["\"YQ==\"", "\"YQ\""] {
            assert_eq!(serde_json::from_str::<Base64>(text).unwrap().0, b"a");
        }
        for bad in ["\"a b\"", "5", "null", "\"Y\""] {
            assert!(serde_json::from_str::<Base64>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_taken_as_strings_too() {
        for text in ["7", "\"7\""] {
            assert_eq!(serde_json::from_str::<Number>(text).unwrap(), Number(7));
        }
        for bad in ["-1", "4294967296", "1.5", "\"x\"", "[]", "null"] {
            assert!(serde_json::from_str::<Number>(bad).is_err(), "{bad}");
        }
    }
}
