//! What models cost. A built-in list, and a file of the operator's that wins over it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The built-in list.
pub const BUILT_IN: &str = include_str!("prices.toml");

/// Prices of models.
#[derive(Debug, Clone)]
pub struct Prices {
    /// The operator's come last.
    models: Vec<Arc<Price>>,
    /// What to name when one is missing.
    file: Option<PathBuf>,
    compute: Compute,
}

/// What a sandbox's own time costs, in dollars. Nothing, unless the operator's file says so under `[compute]`: only they
/// know what their machine costs them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compute {
    /// One processor that a sandbox may use, for an hour.
    pub cpu_hour: f64,
    /// One GiB of memory that a sandbox may use, for an hour.
    pub memory_gib_hour: f64,
}

/// The price of a model, in millionths of a dollar for a million tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Price {
    model: String,
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
    cache_write_1h: u64,
    /// The most tokens a call can hold.
    pub context: u64,
    /// The most tokens an answer can have.
    pub max_output: u64,
    /// The most tokens an image can count as.
    pub image: u64,
    long: Option<Long>,
}

/// Calls with more input than this cost more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Long {
    above: u64,
    input_percent: u64,
    output_percent: u64,
}

/// Tokens of a call, as they are priced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// In, without those of the cache.
    pub input: u64,
    /// Out.
    pub output: u64,
    /// Read from the cache.
    pub cache_read: u64,
    /// Written to the cache for some minutes.
    pub cache_write: u64,
    /// Written to the cache for an hour or longer.
    pub cache_write_1h: u64,
}

impl Usage {
    /// All of them.
    pub fn tokens(&self) -> u64 {
        let cached = self.cache_read.saturating_add(self.cache_write).saturating_add(self.cache_write_1h);
        self.input.saturating_add(self.output).saturating_add(cached)
    }
}

/// A price file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PriceError {
    /// It could not be read.
    #[error("price file {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not of the form.
    #[error("price file: {0}")]
    Form(Box<toml::de::Error>),
    /// A value that no price has.
    #[error("price file: {field} of model '{model}' must be a number from 0 to 1000000")]
    Value {
        /// Of which model.
        model: String,
        /// Which field.
        field: &'static str,
    },
    /// The same for a sandbox's time.
    #[error("price file: {0} of [compute] must be a number from 0 to 1000000")]
    Compute(&'static str),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    model: Vec<Entry>,
    #[serde(default)]
    compute: Compute,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    model: String,
    input: f64,
    output: f64,
    cache_read: Option<f64>,
    cache_write: Option<f64>,
    cache_write_1h: Option<f64>,
    context: u64,
    max_output: u64,
    image: Option<u64>,
    long_above: Option<u64>,
    long_input_percent: Option<u64>,
    long_output_percent: Option<u64>,
}

impl Prices {
    /// The built-in ones.
    pub fn built_in() -> Result<Self, PriceError> {
        let (models, compute) = read(BUILT_IN)?;
        Ok(Self { models, file: None, compute })
    }

    /// The built-in ones, and those of a file, which win. A file that does not exist is an empty one.
    pub fn load(path: &Path) -> Result<Self, PriceError> {
        let mut prices = Self::built_in()?;
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let (models, compute) = read(&text)?;
                prices.models.extend(models);
                prices.compute = compute;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(PriceError::Read { path: path.to_owned(), source }),
        }
        prices.file = Some(path.to_owned());
        Ok(prices)
    }

    /// The price of a model: of the longest entry that fits, the last one.
    pub fn find(&self, model: &str) -> Option<Arc<Price>> {
        let fits = self.models.iter().filter(|price| price.is_for(model));
        fits.max_by_key(|price| price.model.trim_end_matches('*').len()).cloned()
    }

    /// What a sandbox's own time costs.
    pub fn compute(&self) -> Compute {
        self.compute
    }

    /// Where a missing price is to be written.
    pub fn file(&self) -> String {
        self.file.as_ref().map_or_else(|| "the price file".to_owned(), |path| path.display().to_string())
    }
}

fn read(text: &str) -> Result<(Vec<Arc<Price>>, Compute), PriceError> {
    let file: File = toml::from_str(text).map_err(|error| PriceError::Form(Box::new(error)))?;
    let Compute { cpu_hour, memory_gib_hour } = file.compute;
    for (field, dollars) in [("cpu_hour", cpu_hour), ("memory_gib_hour", memory_gib_hour)] {
        if !(0.0..=1e6).contains(&dollars) {
            return Err(PriceError::Compute(field));
        }
    }
    let models: Result<_, PriceError> = file.model.into_iter().map(|entry| entry.price().map(Arc::new)).collect();
    Ok((models?, file.compute))
}

impl Entry {
    fn price(self) -> Result<Price, PriceError> {
        let money = |field: &'static str, dollars: f64| match (0.0..=1e6).contains(&dollars) {
            true => Ok((dollars * 1e6).round() as u64),
            false => Err(PriceError::Value { model: self.model.clone(), field }),
        };
        let input = money("input", self.input)?;
        let or_input = |field, dollars: Option<f64>| dollars.map_or(Ok(input), |dollars| money(field, dollars));
        let long = self.long_above.map(|above| Long {
            above,
            input_percent: self.long_input_percent.unwrap_or(100),
            output_percent: self.long_output_percent.unwrap_or(100),
        });
        Ok(Price {
            input,
            output: money("output", self.output)?,
            cache_read: or_input("cache_read", self.cache_read)?,
            cache_write: or_input("cache_write", self.cache_write)?,
            cache_write_1h: or_input("cache_write_1h", self.cache_write_1h.or(self.cache_write))?,
            context: self.context,
            max_output: self.max_output,
            image: self.image.unwrap_or(8000),
            long,
            model: self.model,
        })
    }
}

