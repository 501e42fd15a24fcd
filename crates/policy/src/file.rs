//! `sloplet.toml`: one file that describes a sandbox.
//!
//! ```toml
//! [sandbox]
//! image = "host"
//! memory = "512MiB"
//!
//! [protect]
//! hosts = ["db.internal"]
//! paths = ["~/.ssh"]
//! env = ["STRIPE_KEY"]
//! ```
//!
//! `[volumes]` are kept as they are, for those whose they are.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::bind::Bind;
use crate::budget::Budget;
use crate::data::DataMount;
use crate::network::Network;
use crate::radius::Radius;
use crate::secret::SecretTable;
use crate::spec::Isolation;
use crate::units::{ByteSize, Cpus, Span};

/// Its name in a working directory.
pub const NAME: &str = "sloplet.toml";

/// Most bytes of it.
pub const MOST: usize = 1 << 20;

/// What it says.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// What a sandbox is.
    pub sandbox: Sandbox,
    /// What it must never reach.
    pub protect: Radius,
    /// What it may reach.
    pub network: Network,
    /// Keys that are put in outside.
    pub secrets: BTreeMap<String, SecretTable>,
    /// What it may spend.
    pub budget: Budget,
    /// Files that are masked on the way in.
    pub data: Data,
    /// Folders that outlive it.
    pub volumes: toml::Table,
    /// Whether nobody has vouched for it: then it only tightens (see [`untrusted`](crate::untrusted)).
    #[serde(skip)]
    pub untrusted: bool,
}

/// `[sandbox]`: the same names as flags; what is not said stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sandbox {
    /// What it starts from.
    pub image: Option<String>,
    /// How strong the wall is.
    pub isolation: Option<Isolation>,
    /// Which wall, by its driver's name.
    pub driver: Option<String>,
    /// Memory of all its processes.
    pub memory: Option<ByteSize>,
    /// Processors.
    pub cpus: Option<Cpus>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Bytes it may write.
    pub disk: Option<ByteSize>,
    /// Files it may make.
    pub inodes: Option<u64>,
    /// How long it lives.
    pub timeout: Option<Span>,
    /// Output of one command.
    pub output: Option<ByteSize>,
    /// Host folders shown inside; relative to where the file is.
    pub mounts: Vec<Mount>,
    /// Variables of its commands, `NAME=value`.
    pub env: Vec<String>,
    /// Where its commands start.
    pub workdir: Option<PathBuf>,
    /// Who its commands run as.
    pub user: Option<String>,
    /// Its host name.
    pub hostname: Option<String>,
    /// Devices of the host that it is shown, by their names in CDI.
    pub gpu: Vec<String>,
    /// Asynchronous I/O of the old kind (`io_setup`).
    pub aio: Option<bool>,
    /// Start even if a limit cannot be enforced.
    pub best_effort: Option<bool>,
}

/// `[data]`: files that are masked on the way in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// Which; paths of the host are relative to where the file is.
    pub mounts: Vec<DataMount>,
    /// The key of those that name none.
    pub key: Option<PathBuf>,
}

/// A mount as text (`./src:/workspace:ro`) or as a table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Mount {
    /// As on the command line.
    Text(String),
    /// With names.
    Table(Bind),
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It makes no sense.
    #[error("{}: {message}", .path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
}

impl File {
    /// What the text of a file says; `path` is absolute. Paths of mounts in it are relative to its folder.
    pub fn at(path: &Path, text: &str) -> Result<Self, FileError> {
        let wrong = |message: String| FileError::Wrong { path: path.to_owned(), message };
        let mut file = Self::parse(text).map_err(&wrong)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        for mount in &mut file.sandbox.mounts {
            let mut bind = mount.bind().map_err(|error| wrong(error.to_string()))?;
            bind.from = folder.join(bind.from);
            *mount = Mount::Table(bind);
        }
        let key = file.data.key.take();
        for mount in &mut file.data.mounts {
            mount.check().map_err(|error| wrong(error.to_string()))?;
            let key = mount.key.take().or_else(|| key.clone());
            *mount = DataMount { key, ..mount.clone() }.below(folder);
        }
        Ok(file)
    }

