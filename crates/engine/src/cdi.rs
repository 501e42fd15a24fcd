//! Devices by name, as CDI (the Container Device Interface) describes them: JSON or YAML files of the host's administrator,
//! that say which device files, libraries and variables a device needs.
//!
//! What they name is trusted, for they are the administrator's own; what is not understood is refused, and never left out
//! silently. Hooks (programs that a runtime would run as root) are never run: what NVIDIA's do is done in another way, and
//! others are refused.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use sloplet_policy::devices::{Devices, Shown};
use yaml_rust2::{Yaml, YamlLoader};

/// Where specifications are, unless `SLOPLET_CDI` names other folders (with colons between them).
const FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// Largest file that is read.
const MAX_BYTES: u64 = 4 << 20;

/// What every sandbox has in its `/dev` already.
const TAKEN: [&str; 13] =
    ["null", "zero", "full", "random", "urandom", "tty", "pts", "shm", "fd", "stdin", "stdout", "stderr", "ptmx"];

/// Why a device cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CdiError {
    /// There is nothing to choose from.
    #[error(
        "this host has no devices for sandboxes: no CDI specification in {0} (for NVIDIA: nvidia-ctk cdi generate)"
    )]
    None(String),
    /// No device of that name.
    #[error("there is no device '{asked}': this host has {known}")]
    Unknown {
        /// What was asked for.
        asked: String,
        /// What there is.
        known: String,
    },
    /// Several devices of that name.
    #[error("'{asked}' may be any of {known}: use a whole name")]
    Several {
        /// What was asked for.
        asked: String,
        /// What it may be.
        known: String,
    },
    /// A file that cannot be used.
    #[error("{}: {problem}", .file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

#[derive(Debug, Deserialize)]
struct Specification {
    #[serde(rename = "cdiVersion")]
    version: String,
    kind: String,
    #[serde(default)]
    devices: Vec<Device>,
    #[serde(default, rename = "containerEdits")]
    edits: Edits,
}

#[derive(Debug, Deserialize)]
struct Device {
    name: Value,
    #[serde(default, rename = "containerEdits")]
    edits: Edits,
}

/// Fields that are not named here end up in `rest`, and are refused.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Edits {
    env: Vec<String>,
    device_nodes: Vec<Node>,
    mounts: Vec<Mount>,
    hooks: Vec<Hook>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    path: String,
    host_path: Option<PathBuf>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: PathBuf,
    container_path: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Hook {
    #[serde(default)]
    path: String,
    #[serde(default)]
    args: Vec<String>,
}

/// All specifications of this host.
#[derive(Debug)]
pub struct Cdi {
    folders: Vec<PathBuf>,
    found: Vec<(PathBuf, Specification)>,
}

impl Cdi {
    /// Reads those of the usual folders, or of those that `SLOPLET_CDI` names.
    pub fn of_host() -> Result<Self, CdiError> {
        Self::read(Self::folders_of_host())
    }

    /// The usual folders, or those that `SLOPLET_CDI` names.
    pub fn folders_of_host() -> Vec<PathBuf> {
        match std::env::var_os("SLOPLET_CDI").filter(|named| !named.is_empty()) {
            Some(named) => std::env::split_paths(&named).collect(),
            None => FOLDERS.iter().map(PathBuf::from).collect(),
        }
    }

