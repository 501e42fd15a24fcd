//! The syscall allowlist as data, compiled to BPF.
//!
//! Which system calls a sandbox may make is a list with reasons, reviewed as text in `profiles/`: every call the kernel
//! knows is allowed, refused with an error, or hidden (`ENOSYS`, so that a C library takes its older path). The build
//! script turns each profile into a seccomp program; at run time [`Profile::program`] is a constant and
//! `sloplet_sys::filter::install` is the only cost.
//!
//! - [`profile`]: the profiles there are and the files they are layered from.
//! - [`rules`]: the line format of those files.
//! - [`table`]: the kernel's numbers for each name, per architecture.
//! - [`compile`]: from rules to BPF, by binary search over intervals of equal verdict.
//!
//! # Why not libseccomp or seccompiler
//!
//! Their programs are several times longer. The kernel checks a program when it is installed and also runs it once for
//! each syscall number, to remember which numbers are always allowed (a bitmap, since Linux 5.11); a sandbox that
//! starts in a few milliseconds notices. Programs here use only the instructions that this emulation understands, so
//! that an ordinary call never runs BPF at all.
//!
//! # Limitations
//!
//! - A filter sees numbers, not what pointers point to: paths, socket addresses and the flags of `clone3` are beyond
//!   it. It is one wall; namespaces, capabilities and Landlock are the others.
//! - Argument rules compare the low 32 bits of an argument. The profiles use them only for arguments which the kernel
//!   itself cuts to 32 bits.
//! - Programs of a second ABI (i386 or x32 on x86_64, arm on aarch64) get `ENOSYS` for every call, so they do not run.
//! - Tracing (`strace`, `gdb`) is refused unless the profile [`Profile::ContainerTracing`] is chosen.
//!
//! # How it is tested
//!
//! `tests/semantics.rs` interprets the compiled programs for both architectures over every number and the interesting
//! arguments, against the rules evaluated directly. The tests of `sloplet-sys` install them in real processes, show
//! that refused calls are reachable without the filter and not with it, and run ordinary tools under it.

pub mod compile;
pub mod profile;
pub mod rules;
pub mod set_id;
pub mod table;

pub use libc::sock_filter as SockFilter;
pub use profile::Profile;

include!(concat!(env!("OUT_DIR"), "/programs.rs"));

impl Profile {
    /// The BPF program of this profile for the architecture this was built for.
    pub fn program(self) -> &'static [SockFilter] {
        match self {
            Profile::Container => &CONTAINER,
            Profile::ContainerTracing => &CONTAINER_TRACING,
            Profile::ContainerAio => &CONTAINER_AIO,
            Profile::Process => &PROCESS,
            Profile::ProcessUnixSockets => &PROCESS_UNIX_SOCKETS,
            Profile::Server => &SERVER,
        }
    }

    /// The program of this profile with another layer on top, compiled now: for tests of what a hole would let through.
    pub fn program_with(self, layer: &str) -> Result<Vec<SockFilter>, String> {
        let table = table::Table::kernel().map_err(|error| error.to_string())?;
        let mut rules = self.rules(&table).map_err(|error| error.to_string())?;
        rules.overlay("a layer", layer, &table).map_err(|error| error.to_string())?;
        let arch = table::Arch::from_rust_name(std::env::consts::ARCH).ok_or("no table for this processor")?;
        compile::compile(&rules, &table, arch).map_err(|error| error.to_string())
    }
}