impl Price {
    /// A name means itself and its dated versions. Not every name that begins with it: `x-pro` is dearer than `x`.
    fn is_for(&self, model: &str) -> bool {
        match self.model.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => model.strip_prefix(self.model.as_str()).is_some_and(is_version),
        }
    }

    /// What these tokens cost, rounded up to a millionth of a dollar.
    pub fn cost(&self, usage: &Usage) -> u64 {
        let read = usage.input.saturating_add(usage.cache_read);
        let read = read.saturating_add(usage.cache_write).saturating_add(usage.cache_write_1h);
        let (input, output) = match self.long {
            Some(long) if read > long.above => (long.input_percent, long.output_percent),
            _ => (100, 100),
        };
        let part = |tokens: u64, rate: u64, percent: u64| u128::from(tokens) * u128::from(rate) * u128::from(percent);
        let parts = [
            part(usage.input, self.input, input),
            part(usage.cache_read, self.cache_read, input),
            part(usage.cache_write, self.cache_write, input),
            part(usage.cache_write_1h, self.cache_write_1h, input),
            part(usage.output, self.output, output),
        ];
        let sum = parts.into_iter().fold(0u128, u128::saturating_add);
        u64::try_from(sum.div_ceil(100_000_000)).unwrap_or(u64::MAX)
    }
}

/// `-20250929`, `-2025-08-07`, `-0613`, `@20250929`, `-latest`, or nothing.
fn is_version(rest: &str) -> bool {
    let Some(version) = rest.strip_prefix(['-', '@']) else { return rest.is_empty() };
    let digits: String = version.chars().filter(|&c| c != '-').collect();
    version == "latest"
        || (digits.bytes().all(|byte| byte.is_ascii_digit())
            && matches!((digits.len(), version.len()), (4, 4) | (8, 8) | (8, 10)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input: u64, output: u64) -> Usage {
        Usage { input, output, ..Usage::default() }
    }

    #[test]
    fn a_name_means_its_versions_and_not_its_relatives() {
        let prices = Prices::built_in().unwrap();
        let found = |model: &str| prices.find(model).map(|price| price.model.clone());
        for (model, expected) in [
            ("claude-sonnet-4-5", Some("claude-sonnet-4-5")),
            ("claude-sonnet-4-5-20250929", Some("claude-sonnet-4-5")),
            ("claude-opus-4-20250514", Some("claude-opus-4")),
            ("gpt-5-2025-08-07", Some("gpt-5")),
            ("gpt-4-0613", Some("gpt-4")),
            ("gpt-4o-2024-05-13", Some("gpt-4o-2024-05-13")),
            ("gpt-5-pro", None),
            ("claude-opus-4-9", None),
            ("", None),
        ] {
            assert_eq!(found(model).as_deref(), expected, "{model}");
        }
    }

    #[test]
    fn costs_are_exact_and_rounded_up() {
        let prices = Prices::built_in().unwrap();
        let sonnet = prices.find("claude-sonnet-4-5").unwrap();
        assert_eq!(sonnet.cost(&usage(1000, 100)), 3000 + 1500);
        let cached = Usage { cache_read: 1000, cache_write: 1000, cache_write_1h: 1000, ..usage(0, 0) };
        assert_eq!(sonnet.cost(&cached), 300 + 3750 + 6000);
        assert_eq!(sonnet.cost(&usage(300_000, 1000)), 1_800_000 + 22_500);
        let embedding = prices.find("text-embedding-3-small").unwrap();
        assert_eq!(embedding.cost(&usage(1, 0)), 1);
        assert_eq!(sonnet.cost(&usage(u64::MAX, u64::MAX)), u64::MAX);
    }

    #[test]
    fn the_operators_file_wins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prices.toml");
        assert!(Prices::load(&path).unwrap().find("local").is_none());
        let text = "[[model]]\nmodel = 'gpt-5'\ninput = 1\noutput = 2\ncontext = 10\nmax_output = 5\n\
                    [[model]]\nmodel = 'my-*'\ninput = 0\noutput = 0\ncontext = 10\nmax_output = 5\n";
        std::fs::write(&path, text).unwrap();
        let prices = Prices::load(&path).unwrap();
        assert_eq!(prices.find("gpt-5").unwrap().cost(&usage(1_000_000, 0)), 1_000_000);
        assert_eq!(prices.find("my-own").unwrap().cost(&usage(1000, 1000)), 0);
        assert_eq!(prices.compute(), Compute::default());
        std::fs::write(&path, "[compute]\ncpu_hour = 0.05\n").unwrap();
        assert_eq!(Prices::load(&path).unwrap().compute(), Compute { cpu_hour: 0.05, memory_gib_hour: 0.0 });
        std::fs::write(&path, "[compute]\ncpu_hour = -1\n").unwrap();
        assert!(Prices::load(&path).is_err());
        for bad in ["[[model]]\nmodel='x'", "[[model]]\nmodel='x'\ninput=-1\noutput=1\ncontext=1\nmax_output=1", "x"] {
            std::fs::write(&path, bad).unwrap();
            assert!(Prices::load(&path).is_err(), "{bad}");
        }
    }
}
