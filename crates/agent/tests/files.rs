//! Files: every request, and what hostile content must not achieve.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use common::*;
use sloplet_wire::*;

fn agent() -> (tempfile::TempDir, Agent) {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::fixed(folder.path());
    (folder, agent)
}

fn read(agent: &mut Agent, path: impl AsRef<Path>) -> Result<Vec<u8>, ErrorCode> {
    let stream = agent.client.open(&Request::Read { target: target(path), offset: 0, length: None });
    let (events, data) = agent.client.download(stream);
    match events.last() {
        Some(Event::Done) => Ok(data),
        Some(other) => Err(code(other)),
        None => unreachable!(),
    }
}

fn write(agent: &mut Agent, path: impl AsRef<Path>, data: &[u8], parents: bool) -> Result<Entry, ErrorCode> {
    let stream =
        agent.client.open(&Request::Write { target: target(path), mode: 0o640, parents, attributes: Vec::new() });
    agent.client.send(stream, data);
    agent.client.end(stream);
    match agent.client.event(stream) {
        Event::Entry(entry) => Ok(entry),
        other => Err(code(&other)),
    }
}

fn list(agent: &mut Agent, path: impl AsRef<Path>, depth: u32) -> Vec<Entry> {
    let stream = agent.client.open(&Request::List { target: target(path), depth });
    let mut all = Vec::new();
    loop {
        match agent.client.event(stream) {
            Event::Entries(entries) => all.extend(entries),
            Event::Done => return all,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_written_can_be_read() {
    let (folder, mut agent) = agent();
    let big: Vec<u8> = (0..900_000u32).flat_map(u32::to_le_bytes).collect();
    // More than a window: credit must come back.
    let stream = agent.client.open(&Request::Write {
        target: target("new/sub/file"),
        mode: 0o640,
        parents: true,
        attributes: Vec::new(),
    });
    let mut credit = flow::INITIAL_WINDOW as usize;
    for chunk in big.chunks(MAX_PAYLOAD) {
        while credit < chunk.len() {
            match agent.client.next(stream) {
                Seen::Window(0, more) => credit += more as usize,
                other => panic!("{other:?}"),
            }
        }
        credit -= chunk.len();
        agent.client.send(stream, chunk);
    }
    agent.client.end(stream);
    let Event::Entry(entry) = agent.client.event(stream) else { panic!() };
    assert_eq!((entry.kind, entry.size, entry.mode), (FileKind::File, big.len() as u64, 0o640));
    assert!(read(&mut agent, folder.path().join("new/sub/file")).unwrap() == big);
    assert_eq!(fs::read_dir(folder.path().join("new/sub")).unwrap().count(), 1, "no temporary file remains");
    // A part of it.
    let part = Request::Read { target: target("new/sub/file"), offset: 10, length: Some(5) };
    let stream = agent.client.open(&part);
    let (events, data) = agent.client.download(stream);
    assert_eq!(data, big[10..15]);
    assert!(matches!(events.as_slice(), [Event::Entry(_), Event::Done]));
}

#[test]
fn an_existing_file_keeps_its_mode_and_a_read_only_one_its_content() {
    let (folder, mut agent) = agent();
    let (file, sub) = (folder.path().join("file"), folder.path().join("sub"));
    fs::create_dir(&sub).unwrap();
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4751)).unwrap();
    assert_eq!(write(&mut agent, &file, b"new", false).unwrap().mode, 0o751);
    assert_eq!(fs::read(&file).unwrap(), b"new");
    assert_eq!(write(&mut agent, folder.path().join("no/where"), b"", false), Err(ErrorCode::NotFound));
    assert_eq!(write(&mut agent, &sub, b"", false), Err(ErrorCode::WrongType));
}

#[test]
fn an_unfinished_upload_leaves_nothing() {
    let (folder, mut agent) = agent();
    for finish in [Client::reset as fn(&mut Client, u32), |client, _| client.close()] {
        let stream = agent.client.open(&Request::Write {
            target: target("file"),
            mode: 0o600,
            parents: false,
            attributes: Vec::new(),
        });
        agent.client.send(stream, b"half");
        eventually("the temporary file is there", || fs::read_dir(folder.path()).unwrap().count() == 1);
        finish(&mut agent.client, stream);
        eventually("the temporary file is gone", || fs::read_dir(folder.path()).unwrap().count() == 0);
    }
}

#[test]
fn only_regular_files_are_read_and_nothing_blocks() {
    let (folder, mut agent) = agent();
    let fifo = folder.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    for path in ["fifo", "socket", "."] {
        assert_eq!(read(&mut agent, path), Err(ErrorCode::WrongType), "{path}");
    }
    assert_eq!(write(&mut agent, &fifo, b"x", false), Err(ErrorCode::WrongType));
    assert_eq!(read(&mut agent, "missing"), Err(ErrorCode::NotFound));
    let mut whole = Agent::fixed(Path::new("/"));
    assert_eq!(read(&mut whole, "/dev/zero"), Err(ErrorCode::WrongType));
    assert!(read(&mut whole, "/proc/version").unwrap().starts_with(b"Linux"));
    assert!(matches!(read(&mut whole, "/proc/self/fd/0"), Err(ErrorCode::Invalid | ErrorCode::WrongType)));
}

#[test]
fn nothing_leads_out_of_the_root() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let (folder, mut agent) = agent();
    symlink(outside.path(), folder.path().join("folder")).unwrap();
    symlink(outside.path().join("secret"), folder.path().join("file")).unwrap();
    let up = format!("../{}", outside.path().file_name().unwrap().to_str().unwrap());
    symlink(&up, folder.path().join("up")).unwrap();
    for path in ["folder/secret", "file", "up/secret", &format!("{up}/secret"), "/etc/passwd"] {
        assert_eq!(read(&mut agent, path), Err(ErrorCode::Denied), "{path}");
        assert_eq!(write(&mut agent, path, b"gotcha", true), Err(ErrorCode::Denied), "{path}");
    }
    let sibling = format!("{}x/secret", folder.path().display());
    assert_eq!(read(&mut agent, sibling), Err(ErrorCode::Denied));
    let requests = [
        Request::Stat(target("folder/secret")),
        Request::MakeDir { target: target("folder/new"), mode: 0o755, parents: false },
        Request::MakeDir { target: target("up/new/deep"), mode: 0o755, parents: true },
        Request::Move { from: target("folder/secret"), to: b"mine".to_vec().into() },
        Request::Move { from: target("file"), to: b"folder/mine".to_vec().into() },
        Request::Remove { target: target("folder/secret"), recursive: true },
        Request::SetMode { target: target("file"), mode: 0o777 },
        Request::List { target: target("folder"), depth: 1 },
        Request::Watch { target: target("up"), recursive: true },
        Request::Pack(target("folder")),
        Request::Unpack(target("up/x")),
    ];
    for request in requests {
        assert_eq!(code(&agent.client.ask(&request)), ErrorCode::Denied, "{request:?}");
    }
    // The links themselves may go, what they point to stays.
    for path in ["folder", "file", "up"] {
        assert_eq!(agent.client.ask(&Request::Remove { target: target(path), recursive: true }), Event::Done);
    }
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_symlink_inside_is_written_through() {
    let (folder, mut agent) = agent();
    fs::create_dir(folder.path().join("real")).unwrap();
    symlink("real/target", folder.path().join("link")).unwrap();
    symlink("link", folder.path().join("link2")).unwrap();
    symlink("loop", folder.path().join("loop")).unwrap();
    write(&mut agent, "link2", b"through", false).unwrap();
    assert_eq!(fs::read(folder.path().join("real/target")).unwrap(), b"through");
    assert!(folder.path().join("link2").is_symlink());
    assert_eq!(write(&mut agent, "loop", b"", false), Err(ErrorCode::Invalid));
}

#[test]
fn metadata_is_told_without_following() {
    let (folder, mut agent) = agent();
    let file = folder.path().join("file");
    fs::write(&file, "12345").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o2604)).unwrap();
    symlink("file", folder.path().join("link")).unwrap();
    let Event::Entry(entry) = agent.client.ask(&Request::Stat(target("file"))) else { panic!() };
    let meta = fs::metadata(&file).unwrap();
    assert_eq!((entry.kind, entry.size, entry.mode, entry.uid), (FileKind::File, 5, 0o2604, meta.uid()));
    assert_eq!(entry.modified_ns, meta.mtime() * 1_000_000_000 + meta.mtime_nsec());
    assert_eq!(entry.path.as_slice(), file.to_str().unwrap().as_bytes());
    let Event::Entry(entry) = agent.client.ask(&Request::Stat(target("link"))) else { panic!() };
    assert_eq!(entry.kind, FileKind::Symlink);
    assert_eq!(entry.link_target.unwrap().as_slice(), b"file");
    assert_eq!(code(&agent.client.ask(&Request::Stat(target("none")))), ErrorCode::NotFound);
    assert_eq!(code(&agent.client.ask(&Request::Stat(target("")))), ErrorCode::Invalid);
    assert_eq!(code(&agent.client.ask(&Request::Stat(target("file/x")))), ErrorCode::WrongType);
}

