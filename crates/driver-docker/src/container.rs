//! From a spec to a container.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use sloplet_agent::program::SUBCOMMAND;
use sloplet_driver_namespaces::planning::{OPEN_FILES, default_user};
use sloplet_engine::{DriverError, Unsupported, Wanted};
use sloplet_monitor::{Done, Task, perform, task};
use sloplet_policy::addresses::RESOLVER_V4;
use sloplet_policy::source::Identity;
use sloplet_policy::weakness::PIDS_BEYOND;
use sloplet_policy::{Bind, Spec};
use sloplet_spawner::container::procfs::{MASKED_FILES, MASKED_FOLDERS, READ_ONLY};

use crate::failed;
use crate::host::Host;
use crate::kit;
use crate::owner::{EGRESS, OWNER, SANDBOX};

/// Where the usual user's files are.
const HOME: &str = "/home/user";

/// The usual user.
const USER: u32 = 1000;

/// Users that nobody is.
const MESSENGERS: [u32; 2] = [65_534, 65_533];

/// Processes of a user that Podman's service gives itself.
const PODMAN_PROCESSES: u64 = 32_768;

/// What engines show besides and no sandbox needs.
const MASKED: [&str; 2] = ["/sys", "/dev/mqueue"];

/// Where the agent listens.
pub fn door() -> String {
    format!("{}/{}/agent", kit::PLACE, kit::DOOR)
}

/// Whom commands are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its number; never 0.
    pub uid: u32,
    /// Its group's; never 0.
    pub gid: u32,
    /// Its name.
    pub name: String,
    /// Its home folder.
    pub home: String,
}

/// Whom commands are, by the spec, the image's wish and the image's list of users.
pub fn user(wanted: &Wanted<'_>, passwd: &[u8]) -> Result<User, DriverError> {
    let asked = default_user(wanted.spec, wanted.image);
    let (name, group) = asked.split_once(':').map_or((asked.as_str(), None), |(name, group)| (name, Some(group)));
    let listed = passwd.split(|byte| *byte == b'\n').filter_map(|line| {
        let fields: Vec<&str> = std::str::from_utf8(line).ok()?.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields[..] else { return None };
        Some((name, uid.parse::<u32>().ok()?, gid.parse::<u32>().ok()?, home))
    });
    let found = listed.into_iter().find(|(known, uid, ..)| *known == name || uid.to_string() == name);
    let (uid, gid) = match (found, name.parse::<u32>()) {
        (Some((_, uid, gid, _)), _) => (uid, gid),
        (None, Ok(uid)) => (uid, uid),
        (None, Err(_)) if name == "user" => (USER, USER),
        (None, Err(_)) => return Err(failed(&format!("be user '{name}'"), "the image has no such user")),
    };
    let gid = match group {
        Some(group) => group.parse().map_err(|_| {
            failed(&format!("be user '{asked}'"), "name the group by its number: groups are not looked up here")
        })?,
        None => gid,
    };
    if uid == 0 || gid == 0 {
        let detail = "containers of this driver have no root inside: use --driver namespaces for that";
        return Err(failed(&format!("be user '{asked}'"), detail));
    }
    let home = found.map(|(_, _, _, home)| home).filter(|home| is_home(home)).unwrap_or(HOME).to_owned();
    let name = found.map_or("user", |(name, ..)| name).to_owned();
    Ok(User { uid, gid, name, home })
}

/// Whether a folder can be somebody's home: it will be a place of its own.
fn is_home(path: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
    path.strip_prefix("/home/").is_some_and(|rest| !rest.is_empty() && rest.chars().all(fits) && !rest.contains(".."))
}

/// Who passes bytes on to the agent, beside commands that are this user: of the same group, so that the agent's door opens, and
/// somebody else, so that no command can end it.
pub fn messenger(user: &str) -> Option<String> {
    let (uid, gid) = user.split_once(':')?;
    let other = MESSENGERS.iter().find(|other| other.to_string() != uid)?;
    Some(format!("{other}:{gid}"))
}

