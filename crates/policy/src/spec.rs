//! The description of one sandbox.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bind::{Bind, BindError};
use crate::budget::{Budget, BudgetError};
use crate::data::{DataMount, MOST};
use crate::devices::Devices;
use crate::headers::{HeaderError, HeaderRule};
use crate::limits::{LimitError, Limits};
use crate::network::{Network, NetworkError};
use crate::secret::{SecretError, SecretRule};
use crate::units::ByteSize;

/// How strong the wall is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// A confined process tree on the host's own root.
    Process,
    /// Namespaces: a root, a network, users and processes of its own on the host's kernel.
    #[default]
    Container,
    /// A kernel in user space between the sandbox and the host's.
    Gvisor,
    /// A virtual machine.
    Vm,
}

impl Isolation {
    /// All levels, weakest first.
    pub const ALL: [Self; 4] = [Self::Process, Self::Container, Self::Gvisor, Self::Vm];

    /// Its name in flags, files and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Container => "container",
            Self::Gvisor => "gvisor",
            Self::Vm => "vm",
        }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isolation {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::ALL.into_iter().find(|level| level.name() == text).ok_or_else(|| SpecError::Isolation(text.to_owned()))
    }
}

/// Most devices.
const DEVICES: usize = 64;

/// One sandbox, the same for every front end and every driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// What it starts from: `host`, a stored image, or a path.
    pub image: String,
    /// How strong the wall is.
    pub isolation: Isolation,
    /// Which wall of several that are as strong, by its name; it then says how strong it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// What bounds it.
    #[serde(flatten)]
    pub limits: Limits,
    /// Host folders shown inside.
    pub mounts: Vec<Bind>,
    /// What keeps writable mounts from changing what configures the host; the engine finds it.
    #[serde(skip)]
    pub guards: Vec<Bind>,
    /// Files shown inside after they were masked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<DataMount>,
    /// Environment of its commands, `NAME=value`; nothing is taken from the host.
    pub env: Vec<String>,
    /// Where its commands start.
    pub workdir: Option<PathBuf>,
    /// Who its commands run as: `name`, `uid` or `uid:gid` inside.
    pub user: Option<String>,
    /// Its host name.
    pub hostname: String,
    /// Devices of the host that it is shown, by their names in CDI; none unless said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu: Vec<String>,
    /// What the engine found for them.
    #[serde(skip)]
    pub devices: Devices,
    /// Asynchronous I/O of the old kind (`io_setup`), which one number bounds for the whole host: only with `best_effort`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub aio: bool,
    /// Start even if a limit cannot be enforced on this host.
    pub best_effort: bool,
    /// What it may reach; nothing unless said.
    pub network: Network,
    /// Secrets that are put into its requests on the way out, and never enter it.
    pub secrets: Vec<SecretRule>,
    /// Headers that are set on its requests on the way out. In no list of what it may reach: values may be secrets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderRule>,
    /// What it may use up.
    pub budget: Budget,
    /// A protection that a test takes away; part of no file and no request.
    #[serde(skip)]
    pub weaken: Option<&'static str>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            image: "host".into(),
            isolation: Isolation::default(),
            driver: None,
            limits: Limits::default(),
            mounts: Vec::new(),
            guards: Vec::new(),
            data: Vec::new(),
            env: Vec::new(),
            workdir: None,
            user: None,
            hostname: "sloplet".into(),
            gpu: Vec::new(),
            devices: Devices::default(),
            aio: false,
            best_effort: false,
            network: Network::default(),
            secrets: Vec::new(),
            headers: Vec::new(),
            budget: Budget::default(),
            weaken: None,
        }
    }
}

/// A description that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No such level.
    #[error("unknown isolation '{0}': choose one of process, container, gvisor, vm")]
    Isolation(String),
    /// A limit is off.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A mount is off.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Too much of it.
    #[error("a sandbox can have at most {MOST} files that are masked on the way in, not {0}")]
    Data(usize),
    /// Not a variable.
    #[error("'{0}' is not of the form NAME=value, with a name without spaces and at most {VARIABLE} bytes")]
    Env(String),
    /// Not a user.
    #[error("'{0}' cannot be a user: give a name, a number, or number:number")]
    UserName(String),
    /// Not a host name.
    #[error("'{0}' is not a host name: use up to 63 letters, digits and hyphens")]
    Hostname(String),
    /// A network rule is off.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A secret is off.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A header is off.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Two secrets of one name, or a variable of the same name.
    #[error("'{0}' is given twice: as a secret and as another secret or a variable")]
    SecretTwice(String),
    /// The budget is off.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// Not the name of a device, or too many of them.
    #[error("'{0}' cannot name a device: write vendor/class=name, a name alone, or 'all'; at most {DEVICES} of them")]
    Gpu(String),
    /// Nobody inside can have that id.
    #[error("user '{0}': ids inside are 0 to 65535")]
    User(String),
    /// Not an absolute path.
    #[error("working directory '{0}' must be an absolute path inside the sandbox")]
    Workdir(String),
}

impl Spec {
    /// All that is shown of the host, in the order in which it is mounted.
    pub fn shown(&self) -> impl Iterator<Item = &Bind> + Clone {
        self.mounts.iter().chain(&self.guards)
    }

    /// Whether it needs a way out at all. Without one, there is nothing that could be reached.
    pub fn reaches_out(&self) -> bool {
        !self.network.is_nothing() || !self.secrets.is_empty()
    }

    /// Whether the host reads and changes some of its requests, so that its programs must trust the host's word for others'.
    pub fn is_read_along(&self) -> bool {
        !self.secrets.is_empty() || !self.headers.is_empty() || self.budget.counts_calls()
    }

