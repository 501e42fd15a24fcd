//! Names and places by language: the word lists of the crate `fake`, cut and joined anew.
//!
//! A name from a list is somebody's name, perhaps that of the next row. So fakes are invented: the beginning of one name
//! and the end of another, never one that is in a list. "Margaret" and "Joseph" give "Maseph".

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use fake::locales::{
    AR_SA, CY_GB, DE_DE, Data, EN, FA_IR, FR_FR, IT_IT, JA_JP, NL_NL, PT_BR, PT_PT, TR_TR, ZH_CN, ZH_TW,
};

use crate::hash::QuickState;
use crate::prf::Draw;

/// The words of one language.
pub struct Words {
    /// First names.
    pub first: Invented,
    /// Last names; also the stem of streets, cities and companies.
    pub last: Invented,
    /// What may stand before a city.
    pub city_prefix: &'static [&'static str],
    /// What ends a city.
    pub city_suffix: &'static [&'static str],
    /// What says that it is a street.
    pub street_suffix: &'static [&'static str],
    /// How a street is written.
    pub street: &'static str,
    /// What ends a company.
    pub company_suffix: &'static [&'static str],
}

/// Beginnings and ends.
pub struct Invented {
    beginnings: List,
    ends: List,
    /// Bits of those pairs that may be a listed name, by a hash of both.
    listed: Vec<u64>,
}

/// Words one behind the other: those that are used together are near each other.
struct List {
    text: String,
    /// Where each begins, and where the last one ends.
    starts: Vec<u32>,
}

impl List {
    fn new(words: &[String]) -> Self {
        let mut list = Self { text: String::new(), starts: vec![0] };
        for word in words {
            list.text.push_str(word);
            list.starts.push(list.text.len() as u32);
        }
        list
    }

    fn len(&self) -> usize {
        self.starts.len() - 1
    }

    fn get(&self, at: usize) -> &str {
        let place = |at: usize| self.starts.get(at).map(|start| *start as usize);
        place(at).zip(place(at + 1)).and_then(|(start, end)| self.text.get(start..end)).unwrap_or_default()
    }

    /// Where each word is, in lower case.
    fn places(&self) -> HashMap<String, Vec<usize>, QuickState> {
        let mut places: HashMap<String, Vec<usize>, QuickState> = HashMap::default();
        (0..self.len()).for_each(|at| places.entry(self.get(at).to_lowercase()).or_default().push(at));
        places
    }
}

/// Bits for pairs: so many that few of those that are no listed name have one.
const PAIRS: usize = 1 << 16;