/// What else a container is made with.
pub struct Parts<'a> {
    /// Whom commands are.
    pub user: &'a User,
    /// The volume with the agent.
    pub agent: &'a str,
    /// Paths that the image wants to be volumes.
    pub volumes: &'a [String],
    /// Files that are laid over the root, by the path that the engine finds them at.
    pub files: &'a [(String, String)],
    /// The filter of system calls, as this engine takes it; without one, the engine's own is below the agent's.
    pub filter: Option<&'a str>,
    /// Whose it is.
    pub owner: &'a str,
    /// Whether it outlives this process.
    pub lasting: bool,
    /// Whether it is Podman's, which knows fewer options of file systems.
    pub podman: bool,
}

/// The container.
pub fn body(wanted: &Wanted<'_>, parts: &Parts<'_>) -> ContainerCreateBody {
    let (Wanted { id, spec, image, .. }, Parts { user, .. }) = (wanted, parts);
    let limits = &spec.limits;
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let mut agent = vec![format!("{}/{}", kit::PLACE, kit::PROGRAM), SUBCOMMAND.to_owned(), "serve".to_owned()];
    agent.extend(["--stdio".to_owned(), "--allowlist".to_owned()]);
    if parts.lasting {
        agent.extend(["--listen".to_owned(), door()]);
    }
    agent.extend(["--fixed".to_owned(), format!("{}:{}", user.name, user.home)]);
    if spec.mounts.iter().any(|mount| mount.writable) && !spec.lacks("set-id-filter") {
        agent.push("--filter".to_owned());
    }
    let mut security = vec!["no-new-privileges:true".to_owned()];
    security.extend(parts.filter.map(|filter| format!("seccomp={filter}")));
    let ulimit =
        |name: &str, value: i64| ResourcesUlimits { name: Some(name.into()), soft: Some(value), hard: Some(value) };
    // Podman asks for more processes of a user than it may have itself; what bounds them is the container's group.
    let most = rustix::process::getrlimit(rustix::process::Resource::Nproc).maximum.unwrap_or(PODMAN_PROCESSES);
    let processes = parts.podman.then(|| most.min(PODMAN_PROCESSES));
    let ulimits = [ulimit("nofile", bytes(open_files())), ulimit("core", 0)].into_iter();
    let ulimits = ulimits.chain(processes.map(|number| ulimit("nproc", bytes(number))));
    let labels = [(OWNER, parts.owner), (SANDBOX, *id)].into_iter().chain(wanted.egress.then_some((EGRESS, "")));
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let in_proc = |name: &&str| format!("/proc/{name}");
    let masked = MASKED_FILES.iter().chain(&MASKED_FOLDERS).map(in_proc).filter(|_| !spec.lacks("masked-paths"));
    let masked = masked.chain(MASKED.map(str::to_owned).into_iter().filter(|_| !spec.lacks("sysfs")));
    let own = |protection: &str, usual: &str| if spec.lacks(protection) { "host".to_owned() } else { usual.to_owned() };
    let host_config = HostConfig {
        auto_remove: Some(!parts.lasting),
        cap_drop: Some(vec!["ALL".into()]),
        security_opt: Some(security),
        privileged: Some(false),
        network_mode: Some(own("network-namespace", "none")),
        ipc_mode: Some(own("ipc-namespace", "private")),
        cgroupns_mode: Some(match spec.lacks("cgroup-namespace") {
            true => HostConfigCgroupnsModeEnum::HOST,
            false => HostConfigCgroupnsModeEnum::PRIVATE,
        }),
        readonly_rootfs: Some(true),
        masked_paths: Some(masked.collect()),
        readonly_paths: Some(READ_ONLY.iter().map(in_proc).filter(|_| !spec.lacks("read-only-proc")).collect()),
        tmpfs: Some(places(spec, parts)),
        mounts: Some(mounts(spec, parts)),
        shm_size: Some(bytes(limits.memory.0 / 2)),
        memory: Some(bytes(limits.memory.0)),
        // As much as memory: no swap.
        memory_swap: Some(bytes(limits.memory.0)),
        nano_cpus: Some(i64::from(limits.cpus.millis) * 1_000_000),
        pids_limit: Some(i64::from(limits.pids) + if spec.lacks("pids") { i64::from(PIDS_BEYOND) } else { 0 }),
        ulimits: Some(ulimits.collect()),
        init: Some(false),
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        // The engine writes the table of host names itself, without the container's own where it has no network.
        extra_hosts: Some(vec![format!("{}:127.0.1.1", spec.hostname)]),
        // The engine writes the file about resolvers itself, and would write the host's.
        dns: Some(vec![RESOLVER_V4.to_string()]),
        dns_options: Some(vec!["timeout:2".to_owned(), "attempts:2".to_owned()]),
        dns_search: Some(vec![".".to_owned()]),
        ..Default::default()
    };
    ContainerCreateBody {
        image: Some(image.digest.clone()),
        hostname: Some(spec.hostname.clone()),
        user: Some(format!("{}:{}", user.uid, user.gid)),
        entrypoint: Some(agent),
        cmd: Some(Vec::new()),
        working_dir: Some("/".into()),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(true),
        // When whoever is attached goes, the agent hears the end.
        stdin_once: Some(true),
        tty: Some(false),
        // An image could have the engine run something of its own.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".into()]), ..Default::default() }),
        labels: Some(labels.collect()),
        host_config: Some(host_config),
        ..Default::default()
    }
}

