//! What a machine boots: the kernel, and a first root with this very program in it; made once for each pair of them.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use sloplet_engine::DriverError;

use crate::cpio::Archive;
use crate::kernel::{self, Kernel};
use crate::{cache, failed, modules, shim};

/// Files to boot from.
#[derive(Debug, Clone)]
pub struct Boot {
    /// The folder they are in.
    pub folder: PathBuf,
    /// Bytes of the first root.
    pub initrd_bytes: u64,
    /// Whether a guest does not look at its disks before it is told to: what drives them is no part of the kernel itself.
    pub looks_late: bool,
}

/// The kernel's name in the folder.
pub const KERNEL: &str = "kernel";
/// The first root's.
pub const INITRD: &str = "initrd";

/// This program's, for what has to be done beside QEMU.
pub const HELPER: &str = "helper";

/// A file that is there if guests look at their disks late.
const LATE: &str = "late";

/// What lets QEMU map a saved memory.
pub const SHIM: &str = "shim";

/// Makes what `kernel` and `program` need, if it is not there.
pub fn provide(data_dir: &Path, kernel: &Kernel, program: &Path) -> Result<Boot, DriverError> {
    let identity = ["4", &kernel.version, &cache::stamp(&kernel.image), &cache::stamp(program)];
    let folder = cache::folder(data_dir, &format!("boot-{}", cache::key(&identity)), |dir| {
        let packed = fs::read(&kernel.image).map_err(|error| failed("read the kernel", error))?;
        let plain = kernel::unpack(&packed).unwrap_or(packed);
        fs::write(dir.join(KERNEL), plain).map_err(|error| failed("keep the kernel", error))?;
        let program = fs::read(program).map_err(|error| failed("read this program", error))?;
        let mut helper = segments_of(&program).to_vec();
        forget_sections(&mut helper);
        let written = fs::write(dir.join(HELPER), helper)
            .and_then(|()| fs::set_permissions(dir.join(HELPER), std::os::unix::fs::PermissionsExt::from_mode(0o755)));
        written.map_err(|error| failed("keep this program", error))?;
        fs::write(dir.join(SHIM), shim::library()).map_err(|error| failed("keep a library", error))?;
        let modules = modules::of(kernel)?;
        if modules.iter().any(|module| module.name == modules::DISKS) {
            fs::write(dir.join(LATE), "").map_err(|error| failed("keep what is known of the kernel", error))?;
        }
        write_initrd(&dir.join(INITRD), segments_of(&program), &modules)
            .map_err(|error| failed("make the first root", error))
    })?;
    let initrd_bytes = fs::metadata(folder.join(INITRD)).map_err(|error| failed("find the first root", error))?.len();
    let looks_late = folder.join(LATE).exists();
    Ok(Boot { folder, initrd_bytes, looks_late })
}

fn write_initrd(path: &Path, program: &[u8], modules: &[modules::Module]) -> std::io::Result<()> {
    let mut archive = Archive::new(BufWriter::new(File::create(path)?));
    for folder in ["dev", "proc", "sys", "root", "modules"] {
        archive.folder(folder)?;
    }
    archive.device("dev/console", 5, 1)?;
    archive.device("dev/null", 1, 3)?;
    for (number, module) in modules.iter().enumerate() {
        archive.file(&format!("modules/{number:02}-{}", module.name), &module.code)?;
    }
    let mut program = program.to_vec();
    forget_sections(&mut program);
    archive.file("init", &program)?;
    archive.finish()?.flush()
}

/// What of an ELF file is loaded: symbols and debug information, most of a debug build, come after it.
fn segments_of(program: &[u8]) -> &[u8] {
    let number = |at: usize, length: usize| {
        let bytes = program.get(at..at + length)?;
        Some(bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)))
    };
    let end = || {
        let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        (0..count).try_fold(0, |end, index| {
            let entry = usize::try_from(table + index * size).ok()?;
            Some(end.max(number(entry + 8, 8)?.checked_add(number(entry + 32, 8)?)?))
        })
    };
    let end = if program.starts_with(b"\x7fELF\x02\x01") { end() } else { None };
    end.and_then(|end| program.get(..usize::try_from(end).ok()?)).unwrap_or(program)
}

/// Without a table of sections, which was cut off.
fn forget_sections(program: &mut [u8]) {
    if let Some(offset) = program.get_mut(40..48) {
        offset.fill(0);
    }
    if let Some(counts) = program.get_mut(60..64) {
        counts.fill(0);
    }
}