    /// Reads those of some folders. A later folder's device replaces one of the same name.
    pub fn read(folders: Vec<PathBuf>) -> Result<Self, CdiError> {
        let mut found = Vec::new();
        for folder in &folders {
            let Ok(entries) = fs::read_dir(folder) else { continue };
            let known = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "json" || kind == "yaml");
            let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(known).collect();
            files.sort();
            for file in files {
                let wrong = |problem: String| CdiError::File { file: file.clone(), problem };
                let specification = read(&file).map_err(wrong)?;
                found.push((file, specification));
            }
        }
        Ok(Self { folders, found })
    }

    /// The whole names of all devices.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.devices().map(|(specification, device)| whole(specification, device)).collect();
        names.sort();
        names.dedup();
        names
    }

    fn devices(&self) -> impl Iterator<Item = (&Specification, &Device)> {
        self.found.iter().flat_map(|(_, found)| found.devices.iter().map(move |device| (found, device)))
    }

    /// What devices need, by their names: whole ones (`vendor/class=name`), or the part after `=` where only one has it. The
    /// name `all` stands for whatever the only class of devices calls so, or for the only device.
    pub fn resolve(&self, asked: &[String]) -> Result<Devices, CdiError> {
        let mut all = Devices::default();
        for asked in asked {
            let name = self.find(asked)?;
            // The last one counts.
            let chosen = self.found.iter().rev().find_map(|(file, specification)| {
                let device = specification.devices.iter().find(|device| whole(specification, device) == name)?;
                Some((file, specification, device))
            });
            if let Some((file, specification, device)) = chosen {
                let wrong = |problem| CdiError::File { file: file.clone(), problem };
                for edits in [&specification.edits, &device.edits] {
                    add(&mut all, edits).map_err(wrong)?;
                }
            }
        }
        Ok(all)
    }

    fn find(&self, asked: &str) -> Result<String, CdiError> {
        let names = self.names();
        if names.is_empty() {
            let folders: Vec<String> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
            return Err(CdiError::None(folders.join(" or ")));
        }
        let fits = |name: &&String| *name == asked || name.split_once('=').is_some_and(|(_, short)| short == asked);
        let fitting: Vec<&String> = names.iter().filter(fits).collect();
        let asked_for = || asked.escape_debug().take(100).collect::<String>();
        match fitting.as_slice() {
            [one] => Ok((*one).clone()),
            [] if asked == "all" && names.len() == 1 => Ok(names[0].clone()),
            [] => Err(CdiError::Unknown { asked: asked_for(), known: names.join(", ") }),
            several => {
                let known: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
                Err(CdiError::Several { asked: asked_for(), known: known.join(", ") })
            }
        }
    }
}

fn whole(specification: &Specification, device: &Device) -> String {
    // YAML takes a name of digits for a number.
    let name = device.name.as_str().map_or_else(|| device.name.to_string(), str::to_owned);
    format!("{}={name}", specification.kind)
}

fn read(file: &Path) -> Result<Specification, String> {
    let length = fs::metadata(file).map_err(|error| error.to_string())?.len();
    if length > MAX_BYTES {
        return Err(format!("it has {length} bytes, and at most {MAX_BYTES} are read"));
    }
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    parse(&text, file.extension().is_some_and(|kind| kind == "yaml"))
}

/// Reads a specification in YAML or JSON.
fn parse(text: &str, yaml: bool) -> Result<Specification, String> {
    let value = match yaml {
        true => {
            let documents = YamlLoader::load_from_str(text).map_err(|error| error.to_string())?;
            let [document] = documents.as_slice() else { return Err("it must have one document".into()) };
            from_yaml(document)?
        }
        false => serde_json::from_str(text).map_err(|error| error.to_string())?,
    };
    let found: Specification = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let plain =
        |text: &str| !text.is_empty() && !text.chars().any(|letter| letter.is_control() || letter.is_whitespace());
    match found.version.split('.').next() {
        Some("0" | "1") if found.kind.contains('/') && plain(&found.kind) => Ok(found),
        Some("0" | "1") => Err(format!("'{}' is not of the form vendor/class", found.kind.escape_debug())),
        _ => Err(format!("version {} of CDI is not known", found.version.escape_debug())),
    }
}