/// As many as this user may have, at most: an engine beside this process may not have more to give.
fn open_files() -> u64 {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    hard.map_or(OPEN_FILES, |hard| hard.min(OPEN_FILES))
}

/// What can be written to, each in memory and bounded, together no more than the limit.
fn places(spec: &Spec, parts: &Parts<'_>) -> HashMap<String, String> {
    let wish = |path: &&String| path.starts_with('/') && !path.split('/').any(|part| part == "..") && path.len() > 1;
    let clean = |path: &str| format!("/{}", path.trim_matches('/'));
    let mut paths: Vec<String> = vec![parts.user.home.clone(), "/tmp".to_owned()];
    paths.extend(parts.volumes.iter().filter(wish).map(|path| clean(path)));
    paths.sort();
    paths.dedup();
    let covered = |path: &String| spec.mounts.iter().any(|mount| mount.to == Path::new(path));
    paths.retain(|path| !covered(path) && !path.starts_with(kit::PLACE));
    let share = paths.len().max(1) as u64;
    // A size of 0 would be none; a page is what the kernel counts in.
    let size = (spec.limits.disk.0 / share / 4096 * 4096).max(4096);
    let files = (spec.limits.inodes() / share).max(2);
    let User { uid, gid, .. } = parts.user;
    let whose = |mode: &str, files: u64| match parts.podman {
        true => format!("mode={mode},U"),
        false => format!("mode={mode},uid={uid},gid={gid},nr_inodes={files}"),
    };
    let options = |path: &str| {
        let mode = if path == "/tmp" { "1777" } else { "0755" };
        format!("rw,exec,nosuid,nodev,size={size},{}", whose(mode, files))
    };
    let mut places: HashMap<String, String> = paths.iter().map(|path| (path.clone(), options(path))).collect();
    if parts.lasting {
        let door = format!("rw,noexec,nosuid,nodev,size=4096,{}", whose("0710", 8));
        places.insert(format!("{}/{}", kit::PLACE, kit::DOOR), door);
    }
    places
}

fn mounts(spec: &Spec, parts: &Parts<'_>) -> Vec<Mount> {
    let bind = |from: String, to: String, writable: bool| Mount {
        source: Some(from),
        target: Some(to),
        typ: Some(MountType::BIND),
        read_only: Some(!writable),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..Default::default()
        }),
        ..Default::default()
    };
    let shown = spec
        .shown()
        .map(|mount| (mount, mount.writable || spec.lacks("read-only-mounts")))
        .map(|(mount, open)| bind(mount.from.display().to_string(), mount.to.display().to_string(), open));
    let files = parts.files.iter().map(|(from, to)| bind(from.clone(), to.clone(), false));
    std::iter::once(kit::mount(parts.agent, true)).chain(shown).chain(files).collect()
}