    /// What a text says; what is wrong with it is told on one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            let message = in_words(error.message());
            let hint = match message.contains("unknown field") {
                true => " (the sections are sandbox, protect, network, secrets, budget, data, volumes)",
                false => "",
            };
            format!("{place}{message}{hint}")
        })
    }
}

/// What the parser says, on one line and without names of Rust's types.
fn in_words(message: &str) -> String {
    let word = |word: &str| match word.trim_end_matches(',') {
        "u8" | "u16" | "u32" | "u64" | "usize" | "i64" => "a whole number".to_owned(),
        _ => word.to_owned(),
    };
    let text = message.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    text.replace("expected a sequence", "expected a list, like [\"…\"]").replace("floating point", "number")
}

impl Mount {
    /// As a mount.
    pub fn bind(&self) -> Result<Bind, crate::bind::BindError> {
        match self {
            Self::Text(text) => text.parse(),
            Self::Table(bind) => bind.check().map(|()| bind.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_design_s_own_example_is_read() {
        let text = r#"
            [sandbox]
            image = "base"
            isolation = "container"
            memory = "512MiB"
            cpus = 1.0
            pids = 256
            disk = "2GiB"
            timeout = "30m"
            user = "user"
            mounts = ["./src:/workspace:rw"]
            [protect]
            hosts = ["db.internal", "api.stripe.com"]
            paths = ["~/.ssh", "~/.aws"]
            env = ["STRIPE_KEY"]
            [network]
            allow = ["api.anthropic.com:443", "*.githubusercontent.com"]
            [secrets]
            ANTHROPIC_API_KEY = { from = "env", hosts = ["api.anthropic.com"], header = "x-api-key" }
            [budget]
            usd = 5.0
            tokens = 2_000_000
            [data]
            mounts = [{ from = "customers.csv", to = "/data/customers.csv", mask = "masks/customers.toml" }]
            [volumes]
            repo = "/workspace"
        "#;
        let file = File::parse(text).unwrap();
        assert_eq!(file.sandbox.memory, Some(ByteSize::mib(512)));
        assert_eq!(file.protect.env, ["STRIPE_KEY"]);
        assert_eq!(file.network.allow[0].to_string(), "api.anthropic.com:443");
        assert_eq!(file.data.mounts[0].mask, Path::new("masks/customers.toml"));
        assert!(file.volumes.contains_key("repo") && file.secrets.contains_key("ANTHROPIC_API_KEY"));
        assert_eq!(file.budget.usd.map(|usd| usd.micros), Some(5_000_000));
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (text, part) in [
            ("[sandbox]\nmemroy = \"1GiB\"", "line 2"),
            ("[sandbox]\nmemory = \"lots\"", "like 512MiB"),
            ("[sandbox]\nmemory = 1.5", "line 2: '1.5' is not a size: a number without a unit is bytes"),
            ("[sandbox]\nmemory = true", "expected a number, or text like \"512MiB\""),
            ("[sandbox]\npids = 1.5", "line 2: invalid type: number `1.5`, expected a whole number"),
            ("[sandbox]\nenv = \"A=1\"", "expected a list"),
            ("[protected]\nenv = []", "the sections are"),
            ("[protect]\nfiles = []", "unknown field"),
            ("[sandbox", "line 1"),
        ] {
            let message = File::parse(text).unwrap_err();
            assert!(message.contains(part) && !message.contains('\n'), "{text}: {message}");
        }
    }

    #[test]
    fn mounts_are_relative_to_the_file() {
        let file = File::at(Path::new("/project/sloplet.toml"), "[sandbox]\nmounts = [\"src:/workspace\"]\n").unwrap();
        assert_eq!(file.sandbox.mounts[0].bind().unwrap().from, Path::new("/project/src"));
    }
}
