//! Names and tags of templates.

use crate::life::LifeError;

/// The tag of a name that has none.
pub(super) const DEFAULT_TAG: &str = "default";

/// Longest name or tag.
const MAX_LENGTH: usize = 128;

/// Takes `name:tag` apart.
pub(super) fn split(reference: &str) -> (&str, Option<&str>) {
    match reference.rsplit_once(':') {
        // `host:5000/image` has a port, not a tag.
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (reference, None),
    }
}

/// A template's name in its one form.
pub(super) fn name(given: &str) -> Result<String, LifeError> {
    let name = given.trim().to_ascii_lowercase();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if name.is_empty() || name.len() > MAX_LENGTH || !name.bytes().all(fits) {
        let advice = "use up to 128 letters, digits, '-' and '_'";
        return Err(LifeError::Invalid(format!("'{}' cannot name a template: {advice}", shown(given))));
    }
    Ok(name)
}

/// A tag, if it is one.
pub(super) fn tag(given: &str) -> Result<String, LifeError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if given.is_empty() || given.len() > MAX_LENGTH || !given.bytes().all(fits) {
        let advice = "use up to 128 letters, digits, '-', '_' and '.'";
        return Err(LifeError::Invalid(format!("'{}' cannot be a tag: {advice}", shown(given))));
    }
    Ok(given.to_owned())
}

/// What a client sent, short enough for a message.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(80).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_a_name_and_perhaps_a_tag() {
        assert_eq!(split("app"), ("app", None));
        assert_eq!(split("app:v1"), ("app", Some("v1")));
        assert_eq!(split("localhost:5000/app"), ("localhost:5000/app", None));
        assert_eq!(split("localhost:5000/app:v1"), ("localhost:5000/app", Some("v1")));
    }

    #[test]
    fn names_have_one_form_and_nothing_strange_in_them() {
        assert_eq!(name("My_App-1").unwrap(), "my_app-1");
        for bad in ["", "a/b", "a b", "a:b", "é", &"x".repeat(129)] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
        assert_eq!(tag("v1.0-RC").unwrap(), "v1.0-RC");
        for bad in ["", ":x", "x:", "a/b", "a\n"] {
            assert!(tag(bad).is_err(), "{bad:?}");
        }
    }
}
