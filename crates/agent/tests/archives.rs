//! Folders as tar streams.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use common::*;
use sloplet_wire::*;
use tar::{Archive, Builder, EntryType, Header};

fn agent() -> (tempfile::TempDir, Agent) {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::fixed(folder.path());
    (folder, agent)
}

/// Sends as credit allows.
fn unpack(agent: &mut Agent, path: &str, archive: &[u8]) -> Event {
    let stream = agent.client.open(&Request::Unpack(target(path)));
    let mut credit = flow::INITIAL_WINDOW as usize;
    for chunk in archive.chunks(100_000) {
        while credit < chunk.len() {
            match agent.client.next(stream) {
                Seen::Window(0, more) => credit += more as usize,
                Seen::Event(event) => return event,
                other => panic!("{other:?}"),
            }
        }
        credit -= chunk.len();
        agent.client.send(stream, chunk);
    }
    agent.client.end(stream);
    agent.client.event(stream)
}

fn pack(agent: &mut Agent, path: &str) -> Result<Vec<u8>, ErrorCode> {
    let stream = agent.client.open(&Request::Pack(target(path)));
    let (events, data) = agent.client.download(stream);
    match &events[..] {
        [Event::Done] => Ok(data),
        other => Err(code(other.last().unwrap())),
    }
}

/// One entry, with whatever name.
fn entry(kind: EntryType, name: &[u8], link: &[u8], data: &[u8], mode: u32) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(data.len() as u64);
    header.set_mtime(1_000_000_000);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    let mut out = header.as_bytes().to_vec();
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

#[test]
fn a_folder_survives_the_round_trip() {
    let (folder, mut agent) = agent();
    let from = folder.path().join("from");
    let long = format!("{}/{}", "d".repeat(150), "f".repeat(200));
    fs::create_dir_all(from.join(&long).parent().unwrap()).unwrap();
    fs::write(from.join(&long), "long").unwrap();
    let big: Vec<u8> = (0..700_000u32).flat_map(u32::to_le_bytes).collect();
    fs::write(from.join("big"), &big).unwrap();
    fs::write(from.join("empty"), "").unwrap();
    fs::set_permissions(from.join("empty"), fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("x".repeat(150), from.join("link")).unwrap();
    fs::create_dir(from.join("closed")).unwrap();
    fs::write(from.join("closed/file"), "in").unwrap();
    fs::set_permissions(from.join("closed"), fs::Permissions::from_mode(0o555)).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(from.join("fifo")).status().unwrap().success());

    let archive = pack(&mut agent, "from").unwrap();
    // An independent reader agrees.
    let mut names: Vec<String> = Archive::new(&archive[..])
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    let folder_name = "d".repeat(150);
    let expected = ["big", "closed/", "closed/file", &format!("{folder_name}/"), &long, "empty", "link"];
    assert_eq!(names, expected);

    assert_eq!(unpack(&mut agent, "made/to", &archive), Event::Done);
    let to = folder.path().join("made/to");
    assert!(fs::read(to.join("big")).unwrap() == big);
    assert_eq!(fs::read(to.join(&long)).unwrap(), b"long");
    assert_eq!(fs::read_link(to.join("link")).unwrap().to_str().unwrap(), "x".repeat(150));
    assert_eq!(fs::metadata(to.join("empty")).unwrap().mode() & 0o7777, 0o755, "setuid is dropped");
    assert_eq!(fs::metadata(to.join("closed")).unwrap().mode() & 0o7777, 0o555);
    assert_eq!(fs::read(to.join("closed/file")).unwrap(), b"in");
    assert_eq!(fs::metadata(to.join("big")).unwrap().mtime(), fs::metadata(from.join("big")).unwrap().mtime());
    // Once more over itself; a read-only folder has to be opened for that.
    for folder in [&from, &to] {
        fs::set_permissions(folder.join("closed"), fs::Permissions::from_mode(0o755)).unwrap();
    }
    assert_eq!(unpack(&mut agent, "made/to", &archive), Event::Done);

    // One file.
    let archive = pack(&mut agent, "from/big").unwrap();
    let mut single = Archive::new(&archive[..]);
    let mut entry = single.entries().unwrap().next().unwrap().unwrap();
    assert_eq!(entry.path_bytes().as_ref(), b"big");
    let mut content = Vec::new();
    entry.read_to_end(&mut content).unwrap();
    assert!(content == big);
    assert_eq!(pack(&mut agent, "from/fifo"), Err(ErrorCode::WrongType));
}