/// Refuses mounts that would not be what was asked, or would be the end of the walls.
pub fn check_mounts(mounts: &[Bind], host: &Host, user: &User, rootless: bool) -> Result<(), DriverError> {
    for mount in mounts {
        let step = format!("mount {} at {}", mount.from.display(), mount.to.display());
        if mount.volume {
            return Err(Unsupported("mount volumes: use --mount with a folder, or --driver namespaces").into());
        }
        let Some(socket) = host.socket() else {
            return Err(failed(
                &step,
                format!("the engine at {} may be on another host, with other files", host.name()),
            ));
        };
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if real(socket).starts_with(real(&mount.from)) {
            let detail = "the engine's socket is there: whoever reaches it is root on its host";
            return Err(failed(&step, detail));
        }
        if mount.to.starts_with(kit::PLACE) {
            return Err(failed(&step, format!("{} is the agent's", kit::PLACE)));
        }
        if mount.writable && !rootless && !can_write(&mount.from, user) {
            let User { uid, gid, .. } = user;
            let detail = format!(
                "commands are user {uid}:{gid} on the host, too, and may not write there: \
                 'chown {uid}:{gid}' it, choose --user, or use --driver namespaces"
            );
            return Err(failed(&step, detail));
        }
    }
    Ok(())
}

/// Whether a container shows what was checked: the engine has opened the paths again by itself, following links, and somebody who
/// can write to a folder on the way may have put one there meanwhile. Nothing runs in the container yet but the agent. Containers
/// that this user may not look into are not looked into.
pub fn check_shown(mounts: &[Bind], pid: i32) -> Result<(), DriverError> {
    let places: Vec<&Path> = mounts.iter().map(|mount| Path::new(&mount.to)).collect();
    let found = perform::<Option<Vec<Result<(u64, u64), String>>>>(&LOOK, &(pid, places), Vec::new());
    let (found, _) = found.map_err(|error| failed("look into the container", error))?;
    for (mount, shown) in mounts.iter().zip(found.unwrap_or_default()) {
        let Some(identity) = mount.identity else { continue };
        let step = format!("mount {} at {}", mount.from.display(), mount.to.display());
        if shown.map_err(|error| failed(&step, error))? != (identity.device, identity.inode) {
            return Err(failed(&step, "another file or folder has taken its place since it was checked: try again"));
        }
    }
    Ok(())
}

/// Tells which file systems and inodes a container has at some paths; nothing if this user may not look into it.
pub static LOOK: Task = Task { name: "docker-look", run: look };

fn look(input: &[u8], _: Vec<OwnedFd>) -> std::io::Result<Done> {
    let (pid, places): (i32, Vec<PathBuf>) = task::input(input)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let Ok(root) = rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty()) else {
        return Done::with(&None::<()>);
    };
    let identity = |place: &PathBuf| {
        let shown = openat2(&root, place, flags, Mode::empty(), ResolveFlags::IN_ROOT);
        let identity = shown.map_err(std::io::Error::from).and_then(|shown| Identity::of(&shown));
        identity.map(|identity| (identity.device, identity.inode)).map_err(|error| error.to_string())
    };
    Done::with(&Some(places.iter().map(identity).collect::<Vec<_>>()))
}

