//! A sandbox as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sloplet_engine::life::{NewSandbox, OnTimeout, Record, State, Values, VolumeMount};
use sloplet_policy::report::{Kernel, Startup, Summary, Virtualization};
use sloplet_policy::spec::is_variable;
use sloplet_policy::{Bind, Budget, Cpus, DataMount, Isolation, Limits, Network, Span, Spec};
use utoipa::ToSchema;

use super::extract::{object, optional_unit, said, unit};
use super::reach::{self, NetworkRules, NewSecret, Spending};
use crate::auth::{Access, Scope};
use crate::error::ApiError;

/// How long a sandbox lives unless that is said.
const USUAL_TIMEOUT: Duration = Duration::from_secs(3600);

/// Most metadata entries.
const METADATA: usize = 64;

/// Most variables.
const VARIABLES: usize = 1024;

/// A sandbox to be made. Everything may be left out.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CreateSandbox {
    /// What it starts from: `host`, a stored image, or a snapshot's name or id.
    #[schema(example = "host", max_length = 512)]
    pub image: Option<String>,
    /// A pool that it is to come from: what is left out here is as there. Without one, it comes from a pool that it fits, if
    /// there is a machine ready.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    pub pool: Option<String>,
    /// How strong the wall is.
    #[schema(value_type = Option<IsolationLevel>)]
    pub isolation: Option<Isolation>,
    /// Which wall, by its driver's name, where several are as strong.
    #[schema(pattern = "^[a-z][a-z0-9:-]{0,31}$")]
    pub driver: Option<String>,
    /// Memory of all processes together.
    #[schema(example = "512MiB", pattern = "^[0-9]{1,6}[KMGT]iB$")]
    pub memory: Option<String>,
    /// Processors, also fractions.
    #[schema(minimum = 0.01, maximum = 1024, example = 1.0)]
    pub cpus: Option<f64>,
    /// Processes and threads at once.
    #[schema(minimum = 4, maximum = 4_194_304)]
    pub pids: Option<u32>,
    /// Bytes that may be written.
    #[schema(example = "1GiB", pattern = "^[0-9]{1,6}[KMGT]iB$")]
    pub disk: Option<String>,
    /// Files that may be made.
    #[schema(minimum = 64, maximum = 4_294_967_296i64)]
    pub inodes: Option<u64>,
    /// Variables of all its commands.
    #[schema(example = json!({"LANG": "C.UTF-8"}))]
    pub env: BTreeMap<String, String>,
    /// Where its commands start.
    #[schema(pattern = "^/[^\\x00]*$", example = "/tmp")]
    pub workdir: Option<String>,
    /// Who its commands run as: name, uid or uid:gid.
    #[schema(example = "user")]
    pub user: Option<String>,
    /// Its host name.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9-]{0,62}$")]
    pub hostname: Option<String>,
    /// Host folders shown inside; only for keys of the scope `admin`.
    #[schema(value_type = Vec<HostMount>)]
    pub mounts: Vec<Bind>,
    /// Files of the host that are shown inside after they were masked; only for keys of the scope `admin`.
    #[schema(value_type = Vec<MaskedFile>)]
    pub data: Vec<DataMount>,
    /// Devices of the host that it is shown, by their names in CDI, or `all`; only for keys of the scope `admin`.
    #[schema(example = json!([]), max_items = 64)]
    pub gpu: Vec<String>,
    /// Asynchronous I/O of the old kind (`io_setup`), which one number bounds for the whole host: only with `best_effort`, and for
    /// keys of the scope `admin`.
    pub aio: bool,
    /// Start even if this host cannot enforce every limit.
    pub best_effort: bool,
    /// A name to find it by: up to 63 letters, digits, `-`, `_` and `.`.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", example = "my")]
    pub name: Option<String>,
    /// Anything to remember.
    pub metadata: BTreeMap<String, String>,
    /// How long it lives unless that is extended; an hour if left out, `null`: until it is removed.
    #[serde(deserialize_with = "said")]
    #[schema(value_type = Option<String>, example = "1h", pattern = "^[1-9][0-9]{0,4}(ms|s|m|h|d)$")]
    pub timeout: Option<Option<String>>,
    /// What happens then.
    #[schema(value_type = WhenOver)]
    pub on_timeout: OnTimeout,
    /// Whether traffic resumes it when it is paused.
    pub auto_resume: bool,
    /// It is paused when nobody used it for so long.
    #[schema(example = "15m", pattern = "^[1-9][0-9]{0,4}(ms|s|m|h|d)$")]
    pub idle_timeout: Option<String>,
    /// Volumes shown inside.
    #[schema(value_type = Vec<MountedVolume>)]
    pub volumes: Vec<VolumeMount>,
    /// What it may reach; nothing unless said.
    #[schema(value_type = NetworkRules)]
    #[serde(deserialize_with = "object")]
    pub network: Network,
    /// Secrets that are put into its requests.
    pub secrets: Vec<NewSecret>,
    /// What it may use up.
    #[schema(value_type = Spending)]
    #[serde(deserialize_with = "object")]
    pub budget: Budget,
}