fn from_yaml(yaml: &Yaml) -> Result<Value, String> {
    Ok(match yaml {
        Yaml::Null | Yaml::BadValue => Value::Null,
        Yaml::Boolean(value) => (*value).into(),
        Yaml::Integer(value) => (*value).into(),
        Yaml::Real(text) => text.as_str().into(),
        Yaml::String(text) => text.as_str().into(),
        Yaml::Array(items) => Value::Array(items.iter().map(from_yaml).collect::<Result<_, _>>()?),
        Yaml::Hash(entries) => {
            let entry = |(key, value): (&Yaml, &Yaml)| {
                let key = key.as_str().ok_or("a key that is no text")?.to_owned();
                Ok::<_, String>((key, from_yaml(value)?))
            };
            Value::Object(entries.iter().map(entry).collect::<Result<_, _>>()?)
        }
        Yaml::Alias(_) => return Err("an alias, which is not understood".into()),
    })
}

/// Adds what a device, or all of a file, needs.
fn add(all: &mut Devices, edits: &Edits) -> Result<(), String> {
    if let Some(field) = edits.rest.iter().find(|(_, value)| !value.is_null()).map(|(name, _)| name) {
        return Err(format!("'{}' in containerEdits is not understood", field.escape_debug()));
    }
    for node in &edits.device_nodes {
        let inside = inside(&node.path)?;
        let name = inside.strip_prefix("/dev/").filter(|name| !name.is_empty());
        let Some(name) = name else { return Err(format!("the device '{inside}' must be below /dev")) };
        if TAKEN.contains(&name.split('/').next().unwrap_or_default()) {
            return Err(format!("every sandbox has a {inside} of its own"));
        }
        let from = node.host_path.clone().unwrap_or_else(|| node.path.clone().into());
        let kind = fs::metadata(&from).map_err(|error| format!("the device '{}': {error}", from.display()))?;
        if !kind.file_type().is_char_device() {
            return Err(format!("'{}' is no character device, and no other kind is shown", from.display()));
        }
        push(&mut all.nodes, Shown { from, to: inside });
    }
    for mount in &edits.mounts {
        let to = inside(&mount.container_path)?;
        if to == "/" || ["/dev", "/proc", "/sys"].iter().any(|folder| Path::new(&to).starts_with(folder)) {
            return Err(format!("nothing can be mounted at '{to}'"));
        }
        if !mount.host_path.exists() {
            return Err(format!("'{}', which is to be mounted, does not exist", mount.host_path.display()));
        }
        push(&mut all.files, Shown { from: mount.host_path.clone(), to });
    }
    for variable in &edits.env {
        if variable.split_once('=').is_none_or(|(name, _)| name.is_empty()) || variable.contains('\0') {
            return Err(format!("'{}' is not of the form NAME=value", variable.escape_debug()));
        }
        all.env.push(variable.clone());
    }
    edits.hooks.iter().try_for_each(|hook| stand_in(all, hook))
}

/// Does what a hook would do, without running it.
fn stand_in(all: &mut Devices, hook: &Hook) -> Result<(), String> {
    let words: Vec<&str> = hook.args.iter().map(String::as_str).collect();
    let after = match words.as_slice() {
        [_, "hook", rest @ ..] => rest,
        [program, rest @ ..] if program.ends_with("cdi-hook") => rest,
        _ => &[],
    };
    let values = |option: &'static str| {
        let pairs = after.windows(2).filter(move |pair| pair[0] == option).map(|pair| pair[1].to_owned());
        pairs.collect::<Vec<String>>()
    };
    match after.first() {
        Some(&"update-ldcache") => {
            // Programs are told where to look, in place of a cache that would have to be written.
            let folders = values("--folder");
            let known =
                all.env.iter_mut().find_map(|variable| Some((variable.find("LD_LIBRARY_PATH=")? == 0, variable)));
            match known {
                Some((true, variable)) => variable.extend(folders.iter().map(|folder| format!(":{folder}"))),
                _ if folders.is_empty() => {}
                _ => all.env.push(format!("LD_LIBRARY_PATH={}", folders.join(":"))),
            }
            Ok(())
        }
        Some(&"create-symlinks") => {
            for link in values("--link") {
                let (target, link) = link.split_once("::").ok_or_else(|| format!("the link '{link}' leads nowhere"))?;
                let link = inside(link)?;
                let folder = Path::new(&link).parent().unwrap_or(Path::new("/")).to_owned();
                let target = folder.join(target).display().to_string();
                // A second mount of the same file; what the target is linked to is not among the mounts where it is a link, too.
                if let Some(from) = all.files.iter().find(|file| file.to == target).map(|file| file.from.clone()) {
                    push(&mut all.files, Shown { from, to: link });
                }
            }
            Ok(())
        }
        // They adapt files inside to what is there, and nothing else.
        Some(&("chmod" | "enable-cuda-compat" | "disable-device-node-modification")) => Ok(()),
        _ => {
            let words = words.join(" ");
            let what = if words.is_empty() { &hook.path } else { &words };
            Err(format!(
                "it wants '{}' to be run as root for each sandbox, and sloplet runs no hooks: take it out of the file",
                what.escape_debug().take(200).collect::<String>()
            ))
        }
    }
}

