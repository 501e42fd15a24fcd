//! The kernel that machines boot: found on the host, or in a folder of ours.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};
use sloplet_engine::DriverError;

use crate::{cache, failed};

/// Names the kernel to boot: a file `vmlinuz-VERSION`, or a folder with `boot` and `lib/modules`.
pub const VARIABLE: &str = "SLOPLET_VM_KERNEL";

/// The folder within the data folder that `sloplet vm setup` fills.
pub const FOLDER: &str = "vm/kernel";

/// A kernel and its modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// `vmlinuz-…`.
    pub image: PathBuf,
    /// Its modules.
    pub modules: PathBuf,
    /// Its version.
    pub version: String,
}

/// Kernels that are taken only where there is no other. With this one (Debian's 6.1.192), once a process in the guest has run out
/// of memory, what reads the machine's disk may wait for ever: it cannot be saved then.
const TROUBLED: [&str; 1] = ["6.1.0-55-cloud-amd64"];

/// What to know of those.
pub const TROUBLE: &str = "a machine in which a process ran out of memory may not be saved any more; take another";

/// Whether a version, or the name of its package, is that of a kernel that is better not taken.
pub fn is_troubled(name: &str) -> bool {
    TROUBLED.iter().any(|version| name.ends_with(version))
}

/// What to do where there is none.
pub const REMEDY: &str = "run 'sloplet vm setup' (downloads Debian's or Ubuntu's cloud kernel into the data folder), \
                          or name one in SLOPLET_VM_KERNEL";

/// Finds a kernel: the one that was named, ours, the host's; cloud kernels first, the newest of those.
pub fn find(data_dir: &Path) -> Result<Kernel, DriverError> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        let named = PathBuf::from(named);
        let found = if named.is_dir() { newest(&named) } else { at(&named, named.parent().and_then(Path::parent)) };
        let why = format!("{VARIABLE} names {}, which has no kernel with its modules", named.display());
        return found.ok_or_else(|| failed("find a kernel", why));
    }
    let places = [data_dir.join(FOLDER), PathBuf::from("/")];
    let found = places.iter().find_map(|root| newest(root));
    found.ok_or_else(|| failed("find a kernel for the virtual machine", format!("there is none in /boot: {REMEDY}")))
}

/// The digest of a kernel's file. It is kept, for reading it takes a while.
pub fn digest(data_dir: &Path, kernel: &Kernel) -> std::io::Result<String> {
    let place = data_dir.join(cache::FOLDER).join(format!("digest-{}", cache::key(&[&cache::stamp(&kernel.image)])));
    if let Ok(kept) = fs::read_to_string(&place) {
        return Ok(kept);
    }
    let digest: String = Sha256::digest(fs::read(&kernel.image)?).iter().map(|byte| format!("{byte:02x}")).collect();
    // Where nothing can be kept it is read each time.
    let _ = fs::write(&place, &digest);
    Ok(digest)
}

/// The best kernel below a root.
fn newest(root: &Path) -> Option<Kernel> {
    let entries = fs::read_dir(root.join("boot")).ok()?;
    let mut found: Vec<Kernel> = entries.flatten().filter_map(|entry| at(&entry.path(), Some(root))).collect();
    let rank =
        |kernel: &Kernel| (!is_troubled(&kernel.version), kernel.version.contains("cloud"), numbers(&kernel.version));
    found.sort_by_key(rank);
    found.pop()
}

/// The numbers in a version, to be compared.
pub fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

fn at(image: &Path, root: Option<&Path>) -> Option<Kernel> {
    let version = image.file_name()?.to_str()?.strip_prefix("vmlinuz-")?.to_owned();
    let below = |root: &Path| {
        let places = [root.join("lib/modules"), root.join("usr/lib/modules")];
        places.map(|place| place.join(&version)).into_iter().find(|place| place.join("kernel").is_dir())
    };
    let modules = root.and_then(below).or_else(|| below(Path::new("/")))?;
    fs::File::open(image).ok()?;
    Some(Kernel { image: image.to_owned(), modules, version })
}