#[test]
fn foreign_archives_with_pax_names_are_understood() {
    let (folder, mut agent) = agent();
    let script = "import tarfile,io\nt=tarfile.open('a.tar','w',format=tarfile.PAX_FORMAT)\n\
        i=tarfile.TarInfo('p/'+'n'*180+'/\\u00e9'); i.size=3; i.mtime=1.5; t.addfile(i, io.BytesIO(b'pax'))\n\
        l=tarfile.TarInfo('hard'); l.type=tarfile.LNKTYPE; l.linkname=i.name; t.addfile(l)\nt.close()";
    assert_eq!(agent.client.run(exec(&["python3", "-c", script])).exit.code, Some(0));
    let archive = fs::read(folder.path().join("a.tar")).unwrap();
    assert_eq!(unpack(&mut agent, "out", &archive), Event::Done);
    assert_eq!(fs::read(folder.path().join(format!("out/p/{}/é", "n".repeat(180)))).unwrap(), b"pax");
    assert_eq!(fs::metadata(folder.path().join("out/hard")).unwrap().nlink(), 2);
}

#[test]
fn archives_cannot_write_elsewhere() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("victim"), "safe").unwrap();
    let (folder, mut agent) = agent();
    fs::write(folder.path().join("beside"), "safe").unwrap();
    fs::create_dir(folder.path().join("into")).unwrap();
    let out = outside.path().to_str().unwrap().as_bytes();
    let victim = [out, b"/victim"].concat();
    let file = |name: &[u8]| entry(EntryType::Regular, name, b"", b"evil", 0o644);
    let archives: Vec<(&str, Vec<u8>, ErrorCode)> = vec![
        ("absolute", file(&victim), ErrorCode::Denied),
        ("up", file(b"../beside"), ErrorCode::Denied),
        ("hidden up", file(b"a/b/../../../beside"), ErrorCode::Denied),
        (
            "link then file",
            [entry(EntryType::Symlink, b"l", out, b"", 0o777), file(b"l/victim")].concat(),
            ErrorCode::Denied,
        ),
        (
            "relative link",
            [entry(EntryType::Symlink, b"l", b"..", b"", 0o777), file(b"l/beside")].concat(),
            ErrorCode::Denied,
        ),
        (
            "link then folder",
            [entry(EntryType::Symlink, b"m", out, b"", 0o777), entry(EntryType::Directory, b"m/new/", b"", b"", 0o755)]
                .concat(),
            ErrorCode::Denied,
        ),
        ("hard link out", entry(EntryType::Link, b"h", &victim, b"", 0o644), ErrorCode::Denied),
        ("hard link up", entry(EntryType::Link, b"h", b"../beside", b"", 0o644), ErrorCode::Denied),
        (
            "hard link through link",
            [entry(EntryType::Symlink, b"l", out, b"", 0o777), entry(EntryType::Link, b"h", b"l/victim", b"", 0)]
                .concat(),
            ErrorCode::Denied,
        ),
        ("device", entry(EntryType::Char, b"null", b"", b"", 0o666), ErrorCode::Denied),
        ("fifo", entry(EntryType::Fifo, b"fifo", b"", b"", 0o666), ErrorCode::Denied),
        ("unnamed", file(b"."), ErrorCode::Invalid),
        ("noise", vec![7; 2048], ErrorCode::Invalid),
        ("cut off", file(b"ok")[..600].to_vec(), ErrorCode::Invalid),
        ("huge name", entry(EntryType::GNULongName, b"x", b"", &vec![b'a'; 300_000], 0), ErrorCode::Invalid),
        ("bad pax", entry(EntryType::XHeader, b"x", b"", b"99999 path=x\n", 0), ErrorCode::Invalid),
        (
            "pax up",
            [entry(EntryType::XHeader, b"x", b"", b"18 path=../beside\n", 0), file(b"ok")].concat(),
            ErrorCode::Denied,
        ),
    ];
    for (name, archive, expected) in archives {
        assert_eq!(code(&unpack(&mut agent, "into", &archive)), expected, "{name}");
    }
    // A symlink in the way of a file is replaced, not written through.
    let archive = [entry(EntryType::Symlink, b"v", &victim, b"", 0o777), file(b"v")].concat();
    assert_eq!(unpack(&mut agent, "into", &archive), Event::Done);
    assert_eq!(fs::read(folder.path().join("into/v")).unwrap(), b"evil");
    assert_eq!(fs::read(outside.path().join("victim")).unwrap(), b"safe");
    assert_eq!(fs::metadata(outside.path().join("victim")).unwrap().nlink(), 1);
    assert_eq!(fs::read(folder.path().join("beside")).unwrap(), b"safe");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn a_file_appears_when_all_of_it_has_come() {
    let (folder, mut agent) = agent();
    let whole = [
        entry(EntryType::Regular, b"first", b"", b"whole", 0o644),
        entry(EntryType::Regular, b"deep/second", b"", &[7; 3000], 0o644),
    ]
    .concat();
    let (into, names) = (folder.path().join("into"), |path: &std::path::Path| {
        let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    });
    // Cut off within the second: what was there before is still there, and nothing else.
    fs::create_dir_all(into.join("deep")).unwrap();
    fs::write(into.join("deep/second"), "old").unwrap();
    assert_eq!(code(&unpack(&mut agent, "into", &whole[..2000])), ErrorCode::Invalid);
    assert_eq!((names(&into), names(&into.join("deep"))), (vec!["deep".into(), "first".into()], vec!["second".into()]));
    assert_eq!(fs::read(into.join("deep/second")).unwrap(), b"old");
    assert_eq!(fs::read(into.join("first")).unwrap(), b"whole");
    // The same when nobody says that it is over.
    let stream = agent.client.open(&Request::Unpack(target("into")));
    agent.client.send(stream, &whole[..2000]);
    let begun = std::time::Instant::now();
    while names(&into.join("deep")).len() < 2 {
        assert!(begun.elapsed().as_secs() < 10, "nothing is written");
    }
    agent.client.reset(stream);
    while names(&into.join("deep")).len() > 1 {
        assert!(begun.elapsed().as_secs() < 10, "something is left");
    }
    assert_eq!(unpack(&mut agent, "into", &whole), Event::Done);
    assert!(fs::read(into.join("deep/second")).unwrap() == [7; 3000]);
    // A folder in the way is told, and stays.
    let onto = entry(EntryType::Regular, b"deep", b"", b"x", 0o644);
    assert_eq!(code(&unpack(&mut agent, "into", &onto)), ErrorCode::WrongType);
    assert_eq!(names(&into.join("deep")), vec!["second"]);
}

#[test]
fn what_is_unpacked_belongs_to_the_asked_user() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut agent = Agent::switching("root");
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(2);
    header.set_uid(0);
    header.set_mode(0o600);
    builder.append_data(&mut header, "sub/file", &b"hi"[..]).unwrap();
    let archive = builder.into_inner().unwrap();
    let request = Request::Unpack(Target { user: Some("4321:8765".into()), ..target(folder.path().join("to")) });
    let stream = agent.client.open(&request);
    agent.client.send(stream, &archive);
    agent.client.end(stream);
    assert_eq!(agent.client.event(stream), Event::Done);
    for path in ["to", "to/sub", "to/sub/file"] {
        let meta = fs::metadata(folder.path().join(path)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (4321, 8765), "{path}");
    }
}
