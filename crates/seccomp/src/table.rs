//! The kernel's syscall numbers, per architecture.
//!
//! A table of our own and not the constants of `libc`: the build script must know the target's numbers while it runs on
//! the host, and the tests check the programs of both architectures on either.

use std::collections::BTreeMap;

use thiserror::Error;

/// An architecture for which programs can be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// 64-bit x86.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

impl Arch {
    /// All of them, in the order of the table's columns.
    pub const ALL: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

    /// From the name that Rust gives it in `target_arch`.
    pub fn from_rust_name(name: &str) -> Option<Arch> {
        match name {
            "x86_64" => Some(Arch::X86_64),
            "aarch64" => Some(Arch::Aarch64),
            _ => None,
        }
    }

    /// The value of `seccomp_data.arch` for its native calls (`AUDIT_ARCH_*`: ELF machine, 64-bit, little-endian).
    pub fn audit_value(self) -> u32 {
        match self {
            Arch::X86_64 => 0xc000_003e,
            Arch::Aarch64 => 0xc000_00b7,
        }
    }
}

/// Names and numbers of all system calls.
#[derive(Clone, Debug)]
pub struct Table {
    numbers: BTreeMap<String, [Option<u32>; 2]>,
}

/// A line of the table that cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TableError {
    /// Not "name number number".
    #[error("syscall table, line {line}: expected a name and two numbers (or '-')")]
    Line {
        /// Counted from 1.
        line: usize,
    },
    /// The name is there already.
    #[error("syscall table, line {line}: {name} is listed twice")]
    Twice {
        /// Counted from 1.
        line: usize,
        /// The repeated name.
        name: String,
    },
}

impl Table {
    /// The table this crate carries.
    pub fn kernel() -> Result<Table, TableError> {
        Table::parse(include_str!("../profiles/syscalls.table"))
    }

    fn parse(text: &str) -> Result<Table, TableError> {
        let mut numbers = BTreeMap::new();
        for (index, content) in text.lines().enumerate() {
            let line = index + 1;
            let words: Vec<&str> = content.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
            let entry = match words[..] {
                [] => continue,
                [name, x86_64, aarch64] => (name, number(x86_64), number(aarch64)),
                _ => return Err(TableError::Line { line }),
            };
            let (name, Some(x86_64), Some(aarch64)) = entry else {
                return Err(TableError::Line { line });
            };
            if numbers.insert(name.to_owned(), [x86_64, aarch64]).is_some() {
                return Err(TableError::Twice { line, name: name.to_owned() });
            }
        }
        Ok(Table { numbers })
    }

    /// Whether any architecture has this call.
    pub fn knows(&self, name: &str) -> bool {
        self.numbers.contains_key(name)
    }

    /// The number of a call, if the architecture has it.
    pub fn number(&self, name: &str, arch: Arch) -> Option<u32> {
        let numbers = self.numbers.get(name)?;
        match arch {
            Arch::X86_64 => numbers[0],
            Arch::Aarch64 => numbers[1],
        }
    }

    /// All names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.numbers.keys().map(String::as_str)
    }
}

/// `Some(None)` for a call the architecture lacks, `None` for nonsense.
fn number(word: &str) -> Option<Option<u32>> {
    if word == "-" { Some(None) } else { word.parse().ok().map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample over the whole range: a shifted column or line would show.
    #[test]
    fn numbers_agree_with_libc() {
        let table = Table::kernel().unwrap();
        let arch = Arch::from_rust_name(std::env::consts::ARCH).unwrap();
        for (name, expected) in [
            ("read", libc::SYS_read),
            ("ioctl", libc::SYS_ioctl),
            ("socket", libc::SYS_socket),
            ("clone", libc::SYS_clone),
            ("ptrace", libc::SYS_ptrace),
            ("personality", libc::SYS_personality),
            ("mount", libc::SYS_mount),
            ("init_module", libc::SYS_init_module),
            ("keyctl", libc::SYS_keyctl),
            ("unshare", libc::SYS_unshare),
            ("setns", libc::SYS_setns),
            ("bpf", libc::SYS_bpf),
            ("statx", libc::SYS_statx),
            ("io_uring_setup", libc::SYS_io_uring_setup),
            ("clone3", libc::SYS_clone3),
            ("openat2", libc::SYS_openat2),
            ("memfd_secret", libc::SYS_memfd_secret),
            ("fchmodat2", libc::SYS_fchmodat2),
            ("mseal", libc::SYS_mseal),
        ] {
            assert_eq!(table.number(name, arch).map(i64::from), Some(expected), "{name}");
        }
    }

    #[test]
    fn no_number_stands_for_two_calls() {
        let table = Table::kernel().unwrap();
        for arch in Arch::ALL {
            let mut numbers: Vec<u32> = table.names().filter_map(|name| table.number(name, arch)).collect();
            let listed = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), listed, "{arch:?}");
            assert!(listed > 300, "{arch:?}: only {listed} calls");
        }
    }

    #[test]
    fn nonsense_is_an_error_with_its_line() {
        assert!(matches!(Table::parse("read 0 63\nwrite 1\n"), Err(TableError::Line { line: 2 })));
        assert!(matches!(Table::parse("read zero 63\n"), Err(TableError::Line { line: 1 })));
        assert!(matches!(Table::parse("# x\nread 0 63\nread 0 63\n"), Err(TableError::Twice { line: 3, .. })));
    }
}
