//! The profiles there are, each a stack of files of which a later one overrides an earlier.

use crate::rules::{Rules, RulesError};
use crate::table::Table;

/// A named set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// For a sandbox with namespaces of its own: everything an ordinary program needs.
    Container,
    /// [`Container`](Profile::Container), and debuggers work inside.
    ContainerTracing,
    /// [`Container`](Profile::Container), with asynchronous I/O of the old kind (`io_setup`), which nothing bounds for one sandbox.
    ContainerAio,
    /// For a process that shares the host's namespaces: no sockets but unnamed pairs, no System V or POSIX IPC.
    Process,
    /// [`Process`](Profile::Process) with unix sockets, which reach every listening socket of the host whose path or
    /// abstract name is not closed off otherwise (Landlock scopes abstract ones from ABI 6).
    ProcessUnixSockets,
    /// For the server itself, once it has given its privileges up: [`Container`](Profile::Container) without unix sockets.
    Server,
}

const CONTAINER: (&str, &str) = ("container.profile", include_str!("../profiles/container.profile"));
const TRACING: (&str, &str) = ("tracing.profile", include_str!("../profiles/tracing.profile"));
const AIO: (&str, &str) = ("aio.profile", include_str!("../profiles/aio.profile"));
const PROCESS: (&str, &str) = ("process.profile", include_str!("../profiles/process.profile"));
const UNIX_SOCKETS: (&str, &str) = ("unix-sockets.profile", include_str!("../profiles/unix-sockets.profile"));
const SERVER: (&str, &str) = ("server.profile", include_str!("../profiles/server.profile"));

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 6] = [
        Profile::Container,
        Profile::ContainerTracing,
        Profile::ContainerAio,
        Profile::Process,
        Profile::ProcessUnixSockets,
        Profile::Server,
    ];

    /// The name, in words joined by dashes.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Container => "container",
            Profile::ContainerTracing => "container-tracing",
            Profile::ContainerAio => "container-aio",
            Profile::Process => "process",
            Profile::ProcessUnixSockets => "process-unix-sockets",
            Profile::Server => "server",
        }
    }

    /// File name and text of each layer, the weakest first.
    pub fn layers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Profile::Container => &[CONTAINER],
            Profile::ContainerTracing => &[CONTAINER, TRACING],
            Profile::ContainerAio => &[CONTAINER, AIO],
            Profile::Process => &[CONTAINER, PROCESS],
            Profile::ProcessUnixSockets => &[CONTAINER, PROCESS, UNIX_SOCKETS],
            Profile::Server => &[CONTAINER, SERVER],
        }
    }

    /// The rules, parsed anew: for the build script, tests and whoever wants to print them.
    pub fn rules(self, table: &Table) -> Result<Rules, RulesError> {
        let mut rules = Rules::default();
        for (file, text) in self.layers() {
            rules.overlay(file, text, table)?;
        }
        Ok(rules)
    }
}