fn can_write(path: &Path, user: &User) -> bool {
    let Ok(meta) = std::fs::metadata(path) else { return false };
    let bit = match (meta.uid() == user.uid, meta.gid() == user.gid) {
        (true, _) => 0o200,
        (false, true) => 0o020,
        (false, false) => 0o002,
    };
    meta.mode() & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use sloplet_image::{Image, ImageConfig};

    const PASSWD: &[u8] =
        b"root:x:0:0::/root:/bin/sh\nnode:x:1001:1002::/home/node:/bin/sh\nodd:x:7:7::/:/bin/sh\nbroken\n";

    fn image(user: Option<&str>) -> Image {
        let config = ImageConfig { user: user.map(Into::into), ..Default::default() };
        let mut image = Image::of_folders("x", Vec::new(), Vec::new(), config);
        image.digest = "sha256:0".into();
        image
    }

    fn wanted<'a>(spec: &'a Spec, image: &'a Image) -> Wanted<'a> {
        Wanted { id: "a", spec, image, egress: false, files: &[], memory: None, claimable: false, ear: false }
    }

    #[test]
    fn nobody_is_root() {
        let be = |asked: Option<&str>, wish: Option<&str>| {
            let (spec, image) = (Spec { user: asked.map(Into::into), ..Spec::default() }, image(wish));
            user(&wanted(&spec, &image), PASSWD).map(|user| (user.uid, user.gid, user.home))
        };
        assert_eq!(be(None, None).unwrap(), (1000, 1000, "/home/user".into()));
        assert_eq!(be(None, Some("root")).unwrap(), (1000, 1000, "/home/user".into()));
        assert_eq!(be(None, Some("node")).unwrap(), (1001, 1002, "/home/node".into()));
        assert_eq!(be(Some("7"), None).unwrap(), (7, 7, "/home/user".into()), "/ is nobody's home");
        assert_eq!(be(Some("5:6"), None).unwrap(), (5, 6, "/home/user".into()));
        for asked in ["root", "0", "0:5", "5:0", "nobody-like-that", "5:staff"] {
            assert!(be(Some(asked), None).is_err(), "{asked}");
        }
    }

    #[test]
    fn no_command_is_its_messenger() {
        assert_eq!(messenger("1000:1000").as_deref(), Some("65534:1000"));
        assert_eq!(messenger("65534:7").as_deref(), Some("65533:7"));
        assert_eq!(messenger(""), None);
    }

    #[test]
    fn a_container_has_every_restriction_and_only_what_was_asked() {
        let mount = Bind { from: "/data".into(), to: "/inside".into(), ..Bind::default() };
        let spec = Spec { mounts: vec![mount], ..Spec::default() };
        let image = image(None);
        let user = User { uid: 1000, gid: 1000, name: "user".into(), home: "/home/user".into() };
        let volumes = ["/var/lib/data/".to_owned(), "../x".to_owned(), "/.sloplet/door".to_owned()];
        let parts = Parts {
            user: &user,
            agent: "agent",
            volumes: &volumes,
            files: &[],
            filter: Some("x"),
            owner: "me",
            lasting: false,
            podman: false,
        };
        let body = body(&wanted(&spec, &image), &parts);
        let host = body.host_config.unwrap();
        assert_eq!(body.user.as_deref(), Some("1000:1000"));
        assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
        assert_eq!((host.cap_add, host.privileged, host.binds), (None, Some(false), None));
        assert_eq!((host.network_mode.as_deref(), host.readonly_rootfs), (Some("none"), Some(true)));
        let security = ["no-new-privileges:true", "seccomp=x"].map(str::to_owned).to_vec();
        assert_eq!((host.memory, host.security_opt), (host.memory_swap, Some(security)));
        let tmpfs = host.tmpfs.unwrap();
        let mut places: Vec<&str> = tmpfs.keys().map(String::as_str).collect();
        places.sort_unstable();
        assert_eq!(places, ["/home/user", "/tmp", "/var/lib/data"]);
        // A third of a GiB each, cut to pages.
        assert!(tmpfs["/tmp"].contains("size=357912576,") && tmpfs["/tmp"].ends_with("nr_inodes=21845"), "{tmpfs:?}");
        let mounts = host.mounts.unwrap();
        let shown: Vec<_> = mounts.iter().map(|mount| (mount.target.as_deref(), mount.read_only)).collect();
        assert_eq!(shown, [(Some("/.sloplet"), Some(true)), (Some("/inside"), Some(true))]);
    }

    #[test]
    fn the_socket_is_never_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("deep/engine.sock");
        std::fs::create_dir(folder.path().join("deep")).unwrap();
        std::fs::write(&socket, "").unwrap();
        let user = User { uid: 1000, gid: 1000, name: "user".into(), home: "/home/user".into() };
        let check = |from: &Path, host: &Host| {
            let mount = Bind { from: from.into(), to: "/x".into(), ..Bind::default() };
            check_mounts(&[mount], host, &user, false).map_err(|error| error.to_string())
        };
        let here = Host::Unix(socket.clone());
        std::os::unix::fs::symlink(folder.path(), folder.path().join("deep/round")).unwrap();
        for from in [&socket, folder.path(), &folder.path().join("deep"), &folder.path().join("deep/round")] {
            assert!(check(from, &here).unwrap_err().contains("socket is there"), "{from:?}");
        }
        let beside = folder.path().join("beside");
        std::fs::create_dir(&beside).unwrap();
        assert_eq!(check(&beside, &here), Ok(()));
        assert!(check(&beside, &Host::Tcp("x:1".into())).unwrap_err().contains("another host"));
    }
}