/// How strong a wall is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum IsolationLevel {
    /// A confined process tree on the host's own root.
    Process,
    /// Namespaces.
    Container,
    /// A kernel in user space.
    Gvisor,
    /// A virtual machine.
    Vm,
}

/// What happens when a sandbox's time is over.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenOver {
    /// It is destroyed.
    Destroy,
    /// It is paused.
    Pause,
    /// It is stopped: its files are kept, its processes are not.
    Stop,
}

/// A host file or folder shown inside.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct HostMount {
    /// On the host; absolute.
    #[schema(pattern = "^/[^\\x00]*$")]
    pub from: String,
    /// Inside; absolute.
    #[schema(pattern = "^/[^\\x00]*$")]
    pub to: String,
    /// Whether changes inside reach the host.
    #[serde(default)]
    pub writable: bool,
    /// Whether Unix sockets and FIFOs may lie in it: they carry data between inside and the host, whatever the network is.
    #[serde(default)]
    pub sockets: bool,
    /// Whether changes may also reach what configures the host: sloplet.toml, .git/hooks and the like.
    #[serde(default)]
    pub unguarded: bool,
}

/// A file of the host whose masked copy is shown inside, read-only.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MaskedFile {
    /// The original, on the host; absolute.
    #[schema(pattern = "^/[^\\x00]*$")]
    pub from: String,
    /// Where its copy is inside; absolute.
    #[schema(pattern = "^/[^\\x00]*$")]
    pub to: String,
    /// The rules, on the host: what is done with each column; absolute.
    #[schema(pattern = "^/[^\\x00]*$")]
    pub mask: String,
    /// The key that the fakes come from, on the host; the server's own if left out.
    #[schema(pattern = "^/[^\\x00]*$")]
    pub key: Option<String>,
    /// The table of the rules, if the file's name does not say it.
    pub table: Option<String>,
}

/// A volume shown inside.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MountedVolume {
    /// The volume's name or id.
    pub volume: String,
    /// Where inside; absolute.
    #[schema(pattern = "^/[^\\x00]*$")]
    pub path: String,
    /// Not to be changed; several sandboxes may then have it at once.
    #[serde(default)]
    pub read_only: bool,
}

