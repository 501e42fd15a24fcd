//! Choosing a target, and writing down its seeds.

use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;

use crate::Target;

/// Texts as seeds.
pub fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Splits the first byte off: how long the pieces are in which the rest arrives.
pub fn pieces(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    Some((usize::from(*first) + 1, rest))
}

/// Seeds for [`pieces`].
pub fn in_pieces(seeds: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    seeds.into_iter().flat_map(|seed| [0, 6, 255].map(|size| [&[size], seed.as_slice()].concat())).collect()
}

/// Looks at the environment before the first input.
pub fn begin(targets: &'static [(&'static str, Target)]) {
    if std::env::var_os("SLOPLET_FUZZ_TARGET").is_none() {
        for (name, target) in targets {
            println!("{name} {}", target.longest);
        }
        leave(0);
    }
    let target = chosen(targets);
    if let Some(folder) = std::env::var_os("SLOPLET_FUZZ_SEEDS") {
        if let Err(error) = write(target, Path::new(&folder)) {
            eprintln!("seeds: {}: {error}", Path::new(&folder).display());
            leave(1);
        }
        leave(0);
    }
}

fn write(target: &Target, folder: &Path) -> std::io::Result<()> {
    for (number, seed) in (target.seeds)().iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), seed)?;
    }
    let words: Vec<String> =
        target.words.iter().map(|word| word.bytes().map(|b| format!("\\x{b:02x}")).collect()).collect();
    std::fs::write(folder.join("words"), words.iter().map(|word| format!("\"{word}\"\n")).collect::<String>())
}

/// The target that the environment names.
pub fn chosen(targets: &'static [(&'static str, Target)]) -> &'static Target {
    static CHOSEN: OnceLock<&'static Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("SLOPLET_FUZZ_TARGET").unwrap_or_default();
        match targets.iter().find(|(known, _)| *known == name) {
            Some((_, target)) => target,
            None => {
                eprintln!("there is no fuzz target '{name}': run without SLOPLET_FUZZ_TARGET to list them");
                leave(2)
            }
        }
    })
}

fn leave(status: i32) -> ! {
    let _ = std::io::stdout().flush();
    std::process::exit(status)
}

/// Messages of the wire protocol, encoded.
pub fn wire_payloads() -> Vec<Vec<u8>> {
    use sloplet_wire::message::to_bytes;
    use sloplet_wire::{Event, Exec, Exit, Failure, Hello, Request, Target, TerminalSize};
    let target = Target { path: b"/tmp/x".to_vec().into(), user: Some("user".into()), privileged: false };
    let exec = Exec {
        argv: vec![b"sh".to_vec().into(), b"-c".to_vec().into()],
        env: vec![b"A=1".to_vec().into()],
        cwd: Some(b"/".to_vec().into()),
        terminal: Some(TerminalSize { columns: 80, rows: 24 }),
        timeout_ms: Some(1000),
        ..Exec::default()
    };
    let failure = Failure { code: sloplet_wire::ErrorCode::NotFound, message: "no such file".into() };
    let exit = Exit { code: None, signal: Some(9), timed_out: true, cpu_us: 7, max_rss_kib: 8 };
    vec![
        to_bytes(&Hello { version: sloplet_wire::VERSION, build: "0.1.0".into(), longest_request: Some(1 << 21) }),
        to_bytes(&Request::Exec(exec)),
        to_bytes(&Request::List { target: target.clone(), depth: 2 }),
        to_bytes(&Request::Write { target: target.clone(), mode: 0o644, parents: true, attributes: Vec::new() }),
        to_bytes(&Request::Read { target, offset: 1, length: Some(2) }),
        to_bytes(&Event::Failed(failure)),
        to_bytes(&Event::Exited(exit)),
        to_bytes(&Event::Started { pid: 7, held: None }),
    ]
}

/// The same in frames, with data and a window behind them.
pub fn wire_frames() -> Vec<Vec<u8>> {
    use sloplet_wire::{Kind, frame};
    let framed = |kind: Kind, stream: u32, payload: &[u8]| {
        let mut out = Vec::new();
        frame::encode(&mut out, kind, stream, 1, payload);
        out
    };
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for (number, payload) in wire_payloads().iter().enumerate() {
        let kind = match number {
            0 => Kind::Hello,
            1..=4 => Kind::Request,
            _ => Kind::Event,
        };
        frames.push(framed(kind, number as u32, payload));
    }
    frames.push(framed(Kind::Data, 1, b"output"));
    frames
}

/// Calls with an empty folder in memory, which is gone afterwards whatever is in it.
pub fn within_folder(call: impl FnOnce(&Path)) {
    let base = Path::new(if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" });
    let folder = base.join(format!("sloplet-fuzz-{}", std::process::id()));
    clear(&folder);
    if std::fs::create_dir(&folder).is_ok() {
        call(&folder);
        clear(&folder);
    }
}

/// Removes a folder, also one whose folders may not be entered.
fn clear(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let Ok(metadata) = std::fs::symlink_metadata(folder) else { return };
    if !metadata.is_dir() {
        let _ = std::fs::remove_file(folder);
        return;
    }
    let _ = std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700));
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        clear(&entry.path());
    }
    let _ = std::fs::remove_dir(folder);
}

/// Runs what needs a runtime.
pub fn within_runtime(future: impl Future<Output = ()>) {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    }
    RUNTIME.with(|runtime| runtime.block_on(future));
}

/// One member of an archive.
pub fn member(name: &str, kind: u8, link: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, name.as_bytes());
    put(100, b"0000755\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(157, link.as_bytes());
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut out = header.to_vec();
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

/// The archive with right sums in its headers: a fuzzer does not learn to add them up.
pub fn summed(archive: &[u8]) -> Vec<u8> {
    let mut out = archive.to_vec();
    for header in out.as_chunks_mut::<512>().0.iter_mut().filter(|block| &block[257..262] == b"ustar") {
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    out
}

/// Archives with one of everything.
pub fn archives() -> Vec<Vec<u8>> {
    let end = vec![0; 1024];
    let pax = b"30 path=dir/long name of a file\n22 SCHILY.xattr.user.a=b\n".as_slice();
    let members = [
        member("dir/", b'5', "", b""),
        member("dir/file", b'0', "", b"content"),
        member("dir/link", b'2', "../dir/file", b""),
        member("dir/hard", b'1', "dir/file", b""),
        member("dir/.wh.gone", b'0', "", b""),
        member("dir/.wh..wh..opq", b'0', "", b""),
        member("out", b'2', "/etc", b""),
        member("out/passwd", b'0', "", b"x"),
        member("../up", b'0', "", b"x"),
        member("node", b'3', "", b""),
        member("fifo", b'6', "", b""),
        [member("././@LongLink", b'L', "", b"dir/a name from before\0"), member("short", b'0', "", b"x")].concat(),
        [member("pax", b'x', "", pax), member("short", b'0', "", b"x")].concat(),
    ];
    let mut seeds: Vec<Vec<u8>> = members.iter().map(|one| [one.as_slice(), &end].concat()).collect();
    seeds.push([members[..6].concat(), end.clone()].concat());
    seeds.push([members.concat(), end].concat());
    seeds
}