#[test]
fn folders_are_made_moved_and_changed() {
    let (folder, mut agent) = agent();
    let make = |path: &str, parents| Request::MakeDir { target: target(path), mode: 0o711, parents };
    assert_eq!(code(&agent.client.ask(&make("a/b/c", false))), ErrorCode::NotFound);
    assert_eq!(agent.client.ask(&make("a/b/c", true)), Event::Done);
    assert_eq!(agent.client.ask(&make("a/b/c", true)), Event::Done);
    assert_eq!(code(&agent.client.ask(&make("a/b/c", false))), ErrorCode::Exists);
    assert_eq!(fs::metadata(folder.path().join("a/b/c")).unwrap().mode() & 0o7777, 0o711);
    fs::write(folder.path().join("one"), "1").unwrap();
    fs::write(folder.path().join("two"), "2").unwrap();
    assert_eq!(code(&agent.client.ask(&make("one", true))), ErrorCode::Exists);
    let to = |from: &str, to: &str| Request::Move { from: target(from), to: to.as_bytes().to_vec().into() };
    assert_eq!(agent.client.ask(&to("one", "two")), Event::Done);
    assert_eq!(fs::read(folder.path().join("two")).unwrap(), b"1");
    assert_eq!(code(&agent.client.ask(&to("one", "three"))), ErrorCode::NotFound);
    assert_eq!(agent.client.ask(&Request::SetMode { target: target("two"), mode: 0o1604 }), Event::Done);
    assert_eq!(fs::metadata(folder.path().join("two")).unwrap().mode() & 0o7777, 0o1604);
}