impl CreateSandbox {
    /// What the engine is asked for; what is left out is as in `usual`.
    pub fn into_request(
        self,
        usual: &Spec,
        access: &Access,
        idempotency_key: Option<String>,
    ) -> Result<(NewSandbox, Values), ApiError> {
        let (secrets, values) = reach::secrets(self.secrets)?;
        if !self.mounts.is_empty() || !self.data.is_empty() || !self.gpu.is_empty() || self.aio {
            access.require(Scope::Admin)?;
        }
        if let Some(mount) = self.mounts.iter().find(|mount| !mount.from.is_absolute()) {
            let message = format!("mounts: '{}' must be an absolute path of the host", mount.from.display());
            return Err(ApiError::bad_request(message));
        }
        let paths = self.data.iter().flat_map(|data| [Some(&data.from), Some(&data.mask), data.key.as_ref()]);
        if let Some(path) = paths.flatten().find(|path| !path.is_absolute()) {
            let message = format!("data: '{}' must be an absolute path of the host", path.display());
            return Err(ApiError::bad_request(message));
        }
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        check_metadata(&self.metadata)?;
        if self.env.len() > VARIABLES {
            return Err(ApiError::bad_request(format!("at most {VARIABLES} variables can be given")));
        }
        let bounds = &usual.limits;
        let limits = Limits {
            memory: optional_unit("memory", self.memory.as_ref())?.unwrap_or(bounds.memory),
            cpus: match self.cpus {
                Some(cpus) => unit::<Cpus>("cpus", &cpus.to_string())?,
                None => bounds.cpus,
            },
            pids: self.pids.unwrap_or(bounds.pids),
            disk: optional_unit("disk", self.disk.as_ref())?.unwrap_or(bounds.disk),
            inodes: self.inodes.or(bounds.inodes.filter(|_| self.disk.is_none())),
            ..bounds.clone()
        };
        let (isolation, driver) = match (self.isolation, self.driver) {
            (None, None) => (usual.isolation, usual.driver.clone()),
            (isolation, driver) => (isolation.unwrap_or_default(), driver),
        };
        let spec = Spec {
            image: self.image.clone().unwrap_or_else(|| usual.image.clone()),
            isolation,
            driver,
            limits,
            mounts: self.mounts,
            guards: Vec::new(),
            data: self.data,
            env: variables(&self.env)?,
            workdir: self.workdir.map(Into::into),
            user: self.user.or_else(|| usual.user.clone()),
            hostname: self.hostname.unwrap_or_else(|| usual.hostname.clone()),
            gpu: self.gpu,
            devices: usual.devices.clone(),
            aio: self.aio,
            best_effort: self.best_effort || usual.best_effort,
            network: self.network,
            secrets,
            headers: Vec::new(),
            budget: self.budget,
            weaken: None,
        };
        spec.check().map_err(|error| ApiError::bad_request(error.to_string()))?;
        // The hosts of its secrets can be reached, too.
        reach::check(&spec.reach(), access)?;
        let request = NewSandbox {
            spec,
            template: self.image,
            name: self.name,
            metadata: self.metadata,
            timeout: life(self.timeout)?,
            on_timeout: self.on_timeout,
            auto_resume: self.auto_resume,
            idle_timeout: optional_unit::<Span>("idle_timeout", self.idle_timeout.as_ref())?.map(|span| span.0),
            volumes: self.volumes,
            idempotency_key,
            pool: self.pool,
            ..NewSandbox::default()
        };
        Ok((request, values))
    }
}

/// What was said about a time-out; an hour if nothing was.
pub fn life(said: Option<Option<String>>) -> Result<Option<Duration>, ApiError> {
    match said {
        None => Ok(Some(USUAL_TIMEOUT)),
        Some(None) => Ok(None),
        Some(Some(text)) => Ok(Some(unit::<Span>("timeout", &text)?.0)),
    }
}

/// `NAME=value`, each.
pub fn variables(env: &BTreeMap<String, String>) -> Result<Vec<String>, ApiError> {
    env.iter()
        .map(|(name, value)| {
            if !is_variable(name) || value.contains('\0') {
                let name: String = name.escape_debug().take(100).collect();
                return Err(ApiError::bad_request(format!("'{name}' cannot name a variable")));
            }
            Ok(format!("{name}={value}"))
        })
        .collect()
}

/// Refuses more metadata than anybody needs to remember.
pub fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), ApiError> {
    if metadata.len() > METADATA {
        return Err(ApiError::bad_request(format!("at most {METADATA} metadata can be given")));
    }
    Ok(())
}

/// Refuses names that could not be typed, or be taken for an option or a path.
pub fn check_name(name: &str) -> Result<(), ApiError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if starts && name.len() <= 63 && name.bytes().all(fits) {
        return Ok(());
    }
    let advice = "use up to 63 letters, digits, '-', '_' and '.', and start with a letter or digit";
    Err(ApiError::bad_request(format!("'{}' is not a name: {advice}", name.escape_default())))
}

/// Where a sandbox is in its life.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// Being made.
    Creating,
    /// Its processes run.
    Running,
    /// Its processes are frozen in place.
    Paused,
    /// Its processes are gone, its files are kept; resuming starts it afresh on them.
    Stopped,
    /// It ended by itself; only the reason is kept.
    Failed,
}