fn push(all: &mut Vec<Shown>, one: Shown) {
    if !all.contains(&one) {
        all.push(one);
    }
}

fn inside(path: &str) -> Result<String, String> {
    let plain = path.starts_with('/') && !path.contains('\0') && !path.split('/').any(|part| part == "..");
    plain.then(|| path.to_owned()).ok_or_else(|| format!("'{}' is no absolute path without '..'", path.escape_debug()))
}

/// What every device of a specification needs; see [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub(crate) fn everything(text: &str, yaml: bool) -> Option<Devices> {
    let found = vec![(PathBuf::from("fuzz"), parse(text, yaml).ok()?)];
    let cdi = Cdi { folders: Vec::new(), found };
    cdi.resolve(&cdi.names()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, Result<Cdi, CdiError>) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let cdi = Cdi::read(vec![folder.path().to_owned()]);
        (folder, cdi)
    }

    fn asked(name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }

    const YAML: &str = "
cdiVersion: 0.6.0
kind: example.com/gpu
devices:
  - name: 0
    containerEdits:
      deviceNodes:
        - path: /dev/gpu0
          hostPath: /dev/zero
  - name: all
    containerEdits:
      deviceNodes:
        - {path: /dev/gpu0, hostPath: /dev/zero, permissions: rw}
        - {path: /dev/dri/card1, hostPath: /dev/full}
containerEdits:
  env: [GPU=yes]
  mounts:
    - {hostPath: /etc/hosts, containerPath: /usr/lib/libgpu.so.1.2, options: [ro, nosuid]}
  hooks:
    - hookName: createContainer
      path: /usr/bin/nvidia-ctk
      args: [nvidia-ctk, hook, create-symlinks, --link, 'libgpu.so.1.2::/usr/lib/libgpu.so.1']
    - hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
      args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib, --folder, /opt/lib]