#[test]
fn large_listings_come_whole() {
    let (folder, mut agent) = agent();
    let long = "x".repeat(200);
    for n in 0..2000 {
        fs::write(folder.path().join(format!("{long}{n}")), "").unwrap();
    }
    fs::create_dir_all(folder.path().join("a/b/c")).unwrap();
    symlink("/", folder.path().join("a/root")).unwrap();
    assert_eq!(list(&mut agent, ".", 1).len(), 2001);
    assert_eq!(list(&mut agent, ".", 2).len(), 2003);
    let all = list(&mut agent, folder.path(), 9);
    assert_eq!(all.len(), 2004, "symlinks are not followed");
    let path = format!("{}/a/b/c", folder.path().display());
    assert!(all.iter().any(|entry| entry.path.as_slice() == path.as_bytes()));
    let not_a_folder = Request::List { target: target(format!("{long}1")), depth: 1 };
    assert_eq!(code(&agent.client.ask(&not_a_folder)), ErrorCode::WrongType);
}

#[test]
fn folders_of_any_depth_and_width_are_removed() {
    let (folder, mut agent) = agent();
    let script = "import os\nos.mkdir('tree'); os.chdir('tree')\nfor n in range(3000):\n open('f%d'%n,'w')\n\
        for n in range(700):\n os.mkdir('deep-folder'); os.chdir('deep-folder'); open('f','w')";
    let made = agent.client.run(exec(&["python3", "-c", script]));
    assert_eq!(made.exit.code, Some(0), "{}", String::from_utf8_lossy(&made.error));
    let remove = |recursive| Request::Remove { target: target("tree"), recursive };
    assert_eq!(code(&agent.client.ask(&remove(false))), ErrorCode::Invalid);
    assert_eq!(agent.client.ask(&remove(true)), Event::Done);
    assert!(!folder.path().join("tree").exists());
    assert_eq!(code(&agent.client.ask(&remove(true))), ErrorCode::NotFound);
    let root = Request::Remove { target: target("."), recursive: true };
    assert_eq!(code(&agent.client.ask(&root)), ErrorCode::Invalid);
}

#[test]
fn a_small_read_finishes_while_processes_flood() {
    let (folder, mut agent) = agent();
    fs::write(folder.path().join("small"), "quick").unwrap();
    let floods: Vec<u32> = (0..4).map(|_| agent.client.open(&Request::Exec(exec(&["yes"])))).collect();
    for flood in &floods {
        agent.client.started(*flood);
    }
    for _ in 0..20 {
        // Counts what comes before the answer, instead of time.
        let request = Request::Read { target: target("small"), offset: 0, length: None };
        let stream = agent.client.open(&request);
        let mut between = 0;
        loop {
            match agent.client.next_frame().unwrap() {
                (of, Seen::Event(Event::Done)) if of == stream => break,
                (of, _) if of == stream => {}
                (_, Seen::Data(_, bytes)) => between += bytes.len(),
                _ => {}
            }
        }
        assert!(between < 8 << 20, "{between} bytes of floods came first");
    }
    for flood in floods {
        agent.client.reset(flood);
    }
}