/// The kernel as an ELF file, which a machine starts a second sooner than the packed one; the packed one if it is packed in
/// a way that is not known here.
pub fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| Some(u32::from_le_bytes(packed.get(at..at + 4)?.try_into().ok()?) as usize);
    if packed.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let start = (usize::from(*packed.get(0x1f1)?) + 1) * 512 + word(0x248)?;
    let payload = packed.get(start..start.checked_add(word(0x24c)?)?)?;
    let plain = match payload {
        [0x02, 0x21, 0x4c, 0x18, ..] => lz4(payload.get(4..)?)?,
        [0x1f, 0x8b, ..] => read(flate2::read::GzDecoder::new(payload))?,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => read(zstd::Decoder::with_buffer(payload).ok()?.single_frame())?,
        [0xfd, b'7', b'z', b'X', b'Z', ..] => by_program("xz", payload)?,
        _ => return None,
    };
    plain.starts_with(b"\x7fELF").then_some(plain)
}

/// A file that may be packed, by its name.
pub fn read_packed(path: &Path) -> Result<Vec<u8>, DriverError> {
    let step = || format!("read {}", path.display());
    let bytes = fs::read(path).map_err(|error| failed(&step(), error))?;
    let plain = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => by_program("xz", &bytes),
        Some("gz") => read(flate2::read::GzDecoder::new(&bytes[..])),
        Some("zst") => zstd::Decoder::with_buffer(&bytes[..]).ok().and_then(|source| read(source.single_frame())),
        _ => return Ok(bytes),
    };
    plain.ok_or_else(|| failed(&step(), "it cannot be unpacked"))
}

fn read(mut source: impl Read) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    // The stream may be followed by other bytes, which some decoders take for a fault.
    match source.read_to_end(&mut plain) {
        Err(_) if plain.is_empty() => None,
        _ => Some(plain),
    }
}

fn by_program(program: &str, packed: &[u8]) -> Option<Vec<u8>> {
    let mut file = tempfile::tempfile().ok()?;
    std::io::Write::write_all(&mut file, packed).ok()?;
    std::io::Seek::rewind(&mut file).ok()?;
    let output =
        Command::new(program).args(["-dc", "--single-stream"]).stdin(file).stderr(Stdio::null()).output().ok()?;
    (!output.stdout.is_empty()).then_some(output.stdout)
}

/// The frames of an old LZ4 stream, as kernels have it.
fn lz4(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    while let Some((head, tail)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*head) as usize;
        // The kernel's build appends the size of the whole.
        if length == 0 || length > tail.len() {
            break;
        }
        let (block, tail) = tail.split_at(length);
        lz4_block(block, &mut plain)?;
        rest = tail;
    }
    Some(plain)
}

fn lz4_block(block: &[u8], plain: &mut Vec<u8>) -> Option<()> {
    let floor = plain.len();
    let mut at = 0;
    let longer = |at: &mut usize, mut length: usize| {
        if length == 15 {
            loop {
                let byte = *block.get(*at)?;
                *at += 1;
                length += usize::from(byte);
                if byte != 255 {
                    break;
                }
            }
        }
        Some(length)
    };
    while let Some(token) = block.get(at) {
        at += 1;
        let literals = longer(&mut at, usize::from(token >> 4))?;
        plain.extend_from_slice(block.get(at..at + literals)?);
        at += literals;
        if at >= block.len() {
            break;
        }
        let offset = usize::from(u16::from_le_bytes(block.get(at..at + 2)?.try_into().ok()?));
        at += 2;
        let length = longer(&mut at, usize::from(token & 15))? + 4;
        let from = plain.len().checked_sub(offset).filter(|from| *from >= floor && offset > 0)?;
        for step in 0..length {
            plain.push(plain[from + step]);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_with_copies_are_unpacked() {
        // Three literals, a copy of nine bytes three back, two literals.
        let mut plain = Vec::new();
        lz4_block(&[0x35, b'a', b'b', b'c', 3, 0, 0x20, b'd', b'e'], &mut plain).unwrap();
        assert_eq!(plain, b"abcabcabcabcde");
        assert!(lz4_block(&[0x10, b'a', 9, 0], &mut Vec::new()).is_none(), "a copy from before the beginning");
    }

    #[test]
    fn cloud_kernels_come_first_and_then_the_newest_that_is_well() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["6.9.1-amd64", "6.1.0-9-cloud-amd64", "6.1.0-54-cloud-amd64", TROUBLED[0]] {
            fs::create_dir_all(dir.path().join("lib/modules").join(version).join("kernel")).unwrap();
            fs::create_dir_all(dir.path().join("boot")).unwrap();
            fs::write(dir.path().join("boot").join(format!("vmlinuz-{version}")), "x").unwrap();
        }
        fs::write(dir.path().join("boot/vmlinuz-9-without-modules"), "x").unwrap();
        assert_eq!(newest(dir.path()).unwrap().version, "6.1.0-54-cloud-amd64");
    }
}
