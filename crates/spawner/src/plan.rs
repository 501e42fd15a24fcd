//! What the spawner is told to make. Everything in it was decided and checked by the engine.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use sloplet_policy::source::{self, Identity};

use crate::protocol::{During, Problem};

/// One sandbox.
#[derive(Debug, Clone, Encode, Decode)]
pub struct Plan {
    /// Its bounds.
    #[n(0)]
    pub bounds: Bounds,
    /// Its walls.
    #[n(1)]
    pub wall: Wall,
    /// Whether it outlives the engine: then its agent also listens on a socket in its owner's folder. It never outlives
    /// the spawner.
    #[n(2)]
    pub lasting: bool,
    /// Skip the bounds this host cannot enforce, because the user said so.
    #[n(3)]
    pub best_effort: bool,
    /// Whether the engine gets sockets on which it hears what the sandbox wants from the outside.
    #[n(4)]
    #[cbor(default)]
    pub egress: bool,
    /// Files that the host puts into its root.
    #[n(5)]
    #[cbor(default)]
    pub files: Vec<PutFile>,
    /// Whether it waits for somebody, who may want mounts and a host name of its own: see
    /// [`Command::Attach`](crate::protocol::Command::Attach). Not with a runtime.
    #[n(6)]
    #[cbor(default)]
    pub claimable: bool,
    /// Whether the engine hears, where there is no way out, which names are asked for.
    #[n(7)]
    #[cbor(default)]
    pub ear: bool,
    /// A protection that a test takes away. Release builds do not know the word.
    #[n(15)]
    pub weaken: Option<String>,
}

impl Plan {
    /// Whether its agent filters its commands, or may have to.
    pub fn filters_commands(&self) -> bool {
        self.claimable || self.wall.writes_to_host()
    }

    /// Whether a test has taken this protection away. Never in a release build.
    pub fn lacks(&self, protection: &str) -> bool {
        cfg!(debug_assertions) && self.weaken.as_deref() == Some(protection)
    }
}

/// A file that the host puts into a sandbox's root.
#[derive(Debug, Clone, Encode, Decode)]
pub struct PutFile {
    /// Where it is seen inside.
    #[n(0)]
    pub places: Vec<Place>,
    /// What is in it.
    #[n(1)]
    pub content: ByteVec,
    /// Files of the image: the first that there is comes before the content.
    #[n(2)]
    pub after: Vec<String>,
    /// Its permissions; nobody inside may write it anyway.
    #[n(3)]
    pub mode: u32,
}

/// Where a file is put.
#[derive(Debug, Clone, Encode, Decode)]
pub struct Place {
    /// Inside, absolute, without `..`.
    #[n(0)]
    pub path: String,
    /// On what condition.
    #[n(1)]
    pub when: When,
}

/// When a file is put into a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum When {
    /// Whatever is there.
    #[n(0)]
    Always,
    /// If nothing is there, or an empty file: as the sandbox's own, for it to change.
    #[n(1)]
    Absent,
    /// If a file is there.
    #[n(2)]
    Present,
}

/// What cgroups (and rlimits, where there are none) enforce.
#[derive(Debug, Clone, Encode, Decode)]
pub struct Bounds {
    /// Memory in bytes.
    #[n(0)]
    pub memory: u64,
    /// Thousandths of a processor.
    #[n(1)]
    pub cpu_millis: u32,
    /// Processes and threads.
    #[n(2)]
    pub pids: u32,
    /// Open files of one process.
    #[n(3)]
    pub open_files: u64,
    /// Wall-clock life; then the spawner kills everything in it, whatever the engine is doing.
    #[n(4)]
    pub lifetime_ms: u64,
}