/// A sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub struct Sandbox {
    /// Letters and digits.
    pub id: String,
    /// A name to find it by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it is in its life.
    #[schema(value_type = SandboxState)]
    pub state: State,
    /// What it started from.
    pub image: String,
    /// How strong the wall is.
    #[schema(value_type = IsolationLevel)]
    pub isolation: Isolation,
    /// Which wall, if it was chosen by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// What its wall is; told where one sandbox is made or asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall: Option<Wall>,
    /// Memory of all processes together.
    pub memory: String,
    /// Processors.
    pub cpus: f64,
    /// Processes and threads at once.
    pub pids: u32,
    /// Bytes that may be written.
    pub disk: String,
    /// Variables of all its commands.
    pub env: BTreeMap<String, String>,
    /// Where its commands start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Who its commands run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Its host name.
    pub hostname: String,
    /// Devices of the host that it is shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu: Vec<String>,
    /// Anything to remember.
    pub metadata: BTreeMap<String, String>,
    /// What happens when its time is over.
    #[schema(value_type = WhenOver)]
    pub on_timeout: OnTimeout,
    /// Whether traffic resumes it when it is paused.
    pub auto_resume: bool,
    /// It is paused when nobody used it for so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<String>,
    /// Volumes shown inside.
    #[schema(value_type = Vec<MountedVolume>)]
    pub volumes: Vec<VolumeMount>,
    /// What it may reach.
    #[schema(value_type = NetworkRules)]
    pub network: Network,
    /// Names of its secrets.
    pub secrets: Vec<String>,
    /// What it may use up.
    #[schema(value_type = Spending)]
    pub budget: Budget,
    /// When it was asked for, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it last started or resumed.
    pub started_ms: u64,
    /// When its time is over; absent if it lives until it is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_ms: Option<u64>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Whoever shows it as `X-Access-Token` may use this one sandbox; not told to keys that may only look.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// A wall in a few words.
#[derive(Debug, Serialize, ToSchema)]
pub struct Wall {
    /// The driver's name.
    pub driver: String,
    /// How strong it is.
    #[schema(value_type = IsolationLevel)]
    pub isolation: Isolation,
    /// Whose kernel programs run on: `own` or `shared` with the host.
    #[schema(value_type = String, example = "shared")]
    pub kernel: Kernel,
    /// What runs its machine: `hardware`, `emulation`, or `none` where it is no machine.
    #[schema(value_type = String, example = "none")]
    pub virtualization: Virtualization,
    /// Whether processes can be saved with their memory.
    pub memory_snapshot: bool,
    /// Whether what it writes is bounded.
    pub disk_bound: bool,
    /// How long a start takes: `milliseconds`, `tenths` of a second, or `seconds`.
    #[schema(value_type = String, example = "milliseconds")]
    pub startup: Startup,
}

impl From<Summary> for Wall {
    fn from(summary: Summary) -> Self {
        let Summary { driver, isolation, kernel, virtualization, memory_snapshot, disk_bound, startup } = summary;
        Self { driver, isolation, kernel, virtualization, memory_snapshot, disk_bound, startup }
    }
}

impl Sandbox {
    /// As this key sees it.
    pub fn of(record: Record, access: &Access) -> Self {
        let Record { id, state, request, token, created_ms, started_ms, ends_ms, failure, .. } = record;
        let spec = request.spec;
        let variable = |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            id,
            name: request.name,
            state,
            image: request.template.unwrap_or(spec.image),
            isolation: spec.isolation,
            driver: spec.driver,
            wall: None,
            memory: spec.limits.memory.to_string(),
            cpus: spec.limits.cpus.into(),
            pids: spec.limits.pids,
            disk: spec.limits.disk.to_string(),
            env: spec.env.iter().filter_map(variable).collect(),
            workdir: spec.workdir.map(|path| path.display().to_string()),
            user: spec.user,
            hostname: spec.hostname,
            gpu: spec.gpu,
            metadata: request.metadata,
            on_timeout: request.on_timeout,
            auto_resume: request.auto_resume,
            idle_timeout: request.idle_timeout.map(|time| Span(time).to_string()),
            volumes: request.volumes,
            network: spec.network,
            secrets: spec.secrets.into_iter().map(|secret| secret.name).collect(),
            budget: spec.budget,
            created_ms,
            started_ms,
            ends_ms,
            failure,
            token: access.token(&token),
        }
    }
}
