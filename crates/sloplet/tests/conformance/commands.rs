//! Commands: exit codes, streams, input, users, a terminal.

use std::fs;

use super::Wall;

/// What a command is promised.
pub fn test(wall: Wall) {
    let ground = wall.shared();
    let sloplet = ground.root();
    let script = "import os,sys\n\
        print(os.getuid(), os.uname().nodename, os.getcwd(), os.environ['A'], sys.stdin.read(), end='')\n\
        sys.stderr.write('apart')\n\
        sys.exit(7)";
    let options = ["--hostname", "box", "--workdir", "/tmp", "--env", "A=b c"];
    let ended = wall.invoke(&sloplet, &options, &["python3", "-c", script]).input("given").finish();
    assert_eq!(
        (ended.code, ended.out().as_str(), ended.stderr.as_str()),
        (7, "1000 box /tmp b c given", "apart"),
        "{ended}"
    );

    // As on any Linux it finds itself by name, without any network.
    let program = "import socket; print(*map(socket.gethostbyname, ['localhost', socket.gethostname()]))";
    let ended = wall.python(&sloplet, &["--hostname", "box"], program).expect_code(0);
    assert_eq!(ended.out(), "127.0.0.1 127.0.1.1\n", "{ended}");

    // How a program ends, what is not there, who one can be.
    assert_eq!(wall.run(&sloplet, &[], &["sh", "-c", "kill -TERM $$"]).code, 143);
    wall.run(&sloplet, &[], &["no-such-program"]).expect_code(127).expect_said("no-such-program");
    let who = if wall.engine { "1000" } else { "root" };
    let ended = wall.run(&sloplet, &["--user", who], &["sh", "-c", "id -u; uname -r"]).expect_code(0);
    let (out, own) = (ended.out(), rustix::system::uname().release().to_string_lossy().into_owned());
    let mut lines = out.lines();
    assert_eq!(lines.next(), Some(if wall.engine { "1000" } else { "0" }), "{ended}");
    assert_eq!(lines.next() != Some(own.as_str()), wall.own_kernel, "{ended}");
    if wall.engine {
        wall.run(&sloplet, &["--user", "root"], &["true"]).expect_code(125).expect_said("no root inside");
    }

    // A folder of the host: read-only unless said, and then what is written belongs to its owner.
    let folder = sloplet.folder("shown");
    fs::write(folder.join("a"), "from outside").unwrap();
    let shown = format!("{}:/shown", folder.display());
    let program = "print(open('/shown/a').read())\ntry:\n open('/shown/b','w')\nexcept OSError as e: print(e.errno)";
    let ended = wall.python(&sloplet, &["--mount", &shown], program).expect_code(0);
    assert_eq!(ended.out(), "from outside\n30\n", "{ended}");
    let program = "open('/shown/b','w').write('from inside')\n\
        import os\ntry:\n os.chmod('/shown/b',0o4755)\nexcept OSError as e: print(e.errno)";
    if wall.engine {
        let refused = wall.python(&sloplet, &["--mount", &format!("{shown}:rw")], program).expect_code(125);
        refused.expect_said("may not write there");
        std::os::unix::fs::chown(&folder, Some(1000), Some(1000)).unwrap();
    }
    let ended = wall.python(&sloplet, &["--mount", &format!("{shown}:rw")], program);
    if !wall.shared_folders {
        ended.expect_code(125).expect_said("use a read-only mount");
        return assert!(!folder.join("b").exists());
    }
    let ended = ended.expect_code(0);
    assert_eq!(fs::read(folder.join("b")).unwrap(), b"from inside");
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(folder.join("b")).unwrap());
    assert_eq!(mode & 0o6000, 0, "a set-ID bit reached the host: {ended}");
}

/// A terminal of its own.
pub fn terminal(wall: Wall) {
    let ground = wall.shared();
    let (host, sloplet) = (&ground.host, ground.root());
    let binary = host.binary().to_str().unwrap().to_owned();
    let program =
        "import os,sys; print(os.isatty(0) and os.isatty(1), os.ttyname(0)); os.write(1, b'typed ' + os.read(0, 99))";
    let player = host.dir().join("terminal.py");
    fs::write(&player, include_str!("../probes/terminal.py")).unwrap();
    let steps =
        serde_json::json!([["expect", "True /dev/pts/"], ["type", "some words\r"], ["expect", "typed some words"]]);
    let start = ["python3", "-B", player.to_str().unwrap(), &steps.to_string(), &binary, "run"];
    let words = [&["-it"], &wall.words()[..], &["--", "python3", "-c", program]].concat();
    let result = sloplet.other_program(&[&start[..], &words].concat()).finish().expect_code(0).json();
    assert_eq!((&result["problem"], &result["code"]), (&serde_json::Value::Null, &0.into()), "{result}");
}
