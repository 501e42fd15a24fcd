//! Names of stored images: Docker-style references, brought to one form.

use crate::error::ImageError;

/// File names end at 255 bytes, and `/` takes three once encoded.
const MAX_NAME_BYTES: usize = 180;

/// The longest file name, less a tag that may be added.
const MAX_FILE_BYTES: usize = 255 - ":latest".len();

/// The one form under which an image is stored: `alpine` and `docker.io/library/alpine` are both `alpine:latest`.
pub(crate) fn canonical(name: &str) -> Result<String, ImageError> {
    let bad = |reason| ImageError::BadName { name: crate::error::printable(name.as_bytes()), reason };
    // The tag that is added below counts in no name, or the longest ones would have no canonical form.
    let untagged = |name: &'_ str| name.strip_suffix(":latest").unwrap_or(name).len();
    if name.is_empty() || untagged(name) > MAX_NAME_BYTES {
        return Err(bad("it must have 1 to 180 characters"));
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/:@+".contains(&b)) {
        return Err(bad("only letters, digits and . _ - / : @ + are allowed"));
    }
    if name.split(['/', ':', '@']).any(|part| part.is_empty() || part.starts_with(['.', '-'])) {
        return Err(bad("no part of it may be empty or begin with '.' or '-'"));
    }
    // All of them, or the canonical form of a name would have another canonical form.
    let usual = ["docker.io/", "index.docker.io/", "library/"];
    let mut name = name;
    while let Some(rest) = usual.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        name = rest;
    }
    if file_name(name.strip_suffix(":latest").unwrap_or(name)).len() > MAX_FILE_BYTES {
        return Err(bad("it has too many parts"));
    }
    if name.contains('@') {
        return Ok(name.to_owned());
    }
    let last = name.rsplit('/').next().unwrap_or(name);
    let full = if last.contains(':') { name.to_owned() } else { format!("{name}:latest") };
    if full == "host:latest" {
        return Err(bad("'host' is always the host's own system directories"));
    }
    Ok(full)
}

/// The file name of an image's record. `/` is the only character of a canonical name that a file name cannot hold.
pub(crate) fn file_name(canonical: &str) -> String {
    format!("{}.json", canonical.replace('/', "%2F"))
}

/// A usable name out of a file name: `My Rootfs.tar.gz` becomes `my-rootfs`.
pub(crate) fn from_file_name(file: &str) -> String {
    let mut stem = file;
    for suffix in [".gz", ".zst", ".zstd", ".xz", ".tgz", ".txz", ".tar"] {
        stem = stem.strip_suffix(suffix).unwrap_or(stem);
    }
    let mapped: String = stem
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c.to_ascii_lowercase() } else { '-' })
        .take(100)
        .collect();
    let trimmed = mapped.trim_matches(['.', '-']);
    if trimmed.is_empty() || trimmed == "host" { "imported".to_owned() } else { trimmed.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_form_for_every_spelling() {
        for name in ["alpine", "alpine:latest", "docker.io/library/alpine", "library/alpine:latest"] {
            assert_eq!(canonical(name).unwrap(), "alpine:latest");
        }
        assert_eq!(canonical("localhost:5000/a/b").unwrap(), "localhost:5000/a/b:latest");
        assert_eq!(canonical("docker.io/me/app:1").unwrap(), "me/app:1");
        assert!(canonical("a@sha256:00").unwrap().ends_with("@sha256:00"));
    }

    #[test]
    fn names_cannot_leave_the_store() {
        for name in ["", "..", "../x", "a/../b", "/etc", "a//b", "-x", "host", "host:latest", "a b", "a\0", "é", ".x"]
        {
            assert!(canonical(name).is_err(), "{name:?} must be refused");
        }
        assert_eq!(file_name("me/app:1"), "me%2Fapp:1.json");
    }

    #[test]
    fn the_longest_names_have_a_canonical_form_that_is_its_own() {
        for name in ["a".repeat(180), format!("b/{}", "a".repeat(178))] {
            let full = canonical(&name).unwrap();
            assert_eq!(canonical(&full).unwrap(), full);
            assert!(file_name(&full).len() <= 255);
        }
        assert!(canonical(&"a".repeat(181)).is_err() && canonical(&format!("{}:latest", "a".repeat(181))).is_err());
    }

    #[test]
    fn a_canonical_name_is_its_own_canonical_name() {
        for name in ["library/library/a", "docker.io/docker.io/a", "library/docker.io/library/a"] {
            assert_eq!(canonical(name).unwrap(), "a:latest", "{name}");
        }
        assert!(canonical("docker.io/library/host").is_err());
    }

    #[test]
    fn a_name_of_many_parts_that_no_file_could_have_is_refused() {
        assert!(canonical(&["a"; 90].join("/")).is_err());
        assert!(file_name(&canonical(&["aaa"; 41].join("/")).unwrap()).len() <= 255);
    }

    #[test]
    fn names_out_of_file_names() {
        assert_eq!(from_file_name("My Rootfs.tar.gz"), "my-rootfs");
        assert_eq!(from_file_name("..."), "imported");
        assert_eq!(from_file_name("host"), "imported");
    }
}
