//! `s3://bucket/key`, and which of them somebody may use.

use std::fmt;
use std::str::FromStr;

use crate::error::S3Error;

/// One object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Object {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
}

impl FromStr for Object {
    type Err = S3Error;

    fn from_str(text: &str) -> Result<Self, S3Error> {
        let bad = |reason| S3Error::BadObject { text: text.escape_debug().take(200).collect(), reason };
        let rest = text.strip_prefix("s3://").ok_or_else(|| bad("it does not begin with s3://"))?;
        let (bucket, key) = rest.split_once('/').ok_or_else(|| bad("there is no key"))?;
        check_bucket(bucket).map_err(bad)?;
        if key.is_empty() || key.ends_with('/') {
            return Err(bad("there is no key"));
        }
        check_key(key).map_err(bad)?;
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

impl fmt::Display for Object {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "s3://{}/{}", self.bucket, self.key)
    }
}

fn check_bucket(bucket: &str) -> Result<(), &'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    match bucket.bytes().all(plain) && (1..=63).contains(&bucket.len()) && !bucket.contains("..") {
        true => Ok(()),
        false => Err("no bucket has that name"),
    }
}

fn check_key(key: &str) -> Result<(), &'static str> {
    if key.len() > 1024 || key.chars().any(char::is_control) {
        return Err("a key has at most 1024 bytes, and no control characters");
    }
    // In an address they would mean another object.
    if key.starts_with('/') || key.split('/').any(|part| matches!(part, "." | "..")) || key.contains("//") {
        return Err("no part of a key may be empty, '.' or '..'");
    }
    Ok(())
}

/// A bucket, or the objects in it whose keys begin in some way. `{owner}` in it stands for whoever asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// The bucket.
    pub bucket: String,
    /// What keys begin with; empty, or with a slash at its end.
    pub prefix: String,
}

impl FromStr for Root {
    type Err = S3Error;

    fn from_str(text: &str) -> Result<Self, S3Error> {
        let bad = |reason| S3Error::BadObject { text: text.escape_debug().take(200).collect(), reason };
        let rest = text.strip_prefix("s3://").ok_or_else(|| bad("it does not begin with s3://"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        check_bucket(bucket).map_err(bad)?;
        let prefix = prefix.trim_end_matches('/');
        check_key(prefix).map_err(bad)?;
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Self { bucket: bucket.to_owned(), prefix })
    }
}

impl Root {
    /// The same for somebody.
    pub fn of(&self, owner: &str) -> Self {
        Self { bucket: self.bucket.clone(), prefix: self.prefix.replace("{owner}", owner) }
    }

    /// Whether an object is in it.
    pub fn has(&self, object: &Object) -> bool {
        object.bucket == self.bucket && object.key.starts_with(&self.prefix)
    }

    /// An object in it.
    pub fn object(&self, key: &str) -> Object {
        Object { bucket: self.bucket.clone(), key: format!("{}{key}", self.prefix) }
    }
}

impl fmt::Display for Root {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "s3://{}/{}", self.bucket, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_a_bucket_and_a_key() {
        let object: Object = "s3://my-bucket/a/b c.tar".parse().unwrap();
        assert_eq!((object.bucket.as_str(), object.key.as_str()), ("my-bucket", "a/b c.tar"));
        assert_eq!(object.to_string(), "s3://my-bucket/a/b c.tar");
        for bad in [
            "x",
            "s3://",
            "s3://b",
            "s3://b/",
            "s3:///k",
            "s3://b/a/../c",
            "s3://b/./c",
            "s3://b//c",
            "s3://b/a\nb",
            "s3://a@b/c",
            "s3://a..b/c",
            "s3://b/c/",
            "http://b/c",
        ] {
            assert!(bad.parse::<Object>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_root_has_what_begins_like_it_and_an_owner_has_their_own() {
        let root: Root = "s3://b/team/{owner}".parse().unwrap();
        let of = root.of("ann");
        let object = |text: &str| text.parse::<Object>().unwrap();
        assert!(of.has(&object("s3://b/team/ann/x")));
        for other in ["s3://b/team/bob/x", "s3://b/team/annex/x", "s3://c/team/ann/x", "s3://b/x"] {
            assert!(!of.has(&object(other)), "{other}");
        }
        assert!("s3://b".parse::<Root>().unwrap().has(&object("s3://b/x/y")));
        assert_eq!(of.object("k").to_string(), "s3://b/team/ann/k");
    }
}
