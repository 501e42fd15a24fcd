//! A library of a few hundred bytes that lets QEMU map a saved memory that it cannot write to.
//!
//! Forks share one file of memory: each maps it privately, so that what it changes is its own. QEMU opens such a file for
//! writing all the same (before 8.2 there is no way to tell it not to), which must not be possible: whoever broke out of one
//! machine could change the memory of all others. So for files of a saved machine this library, loaded before libc, opens
//! them for reading. It is written here, byte by byte, so that no compiler is needed.

/// Paths that begin so are opened for reading only.
const PREFIX: &[u8] = b"/mnt/saved/";

/// What of libc is stood in for, and by what of libc it is done.
const NAMES: [&str; 2] = ["open64", "__open64_2"];
const USED: &str = "openat64";

/// Where the part that is written to begins: the table of addresses that the linker fills, and what it reads.
const DATA: u64 = 0x1000;

/// `openat64(AT_FDCWD, path, flags, mode)`, without the flags for writing if the path begins with the prefix.
/// `jump` is the place of the address of `openat64`, as seen from the beginning of the code.
fn code(jump: i64) -> Vec<u8> {
    let mut code = Vec::new();
    let clear = [0x83, 0xe6, 0xfc]; // and esi, ~3
    for (at, byte) in PREFIX.iter().enumerate() {
        let left = (PREFIX.len() - at - 1) * 6 + clear.len();
        code.extend([0x80, 0x7f, at as u8, *byte]); // cmp byte [rdi + at], byte
        code.extend([0x75, left as u8]); // jne past the clearing
    }
    code.extend(clear);
    code.extend([0x89, 0xd1]); // mov ecx, edx
    code.extend([0x89, 0xf2]); // mov edx, esi
    code.extend([0x48, 0x89, 0xfe]); // mov rsi, rdi
    code.extend([0xbf, 0x9c, 0xff, 0xff, 0xff]); // mov edi, AT_FDCWD
    code.extend([0xff, 0x25]); // jmp [rip + …]
    let next = code.len() as i64 + 4;
    code.extend(((jump - next) as i32).to_le_bytes());
    code
}

/// The library, an ELF file.
pub fn library() -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut name = |text: &str| {
        let at = strings.len() as u32;
        strings.extend(text.as_bytes());
        strings.push(0);
        at
    };
    let (used, names) = (name(USED), NAMES.map(&mut name));
    // After the header and four entries of its table.
    let at_strings = 64 + 4 * 56u64;
    let at_symbols = (at_strings + strings.len() as u64).next_multiple_of(8);
    let count = 2 + NAMES.len() as u64;
    let at_hash = at_symbols + 24 * count;
    let at_relocations = (at_hash + 4 * (3 + count)).next_multiple_of(8);
    let at_code = at_relocations + 24;
    let code = code(DATA as i64 - at_code as i64);

    let (mut symbols, mut hash) = (vec![0u8; 24], Vec::new());
    let mut symbol = |name: u32, section: u16, value: u64| {
        symbols.extend(name.to_le_bytes());
        symbols.extend([0x12, 0]); // a global function
        symbols.extend(section.to_le_bytes());
        symbols.extend(value.to_le_bytes());
        symbols.extend(if section == 0 { 0u64 } else { code.len() as u64 }.to_le_bytes());
    };
    symbol(used, 0, 0);
    names.iter().for_each(|name| symbol(*name, 1, at_code));
    // One bucket, whose chain goes through all of them.
    let links = [1, count as u32, count as u32 - 1, 0].into_iter().chain(0..count as u32 - 1);
    links.for_each(|word| hash.extend(word.to_le_bytes()));

    let dynamic: Vec<u8> = [
        (4, at_hash),
        (5, at_strings),
        (6, at_symbols),
        (10, strings.len() as u64),
        (11, 24),
        (7, at_relocations),
        (8, 24),
        (9, 24),
        (0, 0),
    ]
    .iter()
    .flat_map(|(tag, value): &(u64, u64)| [tag.to_le_bytes(), value.to_le_bytes()].concat())
    .collect();
    let at_dynamic = DATA + 8;

    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [3u16, 62] {
        file.extend(half.to_le_bytes()); // a library for x86_64
    }
    file.extend(1u32.to_le_bytes());
    for word in [0u64, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 4, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    let mut segment = |kind: u32, flags: u32, at: u64, size: u64, align: u64| {
        file.extend(kind.to_le_bytes());
        file.extend(flags.to_le_bytes());
        for word in [at, at, at, size, size, align] {
            file.extend(word.to_le_bytes());
        }
    };
    segment(1, 5, 0, at_code + code.len() as u64, 0x1000);
    segment(1, 6, DATA, 8 + dynamic.len() as u64, 0x1000);
    segment(2, 6, at_dynamic, dynamic.len() as u64, 8);
    segment(0x6474_e551, 6, 0, 0, 16); // a stack that nothing is executed from
    let mut put = |at: u64, bytes: &[u8]| {
        file.resize(at as usize, 0);
        file.extend(bytes);
    };
    put(at_strings, &strings);
    put(at_symbols, &symbols);
    put(at_hash, &hash);
    // The address of the first symbol goes to the beginning of the data.
    let relocation = [DATA.to_le_bytes(), (1u64 << 32 | 6).to_le_bytes(), 0u64.to_le_bytes()].concat();
    put(at_relocations, &relocation);
    put(at_code, &code);
    put(DATA, &[0; 8]);
    put(at_dynamic, &dynamic);
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_program_with_it_cannot_write_to_saved_files_and_sees_no_other_difference() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("shim");
        std::fs::write(&file, library()).unwrap();
        let script = "import ctypes,os\n\
            libc=ctypes.CDLL(None,use_errno=True)\n\
            def fl(p,f): d=libc.open64(p.encode(),f,0o600); return -ctypes.get_errno() if d<0 else int(open(f'/proc/self/fdinfo/{d}').read().split()[3],8)&3\n\
            print(fl('/mnt/saved/none',2), fl('/dev/null',2), fl('/dev/null',1), fl('/none',0), fl('/mnt/x',0), fl('/',0))";
        let output = Command::new("python3").args(["-c", script]).env("LD_PRELOAD", &file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.trim(), "-2 2 1 -2 -2 0");
    }

    #[test]
    fn the_flags_for_writing_are_cleared() {
        // Where the prefix is there: a folder cannot be opened for writing (EISDIR), but for reading.
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("shim");
        let other = dir.path().to_str().unwrap();
        let mut bytes = library();
        // The prefix is in the code, byte for byte: another of the same length for this test.
        let wanted = format!("{:/<width$}", "/proc", width = PREFIX.len());
        for (at, (old, new)) in PREFIX.iter().zip(wanted.bytes()).enumerate() {
            let compare = [0x80, 0x7f, at as u8, *old];
            let place = bytes.windows(4).position(|part| part == compare).unwrap();
            bytes[place + 3] = new;
        }
        std::fs::write(&file, bytes).unwrap();
        let script = format!(
            "import os\nfd=os.open('{wanted}', os.O_RDWR)\ntry: os.open('{other}', os.O_RDWR)\nexcept IsADirectoryError: print('as ever')"
        );
        let output = Command::new("python3").args(["-c", &script]).env("LD_PRELOAD", &file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.trim(), "as ever");
    }
}