    /// What it may reach: what the network rules say, and the hosts that its secrets are for.
    pub fn reach(&self) -> Network {
        let mut network = self.network.clone();
        let hosts = self.secrets.iter().flat_map(|secret| secret.hosts.iter().map(move |host| (secret, host)));
        for (secret, host) in hosts {
            let usual: &[u16] = if secret.http { &[443, 80] } else { &[443] };
            let ports = host.port().map_or(usual.to_vec(), |port| vec![port]);
            let star = if host.is_below() { "*." } else { "" };
            // A host pattern is a rule without a port: it was checked when it was read.
            let rules = ports.iter().filter_map(|port| format!("{star}{}:{port}", host.name()).parse().ok());
            network.allow.extend(rules.collect::<Vec<_>>());
        }
        if let Some(bytes) = self.budget.egress_bytes {
            let tighter = |limit: Option<ByteSize>| Some(limit.map_or(bytes, |limit| limit.min(bytes)));
            network.limits.bytes_up = tighter(network.limits.bytes_up);
            network.limits.bytes_down = tighter(network.limits.bytes_down);
        }
        network
    }

    /// Whether a test has taken this protection away. Never in a release build.
    pub fn lacks(&self, protection: &str) -> bool {
        cfg!(debug_assertions) && self.weaken == Some(protection)
    }

    /// Refuses what makes no sense, before anything is made.
    pub fn check(&self) -> Result<(), SpecError> {
        self.limits.check()?;
        self.mounts.iter().try_for_each(Bind::check)?;
        self.data.iter().try_for_each(DataMount::check)?;
        if self.data.len() > MOST {
            return Err(SpecError::Data(self.data.len()));
        }
        for variable in &self.env {
            let valid = variable.split_once('=').is_some_and(|(name, _)| is_variable(name));
            if !valid || variable.contains('\0') || variable.len() > VARIABLE {
                let name = variable.split('=').next().unwrap_or_default();
                return Err(SpecError::Env(name.escape_debug().take(100).collect()));
            }
        }
        let odd = |user: &&String| user.len() > 256 || user.contains(char::is_control);
        if let Some(user) = self.user.as_ref().filter(odd) {
            return Err(SpecError::UserName(user.escape_debug().take(100).collect()));
        }
        self.network.check()?;
        self.budget.check()?;
        HeaderRule::check_all(&self.headers)?;
        let names = self.env.iter().filter_map(|variable| variable.split_once('=')).map(|(name, _)| name);
        let mut names: std::collections::HashSet<&str> = names.collect();
        for secret in &self.secrets {
            secret.check()?;
            if !names.insert(&secret.name) {
                return Err(SpecError::SecretTwice(secret.name.clone()));
            }
        }
        let name = self.hostname.as_bytes();
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
        if name.is_empty() || name.len() > 63 || name[0] == b'-' || !name.iter().all(allowed) {
            return Err(SpecError::Hostname(self.hostname.clone()));
        }
        let named =
            |name: &str| !name.is_empty() && name.len() <= 256 && name.bytes().all(|byte| byte.is_ascii_graphic());
        if let Some(name) = self.gpu.iter().find(|name| !named(name)).or(self.gpu.get(DEVICES)) {
            return Err(SpecError::Gpu(name.escape_debug().take(100).collect()));
        }
        let beyond = |id: &str| id.parse::<u64>().is_ok_and(|id| id > u64::from(u16::MAX));
        if let Some(user) = self.user.as_ref().filter(|user| user.split(':').any(beyond)) {
            return Err(SpecError::User(user.clone()));
        }
        match &self.workdir {
            Some(path) if !path.is_absolute() || path.as_os_str().as_encoded_bytes().contains(&0) => {
                Err(SpecError::Workdir(path.display().to_string().escape_debug().to_string()))
            }
            _ => Ok(()),
        }
    }
}

/// Bytes of a variable, name and value: what Linux takes at most.
const VARIABLE: usize = 128 * 1024 - 1;

/// Whether a variable can be called this. Shells take fewer names than programs do.
pub fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(|letter: char| letter == '=' || letter.is_whitespace() || letter.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_sound() {
        Spec::default().check().unwrap();
    }

    #[test]
    fn nonsense_is_refused_before_anything_is_made() {
        let broken: [fn(&mut Spec); 15] = [
            |s| s.user = Some("0:70000".into()),
            |s| s.env = vec!["A B=1".into()],
            |s| s.env = vec![format!("A={}", "x".repeat(VARIABLE))],
            |s| s.user = Some("a\nb".into()),
            |s| s.workdir = Some("/a\0b".into()),
            |s| s.limits.disk = crate::ByteSize(1 << 45),
            |s| s.gpu = vec!["a b".into()],
            |s| s.gpu = vec!["all".into(); 65],
            |s| s.env = vec!["NOVALUE".into()],
            |s| s.hostname = "a b".into(),
            |s| s.workdir = Some("relative".into()),
            |s| s.limits.pids = 1,
            |s| s.limits.pids = 4_194_305,
            |s| s.limits.inodes = Some(1 << 32),
            |s| s.limits.memory = crate::ByteSize(1),
        ];
        for (case, breaks) in broken.iter().enumerate() {
            let mut spec = Spec::default();
            breaks(&mut spec);
            assert!(spec.check().is_err(), "case {case}");
        }
    }

    #[test]
    fn a_spec_survives_json() {
        let spec = Spec { env: vec!["A=b".into()], ..Spec::default() };
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&text).unwrap(), spec);
    }
}