#[test]
fn files_are_used_on_behalf_of_the_asked_user() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::switching("root");
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(4321), Some(8765)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let theirs = |path: &str, user: &str| Target { user: Some(user.into()), ..target(folder.path().join(path)) };
    let mut upload = |target: Target| {
        let stream = agent.client.open(&Request::Write { target, mode: 0o600, parents: true, attributes: Vec::new() });
        agent.client.send(stream, b"x");
        agent.client.end(stream);
        agent.client.event(stream)
    };
    let Event::Entry(entry) = upload(theirs("sub/file", "4321:8765")) else { panic!() };
    assert_eq!((entry.uid, entry.gid), (4321, 8765));
    let sub = fs::metadata(folder.path().join("sub")).unwrap();
    assert_eq!((sub.uid(), sub.gid()), (4321, 8765));
    assert_eq!(code(&upload(theirs("file", "9999"))), ErrorCode::Denied);
    // Root may, and leaves it theirs.
    let Event::Entry(entry) = upload(theirs("sub/file", "root")) else { panic!() };
    assert_eq!((entry.uid, entry.gid), (4321, 8765));
    let read = Request::Read { target: theirs("sub/file", "9999"), offset: 0, length: None };
    assert_eq!(code(&agent.client.ask(&read)), ErrorCode::Denied);
    let change = |user: &str| Request::SetMode { target: theirs("sub/file", user), mode: 0o644 };
    assert_eq!(code(&agent.client.ask(&change("9999"))), ErrorCode::Denied);
    assert_eq!(agent.client.ask(&change("4321:8765")), Event::Done);
    let remove = |user: &str| Request::Remove { target: theirs("sub", user), recursive: true };
    assert_eq!(code(&agent.client.ask(&remove("9999"))), ErrorCode::Denied);
    // A read-only file in a folder one may write: replacing it is refused as writing it would be.
    fs::write(folder.path().join("readonly"), "keep").unwrap();
    let stream = agent.client.open(&Request::Write {
        target: theirs("readonly", "4321:8765"),
        mode: 0o600,
        parents: false,
        attributes: Vec::new(),
    });
    assert_eq!(code(&agent.client.event(stream)), ErrorCode::Denied);
    assert_eq!(agent.client.ask(&remove("4321:8765")), Event::Done);
    // Names come from the passwd file.
    let Event::Entry(entry) = agent.client.ask(&Request::Stat(target("/etc/passwd"))) else { panic!() };
    assert_eq!((entry.owner.as_deref(), entry.group.as_deref()), (Some("root"), Some("root")));
}

#[test]
fn files_are_used_for_a_user_with_the_permission_of_root() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::switching("root");
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let theirs =
        |path: &str| Target { user: Some("4321:8765".into()), privileged: true, ..target(folder.path().join(path)) };
    let owner = |path: &str| fs::metadata(folder.path().join(path)).map(|it| (it.uid(), it.gid())).unwrap();
    let write = Request::Write { target: theirs("a/b/file"), mode: 0o600, parents: true, attributes: Vec::new() };
    let stream = agent.client.open(&write);
    agent.client.end(stream);
    assert!(matches!(agent.client.event(stream), Event::Entry(entry) if (entry.uid, entry.gid) == (4321, 8765)));
    let make = Request::MakeDir { target: theirs("c/d"), mode: 0o755, parents: true };
    assert_eq!(agent.client.ask(&make), Event::Done);
    for path in ["a", "a/b", "a/b/file", "c", "c/d"] {
        assert_eq!(owner(path), (4321, 8765), "{path}");
    }
    // Somebody else's file becomes theirs, as nothing else was asked for.
    fs::write(folder.path().join("mine"), "x").unwrap();
    let write = Request::Write { target: theirs("mine"), mode: 0o600, parents: false, attributes: Vec::new() };
    let stream = agent.client.open(&write);
    agent.client.end(stream);
    assert!(matches!(agent.client.event(stream), Event::Entry(_)));
    assert_eq!(owner("mine"), (4321, 8765));
    assert!(matches!(agent.client.ask(&Request::Stat(theirs("mine"))), Event::Entry(_)));
    assert_eq!(agent.client.ask(&Request::Remove { target: theirs("a"), recursive: true }), Event::Done);
}

