//! Strings that others chose: bounded in length, and safe to print.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// How a cut is shown: `…[+123 bytes]`.
pub(crate) const CUT: &str = "…[+";
/// The longest that a cut's mark can be.
const CUT_MAX: usize = 32;

/// A string of at most `N` bytes. What is longer is cut on construction, with a visible mark that says how much is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Bounded<const N: usize>(String);

/// An identifier, a host name, a verdict.
pub type Name = Bounded<256>;
/// A path, one argument, an explanation.
pub type Text = Bounded<4096>;
/// What was said to a model or a tool.
pub type LongText = Bounded<16384>;

impl<const N: usize> Bounded<N> {
    /// From bytes of unknown encoding.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        // The cut comes first, so that a huge string is not copied whole. A character is at most four bytes.
        if bytes.len() <= N {
            return String::from_utf8_lossy(bytes).into_owned().into();
        }
        let mut start = String::from_utf8_lossy(&bytes[..N]).into_owned();
        cut(&mut start, N, bytes.len());
        Self(start)
    }

    /// The string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Shortens `text`, the beginning of something of `whole` bytes, to `limit` bytes with the mark.
fn cut(text: &mut String, limit: usize, whole: usize) {
    let mut keep = limit.saturating_sub(CUT_MAX).min(text.len());
    while !text.is_char_boundary(keep) {
        keep -= 1;
    }
    text.truncate(keep);
    text.push_str(&format!("{CUT}{} bytes]", whole.saturating_sub(keep)));
}

impl<const N: usize> From<String> for Bounded<N> {
    fn from(mut text: String) -> Self {
        if text.len() > N {
            let whole = text.len();
            cut(&mut text, N, whole);
            text.shrink_to_fit();
        }
        Self(text)
    }
}

impl<const N: usize> From<&str> for Bounded<N> {
    fn from(text: &str) -> Self {
        Self::from_bytes(text.as_bytes())
    }
}

impl<const N: usize> From<&String> for Bounded<N> {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl<const N: usize> From<Cow<'_, str>> for Bounded<N> {
    fn from(text: Cow<'_, str>) -> Self {
        match text {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into(),
        }
    }
}

impl<const N: usize> From<&Path> for Bounded<N> {
    fn from(path: &Path) -> Self {
        Self::from_bytes(path.as_os_str().as_encoded_bytes())
    }
}

impl<const N: usize> From<Bounded<N>> for String {
    fn from(text: Bounded<N>) -> Self {
        text.0
    }
}

impl<const N: usize> Deref for Bounded<N> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<const N: usize> fmt::Display for Bounded<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A list of strings, such as an argument vector: at most [`Texts::MOST`] of them and [`Texts::BYTES`] bytes in all; a
/// last entry says how many more there were.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Texts(Vec<Text>);

impl Texts {
    /// The most entries that are kept.
    pub const MOST: usize = 256;
    /// The most bytes that are kept.
    pub const BYTES: usize = 32 * 1024;
}

impl<T: Into<Text>> FromIterator<T> for Texts {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let (mut kept, mut bytes, mut more) = (Vec::new(), 0, 0_usize);
        for item in items {
            if more > 0 || kept.len() >= Self::MOST || bytes >= Self::BYTES {
                more += 1;
                continue;
            }
            let item = item.into();
            bytes += item.len();
            kept.push(item);
        }
        if more > 0 {
            kept.push(format!("{CUT}{more} more]").into());
        }
        Self(kept)
    }
}

impl Deref for Texts {
    type Target = [Text];

    fn deref(&self) -> &[Text] {
        &self.0
    }
}

/// `text` for a terminal: escape sequences go, so do control characters and those that turn the direction of writing;
/// line breaks and tabs become spaces. A program in a sandbox must not paint over what its keeper reads.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| c.is_control() || turns(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\n' | '\r' | '\t' => out.push(' '),
            '\u{1b}' => match rest.next_if(|next| ('\u{20}'..'\u{7f}').contains(next)) {
                Some('[') => skip_control_sequence(&mut rest),
                Some(']' | 'P' | 'X' | '^' | '_') => skip_string(&mut rest),
                // A character set (`ESC ( B`) has one more.
                Some('\u{20}'..='\u{2f}') => drop(rest.next_if(|next| !next.is_control())),
                _ => {}
            },
            '\u{9b}' => skip_control_sequence(&mut rest),
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => skip_string(&mut rest),
            c if c.is_control() || turns(c) => {}
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

type Rest<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Parameters, then one final letter.
fn skip_control_sequence(rest: &mut Rest<'_>) {
    while rest.next_if(|c| ('\u{20}'..='\u{3f}').contains(c)).is_some() {}
    rest.next_if(|c| ('\u{40}'..='\u{7e}').contains(c));
}

/// Up to BEL or the string terminator.
fn skip_string(rest: &mut Rest<'_>) {
    while let Some(c) = rest.next() {
        match c {
            '\u{7}' | '\u{9c}' => return,
            '\u{1b}' => {
                rest.next_if_eq(&'\\');
                return;
            }
            _ => {}
        }
    }
}

fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_strings_are_cut_with_a_mark() {
        let text = Name::from("é".repeat(300));
        assert!(text.len() <= 256 && text.ends_with(" bytes]"), "{text}");
        assert_eq!(text, Name::from(text.as_str()), "cutting again changes nothing");
        let kept = text.split(CUT).next().unwrap().len();
        assert!(text.ends_with(&format!("…[+{} bytes]", 600 - kept)));
        assert_eq!(Name::from_bytes(&b"x".repeat(1000)).as_str(), Name::from("x".repeat(1000)).as_str());
        assert_eq!(Name::from("x".repeat(256)).len(), 256);
    }

    #[test]
    fn long_lists_are_cut_with_a_mark() {
        let many: Texts = std::iter::repeat_n("a", 1000).collect();
        assert_eq!(many.len(), Texts::MOST + 1);
        assert_eq!(many.last().unwrap().as_str(), "…[+744 more]");
        let big: Texts = std::iter::repeat_n("b".repeat(10_000), 100).collect();
        assert!(big.iter().map(|text| text.len()).sum::<usize>() < Texts::BYTES + 5000);
    }

    #[test]
    fn terminals_get_plain_text() {
        assert_eq!(plain("ls -l"), "ls -l");
        assert_eq!(plain("a\x1b[31;1mred\x1b[0m b"), "ared b");
        assert_eq!(plain("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\link"), "xlink");
        assert_eq!(plain("\u{9b}2Jx\u{9d}0;t\u{9c}y"), "xy");
        assert_eq!(plain("one\ntwo\r\x08\x7f\u{202e}three"), "one two three");
        assert_eq!(plain("\x1b(Bok\x1b"), "ok");
        assert_eq!(plain("\x1b[31"), "");
    }
}
