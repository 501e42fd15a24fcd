//! What attempts know about the host and its canaries.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Told to the program that makes attempts, on its standard input.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Whether it runs in a sandbox; on the host otherwise.
    pub inside: bool,
    /// Whether the sandbox has a kernel of its own.
    pub own_kernel: bool,
    /// Whether the host's user is root.
    pub root: bool,
    /// The process to attack: the agent inside, a planted one on the host.
    pub victim: i32,
    /// An address in the victim's memory, on the host.
    pub address: u64,
    /// The planted process of the host, by the host's count.
    pub host_process: i32,
    /// What its command line holds.
    pub marker: String,
    /// A text that was planted on the host and nowhere else.
    pub secret: String,
    /// A file of the host with that text.
    pub canary: PathBuf,
    /// Folders of the host with that text in a file.
    pub planted: Vec<PathBuf>,
    /// A file that may be read and not changed.
    pub read_only: PathBuf,
    /// A folder that may be written to.
    pub writable: PathBuf,
    /// A port on the host's loopback that somebody listens on.
    pub port: u16,
    /// The same for UDP: it answers every datagram.
    pub udp_port: u16,
    /// The host's own address on its network, if it has one: a listener of the same port.
    pub address_outside: Option<String>,
    /// An abstract socket of the host.
    pub abstract_name: String,
    /// A socket of the host.
    pub socket: PathBuf,
    /// A pseudo-terminal of the host.
    pub terminal: String,
    /// Its size, in rows and columns, which tells it from one inside that has the same name.
    pub terminal_size: (u16, u16),
    /// Shared memory of the host: System V, and a file in /dev/shm.
    pub shm_key: i32,
    /// The file's name.
    pub shm_file: String,
    /// A message queue of the host.
    pub queue: String,
    /// The handle of the host's root folder, in hexadecimal digits.
    pub handle: String,
    /// Its kind.
    pub handle_kind: i32,
    /// The host's name.
    pub host_name: String,
    /// The root of the host's first disk: major and minor number.
    pub disk: (u32, u32),
    /// A user id of the host that nobody has.
    pub throwaway: u32,
    /// Digests of the host's variables, `NAME=value` each: what they say is nobody's business inside.
    pub variables: Vec<String>,
    /// Whether the sandbox's programs are the host's own. Those of another image may be changed: nobody else has them.
    pub host_programs: bool,
    /// Whether the sandbox has a way out: connections are then accepted by the host, which decides afterwards.
    pub way_out: bool,
    /// Hosts of the blast radius, `name` or `name:port`.
    pub protected_hosts: Vec<String>,
    /// Paths of the blast radius.
    pub protected_paths: Vec<PathBuf>,
    /// Variables of the blast radius.
    pub protected_env: Vec<String>,
}

/// What stands for a variable where its value must not be told.
pub fn digest_of(name: &str, value: &str) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(format!("{name}={value}"));
    digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}