#[test]
fn attributes_are_set_and_told() {
    let (folder, mut agent) = agent();
    let attribute = |name: &str, value: &str| Attribute {
        name: name.as_bytes().to_vec().into(),
        value: value.as_bytes().to_vec().into(),
    };
    let given = vec![attribute("e2b.author", "me"), attribute("7", "")];
    // A name of digits only is not a descriptor's.
    let target_ = || target(folder.path().join("5"));
    let request = |attributes| Request::Write { target: target_(), mode: 0o600, parents: false, attributes };
    let mut upload = |attributes| {
        let stream = agent.client.open(&request(attributes));
        agent.client.end(stream);
        match agent.client.event(stream) {
            Event::Entry(entry) => entry.rare.map(|rare| rare.attributes).unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    };
    let sorted = |mut list: Vec<Attribute>| {
        list.sort_by(|a, b| b.name.cmp(&a.name));
        list
    };
    assert_eq!(sorted(upload(given.clone())), given);
    let stream = agent.client.open(&Request::List { target: target(folder.path()), depth: 1 });
    let Event::Entries(entries) = agent.client.event(stream) else { panic!() };
    assert_eq!(sorted(entries[0].rare.clone().unwrap().attributes), given);
    let mut upload = |attributes| {
        let stream = agent.client.open(&request(attributes));
        agent.client.end(stream);
        agent.client.event(stream)
    };
    // Replaced as a whole.
    assert!(matches!(upload(Vec::new()), Event::Entry(entry) if entry.rare.is_none()));
    assert_eq!(code(&upload(vec![attribute("a\0b", "")])), ErrorCode::Invalid);
    let kept = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(kept, 1, "a refused upload leaves nothing");
}

#[test]
fn a_symlink_tells_where_it_leads_in_the_end() {
    let (folder, mut agent) = agent();
    fs::create_dir(folder.path().join("real")).unwrap();
    symlink("real", folder.path().join("one")).unwrap();
    symlink("one", folder.path().join("two")).unwrap();
    symlink("nowhere", folder.path().join("broken")).unwrap();
    let mut end = |name: &str| match agent.client.ask(&Request::Stat(target(folder.path().join(name)))) {
        Event::Entry(entry) => entry.rare.and_then(|rare| rare.end),
        other => panic!("{other:?}"),
    };
    let found = end("two").unwrap();
    let real = fs::canonicalize(folder.path().join("real")).unwrap();
    assert_eq!((found.path.as_slice(), found.kind), (real.as_os_str().as_encoded_bytes(), FileKind::Directory));
    assert_eq!(end("broken"), None);
    assert_eq!(end("real"), None);
}

#[test]
fn a_hostile_renamer_never_moves_a_write_outside() {
    let outside = tempfile::tempdir().unwrap();
    let (folder, mut agent) = agent();
    let script = format!(
        "import os\nos.mkdir('real')\nos.symlink('{}', 'link')\nwhile True:\n os.rename('real','tmp'); os.rename('link','real')\n os.rename('real','link'); os.rename('tmp','real')",
        outside.path().display()
    );
    let swapper = agent.client.open(&Request::Exec(exec(&["python3", "-c", &script])));
    agent.client.started(swapper);
    eventually("it swaps", || folder.path().join("real").exists());
    let mut written = 0;
    for n in 0..500 {
        written += u32::from(write(&mut agent, format!("real/{n}"), b"x", n % 2 == 0).is_ok());
        let _ = agent.client.ask(&Request::Remove { target: target("real/keep"), recursive: true });
    }
    agent.client.reset(swapper);
    assert!(written > 0, "the race was won sometimes");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn no_request_sets_a_set_id_bit() {
    let (folder, mut agent) = agent();
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().mode() & 0o7777;
    fs::write(folder.path().join("program"), "x").unwrap();
    fs::set_permissions(folder.path().join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    for bits in [0o4755, 0o2755, 0o6777] {
        let set = Request::SetMode { target: target("program"), mode: bits };
        assert_eq!(code(&agent.client.ask(&set)), ErrorCode::Denied, "{bits:o}");
        assert_eq!(mode("program"), 0o755);
    }
    assert_eq!(agent.client.ask(&Request::SetMode { target: target("program"), mode: 0o1700 }), Event::Done);
    assert_eq!(mode("program"), 0o1700);
    let make = Request::MakeDir { target: target("folder"), mode: 0o6755, parents: false };
    assert_eq!(agent.client.ask(&make), Event::Done);
    assert_eq!(mode("folder") & 0o6000, 0);
    let write = Request::Write { target: target("new"), mode: 0o6755, parents: false, attributes: Vec::new() };
    let stream = agent.client.open(&write);
    agent.client.send(stream, b"x");
    agent.client.end(stream);
    agent.client.event(stream);
    assert_eq!(mode("new"), 0o755);
}