/// The bit of a pair.
fn pair(beginning: usize, end: usize) -> usize {
    let mixed = ((beginning as u64) << 32 | end as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as usize % PAIRS
}

type Entry = (&'static str, LazyLock<Words>);

static ALL: [Entry; 14] = [
    ("en", LazyLock::new(Words::of::<EN>)),
    ("de", LazyLock::new(Words::of::<DE_DE>)),
    ("fr", LazyLock::new(Words::of::<FR_FR>)),
    ("it", LazyLock::new(Words::of::<IT_IT>)),
    ("nl", LazyLock::new(Words::of::<NL_NL>)),
    ("pt", LazyLock::new(Words::of::<PT_PT>)),
    ("pt_br", LazyLock::new(Words::of::<PT_BR>)),
    ("tr", LazyLock::new(Words::of::<TR_TR>)),
    ("cy", LazyLock::new(Words::of::<CY_GB>)),
    ("ja", LazyLock::new(Words::of::<JA_JP>)),
    ("zh", LazyLock::new(Words::of::<ZH_CN>)),
    ("zh_tw", LazyLock::new(Words::of::<ZH_TW>)),
    ("ar", LazyLock::new(Words::of::<AR_SA>)),
    ("fa", LazyLock::new(Words::of::<FA_IR>)),
];

/// Every listed name of every language, in lower case.
static KNOWN: LazyLock<HashSet<String, QuickState>> = LazyLock::new(|| {
    fn of<L: Data>() -> impl Iterator<Item = String> {
        L::NAME_FIRST_NAME.iter().chain(L::NAME_LAST_NAME).map(|name| name.to_lowercase())
    }
    let latin = of::<EN>().chain(of::<DE_DE>()).chain(of::<FR_FR>()).chain(of::<IT_IT>()).chain(of::<NL_NL>());
    let more = of::<PT_PT>().chain(of::<PT_BR>()).chain(of::<TR_TR>()).chain(of::<CY_GB>());
    let other = of::<JA_JP>().chain(of::<ZH_CN>()).chain(of::<ZH_TW>()).chain(of::<AR_SA>()).chain(of::<FA_IR>());
    latin.chain(more).chain(other).collect()
});

static FIRST_NAMES: LazyLock<HashSet<String, QuickState>> = LazyLock::new(|| {
    fn of<L: Data>() -> impl Iterator<Item = String> {
        L::NAME_FIRST_NAME.iter().map(|name| name.to_lowercase())
    }
    let latin = of::<EN>().chain(of::<DE_DE>()).chain(of::<FR_FR>()).chain(of::<IT_IT>()).chain(of::<NL_NL>());
    latin.chain(of::<PT_PT>()).chain(of::<PT_BR>()).chain(of::<TR_TR>()).filter(|name| name.len() > 2).collect()
});

/// Whether `word` is a listed first or last name.
pub fn is_name(word: &str) -> bool {
    lowered(word, |lower| KNOWN.contains(lower))
}

/// Whether `word` is a listed first name.
pub fn is_first_name(word: &str) -> bool {
    lowered(word, |lower| FIRST_NAMES.contains(lower))
}

/// Uses a word in lower case, without an allocation for most.
pub fn lowered<T>(word: &str, with: impl FnOnce(&str) -> T) -> T {
    let mut buffer = [0; 48];
    if word.is_ascii()
        && let Some(lower) = buffer.get_mut(..word.len())
    {
        lower.copy_from_slice(word.as_bytes());
        lower.make_ascii_lowercase();
        if let Ok(lower) = std::str::from_utf8(lower) {
            return with(lower);
        }
    }
    with(&word.to_lowercase())
}

impl Words {
    /// By the language's name, also as `de_DE` or `de-DE`.
    pub fn find(name: &str) -> Option<&'static Self> {
        let name = name.to_lowercase().replace('-', "_");
        let by = |name: &str| ALL.iter().find(|(own, _)| *own == name).map(|(_, words)| &**words);
        by(&name).or_else(|| by(name.split('_').next().unwrap_or_default()))
    }

    /// English.
    pub fn default_language() -> &'static Self {
        &ALL[0].1
    }

    /// Of all languages.
    pub fn names() -> Vec<&'static str> {
        ALL.iter().map(|(name, _)| *name).collect()
    }

    fn of<L: Data>() -> Self {
        Self {
            first: Invented::from(L::NAME_FIRST_NAME),
            last: Invented::from(L::NAME_LAST_NAME),
            city_prefix: L::ADDRESS_CITY_PREFIX,
            city_suffix: L::ADDRESS_CITY_SUFFIX,
            street_suffix: L::ADDRESS_STREET_SUFFIX,
            street: L::ADDRESS_STREET_TPL,
            company_suffix: L::COMPANY_SUFFIX,
        }
    }
}