";

    #[test]
    fn a_device_is_found_with_all_that_it_needs() {
        let (_folder, cdi) = folder(&[("one.yaml", YAML)]);
        let cdi = cdi.unwrap();
        assert_eq!(cdi.names(), ["example.com/gpu=0", "example.com/gpu=all"]);
        let devices = cdi.resolve(&asked("all")).unwrap();
        let pairs =
            |shown: &[Shown]| shown.iter().map(|it| format!("{} {}", it.from.display(), it.to)).collect::<Vec<_>>();
        assert_eq!(pairs(&devices.nodes), ["/dev/zero /dev/gpu0", "/dev/full /dev/dri/card1"]);
        assert_eq!(pairs(&devices.files), ["/etc/hosts /usr/lib/libgpu.so.1.2", "/etc/hosts /usr/lib/libgpu.so.1"]);
        assert_eq!(devices.env, ["GPU=yes", "LD_LIBRARY_PATH=/usr/lib:/opt/lib"]);
        for name in ["0", "example.com/gpu=0"] {
            assert_eq!(cdi.resolve(&asked(name)).unwrap().nodes.len(), 1);
        }
        let error = cdi.resolve(&asked("7")).unwrap_err().to_string();
        assert!(error.contains("no device '7'") && error.contains("example.com/gpu=all"), "{error}");
    }

    #[test]
    fn the_only_device_needs_no_name_and_two_of_one_need_a_whole_one() {
        let one = |kind: &str| {
            format!(
                r#"{{"cdiVersion":"0.5.0","kind":"{kind}","devices":[{{"name":"first","containerEdits":{{"deviceNodes":[{{"path":"/dev/x","hostPath":"/dev/zero"}}]}}}}]}}"#
            )
        };
        let (_folder, cdi) = folder(&[("a.json", &one("a.example/x"))]);
        assert_eq!(cdi.unwrap().resolve(&asked("all")).unwrap().nodes.len(), 1);
        let (_folder, cdi) = folder(&[("a.json", &one("a.example/x")), ("b.json", &one("b.example/x"))]);
        let cdi = cdi.unwrap();
        assert!(cdi.resolve(&asked("first")).unwrap_err().to_string().contains("any of a.example/x=first, b.example"));
        assert_eq!(cdi.resolve(&asked("b.example/x=first")).unwrap().nodes.len(), 1);
        assert!(matches!(cdi.resolve(&asked("all")), Err(CdiError::Unknown { .. })));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let (_folder, none) = folder(&[]);
        assert!(none.unwrap().resolve(&asked("all")).unwrap_err().to_string().contains("nvidia-ctk cdi generate"));
        let with = |edits: &str| {
            format!(
                r#"{{"cdiVersion":"0.6.0","kind":"a.example/x","devices":[{{"name":"d","containerEdits":{edits}}}]}}"#
            )
        };
        for (edits, reason) in [
            (r#"{"hooks":[{"hookName":"prestart","path":"/bin/sh","args":["sh","-c","true"]}]}"#, "runs no hooks"),
            (r#"{"hooks":[{"hookName":"prestart","path":"/opt/hook"}]}"#, "'/opt/hook' to be run as root"),
            (r#"{"intelRdt":{"closID":"x"}}"#, "'intelRdt' in containerEdits is not understood"),
            (r#"{"deviceNodes":[{"path":"/dev/null","hostPath":"/dev/zero"}]}"#, "a /dev/null of its own"),
            (r#"{"deviceNodes":[{"path":"/dev/pts/0","hostPath":"/dev/zero"}]}"#, "of its own"),
            (r#"{"deviceNodes":[{"path":"/etc/x","hostPath":"/dev/zero"}]}"#, "must be below /dev"),
            (r#"{"deviceNodes":[{"path":"/dev/../x","hostPath":"/dev/zero"}]}"#, "without '..'"),
            (r#"{"deviceNodes":[{"path":"/dev/x","hostPath":"/etc/hosts"}]}"#, "no character device"),
            (r#"{"deviceNodes":[{"path":"/dev/no-such-device"}]}"#, "No such file"),
            (r#"{"mounts":[{"hostPath":"/etc/hosts","containerPath":"/proc/x"}]}"#, "nothing can be mounted"),
            (r#"{"mounts":[{"hostPath":"/no/such","containerPath":"/x"}]}"#, "does not exist"),
            (r#"{"env":["NONE"]}"#, "NAME=value"),
        ] {
            let (_folder, cdi) = folder(&[("a.json", &with(edits))]);
            let error = cdi.unwrap().resolve(&asked("d")).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("a.json"), "{edits}: {error}");
        }
        for (text, reason) in [
            ("{", "EOF"),
            (r#"{"cdiVersion":"0.6.0","kind":"x"}"#, "vendor/class"),
            (r#"{"cdiVersion":"7.0.0","kind":"a/x"}"#, "version 7.0.0"),
        ] {
            let (_folder, cdi) = folder(&[("a.json", text)]);
            assert!(cdi.unwrap_err().to_string().contains(reason), "{text}");
        }
    }
}