/// Kinds of wall.
#[derive(Debug, Clone, Encode, Decode)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one for each sandbox that is being made, and most are the large one"
)]
pub enum Wall {
    /// Namespaces.
    #[n(0)]
    Container(#[n(0)] Container),
    /// A confined process tree on the host's root.
    #[n(1)]
    Process(#[n(0)] Process),
}

impl Wall {
    /// Whether what is written inside can end up in a folder of the host.
    pub fn writes_to_host(&self) -> bool {
        let (Self::Container(Container { mounts, .. }) | Self::Process(Process { mounts, .. })) = self;
        mounts.iter().any(|mount| mount.writable)
    }
}

/// A sandbox with a root of its own.
#[derive(Debug, Clone, Encode, Decode)]
pub struct Container {
    /// Its host name.
    #[n(0)]
    pub hostname: String,
    /// Layers of its root, topmost first.
    #[n(1)]
    pub layers: Vec<ByteVec>,
    /// Host folders that are part of the image: read-only, same path inside.
    #[n(2)]
    pub system: Vec<ByteVec>,
    /// Host folders shown by the user's wish.
    #[n(3)]
    pub mounts: Vec<Mount>,
    /// Bytes it may write.
    #[n(4)]
    pub disk: u64,
    /// Files it may make.
    #[n(5)]
    pub inodes: u64,
    /// Bytes of /dev/shm.
    #[n(6)]
    pub shm: u64,
    /// What it writes goes to an ext4 image, passed as a descriptor, in place of memory.
    #[n(7)]
    pub disk_on_file: bool,
    /// Who its commands run as if nobody else is named; must exist inside or be numeric.
    #[n(8)]
    pub default_user: String,
    /// User id inside that owns what `mounts` show.
    #[n(9)]
    pub mounts_owner: u32,
    /// A runtime that runs inside the walls and has the agent behind it.
    #[n(10)]
    pub runtime: Option<Runtime>,
    /// Devices of the host for this sandbox alone, and what goes with them.
    #[n(11)]
    #[cbor(default)]
    pub devices: Vec<Device>,
    /// Asynchronous I/O of the old kind is allowed.
    #[n(12)]
    #[cbor(default)]
    pub aio: bool,
}

/// A device of the host, or a file or folder that goes with one, read-only.
#[derive(Debug, Clone, Encode, Decode)]
pub struct Device {
    /// On the host.
    #[n(0)]
    pub from: ByteVec,
    /// Inside, absolute, without `..`; a device's below `/dev`.
    #[n(1)]
    pub to: ByteVec,
    /// A character device.
    #[n(2)]
    pub node: bool,
}

/// A program that speaks OCI's command line.
#[derive(Debug, Clone, Encode, Decode)]
pub struct Runtime {
    /// The program, on the host.
    #[n(0)]
    pub program: ByteVec,
    /// The agent's program, on the host: static, for it is started in whatever root.
    #[n(1)]
    pub agent: ByteVec,
    /// Flags before every subcommand.
    #[n(2)]
    pub flags: Vec<String>,
    /// The bundle's `config.json`, with the paths of [`crate::runtime::house`].
    #[n(3)]
    pub config: ByteVec,
    /// It goes on from a memory that was saved: its folder is passed last.
    #[n(4)]
    pub restore: bool,
    /// It has no kernel of its own: it starts the agent, which confines itself, and goes.
    #[n(5)]
    #[cbor(default)]
    pub shares_kernel: bool,
    /// Libraries that it is linked with, on the host; the same paths lead to them in its house.
    #[n(6)]
    #[cbor(default)]
    pub libraries: Vec<ByteVec>,
    /// A copy of the agent's program that nobody inside can read, which it goes on as.
    #[n(7)]
    pub closed: Option<ByteVec>,
}

impl Runtime {
    /// All files of the host that its house has, in order: its program, the agent's, the copy of that, its libraries.
    pub fn programs(&self) -> impl Iterator<Item = &ByteVec> {
        [&self.program, &self.agent].into_iter().chain(&self.closed).chain(&self.libraries)
    }
}

/// A host folder shown inside.
#[derive(Debug, Clone, Encode, Decode)]
pub struct Mount {
    /// On the host, symlinks resolved.
    #[n(0)]
    pub from: ByteVec,
    /// Inside, absolute, without `..`.
    #[n(1)]
    pub to: ByteVec,
    /// Whether changes reach the host.
    #[n(2)]
    pub writable: bool,
    /// Everybody inside may own files in it (a volume): as root, they belong to these ids outside, in order.
    #[n(3)]
    pub ids: Option<u32>,
    /// The file system and number of what was checked: nothing else is shown. Engines of earlier builds do not say.
    #[n(4)]
    pub identity: Option<(u64, u64)>,
    /// The user and group whose files are the sandbox's user's, if not its own: as root.
    #[n(5)]
    pub owner: Option<(u32, u32)>,
}

impl Mount {
    /// Opens what is shown, to be looked at or mounted: no link on the way is followed.
    pub fn open(&self) -> Result<OwnedFd, Problem> {
        let path = Path::new(OsStr::from_bytes(&self.from));
        let identity = self.identity.map(|(device, inode)| Identity { device, inode });
        source::reopen(path, identity).during(&format!("mount {}", path.display()))
    }
}

/// A confined process tree on the host's root.
#[derive(Debug, Clone, Encode, Decode)]
pub struct Process {
    /// Its private folder, made and removed by the spawner: home, working directory and TMPDIR; the only place it may
    /// write to, apart from writable mounts.
    #[n(0)]
    pub scratch: ByteVec,
    /// Host paths it may read and execute from, all below them included; those that do not exist are skipped.
    #[n(1)]
    pub readable: Vec<ByteVec>,
    /// Host paths shown by the user's wish; inside they have the same path.
    #[n(2)]
    pub mounts: Vec<Mount>,
    /// Largest single file it may write.
    #[n(3)]
    pub file_size: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan as it was before sandboxes had a way out.
    #[derive(Encode, Decode)]
    struct Older {
        #[n(0)]
        bounds: Bounds,
        #[n(1)]
        wall: Wall,
        #[n(2)]
        lasting: bool,
        #[n(3)]
        best_effort: bool,
    }

    #[test]
    fn older_and_newer_plans_are_understood() {
        let bounds = Bounds { memory: 1, cpu_millis: 2, pids: 3, open_files: 4, lifetime_ms: 5 };
        let process = Process { scratch: vec![].into(), readable: Vec::new(), mounts: Vec::new(), file_size: 6 };
        let older = Older { bounds, wall: Wall::Process(process), lasting: true, best_effort: false };
        let mut plan: Plan = minicbor::decode(&sloplet_wire::to_bytes(&older)).unwrap();
        assert!(plan.lasting && !plan.egress && plan.files.is_empty());
        let places = vec![Place { path: "/x".into(), when: When::Always }];
        plan.files.push(PutFile { places, content: vec![7].into(), after: Vec::new(), mode: 0o644 });
        plan.egress = true;
        let again: Older = minicbor::decode(&sloplet_wire::to_bytes(&plan)).unwrap();
        assert_eq!((again.bounds.pids, again.lasting), (3, true));
    }
}