impl Invented {
    /// Cuts names after their first vowels; those without (other scripts) in the middle.
    fn from(names: &[&str]) -> Self {
        let (mut beginnings, mut ends) = (Vec::new(), Vec::new());
        for name in names.iter().filter(|name| !name.contains(char::is_whitespace)) {
            let (beginning, end) = cut(name);
            beginnings.push(beginning.to_owned());
            if end.chars().count() >= if end.is_ascii() { 3 } else { 1 } {
                ends.push(end.to_owned());
            }
        }
        for list in [&mut beginnings, &mut ends] {
            list.sort_unstable();
            list.dedup();
        }
        if ends.is_empty() {
            ends.clone_from(&beginnings);
        }
        let (beginnings, ends) = (List::new(&beginnings), List::new(&ends));
        let (mut listed, (heads, tails)) = (vec![0; PAIRS / 64], (beginnings.places(), ends.places()));
        for name in KNOWN.iter() {
            for (at, _) in name.char_indices().skip(1) {
                let (Some(heads), Some(tails)) = (heads.get(&name[..at]), tails.get(&name[at..])) else { continue };
                for bit in heads.iter().flat_map(|head| tails.iter().map(|tail| pair(*head, *tail))) {
                    listed[bit / 64] |= 1 << (bit % 64);
                }
            }
        }
        Self { beginnings, ends, listed }
    }

    /// Whether a pair may be a listed name; no means no.
    fn may_be_listed(&self, beginning: usize, end: usize) -> bool {
        let bit = pair(beginning, end);
        self.listed.get(bit / 64).is_none_or(|bits| bits >> (bit % 64) & 1 == 1)
    }

    /// A name that is in no list.
    pub fn invent(&self, draw: &mut Draw, out: &mut String) {
        let start = out.len();
        for _ in 0..8 {
            out.truncate(start);
            let beginning = draw.below(self.beginnings.len() as u64) as usize;
            let end = draw.below(self.ends.len() as u64) as usize;
            out.push_str(self.beginnings.get(beginning));
            out.push_str(self.ends.get(end));
            if !self.may_be_listed(beginning, end) || !is_name(&out[start..]) {
                return;
            }
        }
    }
}

fn cut(name: &str) -> (&str, &str) {
    let vowel = |c: char| "aeiouyäöüáàâãéèêëíìîïóòôõúùûıøåæ".contains(c.to_lowercase().next().unwrap_or(c));
    let mut seen = false;
    for (at, c) in name.char_indices() {
        if vowel(c) {
            seen = true;
        } else if seen {
            return name.split_at(at);
        }
    }
    let middle = name.chars().count().div_ceil(2);
    name.split_at(name.char_indices().nth(middle).map_or(name.len(), |(at, _)| at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use crate::prf::Prf;

    #[test]
    fn names_are_cut_after_their_first_vowels() {
        assert_eq!(cut("Margaret"), ("Ma", "rgaret"));
        assert_eq!(cut("Joseph"), ("Jo", "seph"));
        assert_eq!(cut("佐藤"), ("佐", "藤"));
    }

    #[test]
    fn no_listed_name_is_overlooked() {
        for (language, words) in &ALL {
            for names in [&words.first, &words.last] {
                let mut seen = 0;
                for beginning in 0..names.beginnings.len() {
                    for end in (beginning % 7..names.ends.len()).step_by(7) {
                        let word = format!("{}{}", names.beginnings.get(beginning), names.ends.get(end));
                        if is_name(&word) {
                            seen += 1;
                            assert!(names.may_be_listed(beginning, end), "{language}: {word}");
                        }
                    }
                }
                assert!(seen > 0, "{language}");
            }
        }
    }

    #[test]
    fn every_language_invents_names_that_are_in_no_list() {
        let prf = Prf::new(&Key::from_bytes([1; 32]), "name");
        for (language, words) in &ALL {
            for names in [&words.first, &words.last] {
                let mut different = HashSet::new();
                for number in 0u32..200 {
                    let mut out = String::new();
                    names.invent(&mut prf.draw(&number.to_le_bytes()), &mut out);
                    assert!(!out.is_empty(), "{language}");
                    assert!(!is_name(&out), "{language}: {out}");
                    different.insert(out);
                }
                assert!(different.len() > 50, "{language}: {}", different.len());
            }
        }
        assert!(Words::find("de-DE").is_some() && Words::find("pt_BR").is_some() && Words::find("xx").is_none());
    }
}
