//! Commands and shells.

use std::process::Stdio;
use std::thread;

use crate::client::{Background, Served, fed, said, until};
use crate::common::Host;

#[test]
fn commands_have_streams_codes_signals_terminals_and_little_else() {
    let host = Host::shared();
    let leaks = host.leaks();
    let served = Served::start(&host.root(), &[]);
    served.sandbox("my");

    let mut command = served.ssh("my", &["echo out; echo err >&2; exit 7"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    // A signal has no code of its own: OpenSSH's client says 255.
    said(served.ssh("my", &["kill -TERM $$"]), 255);
    said(served.ssh("my", &["no-such-program"]), 127);
    assert_eq!(served.say("my", "id -un; pwd; echo $SHELL"), "user\n/home/user\n/bin/bash\n");

    // Input comes whole, and its end is told; so does output.
    let noise: Vec<u8> = (0..5_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert_eq!(fed(served.ssh("my", &["wc -c; echo end"]), &noise, 0), "5000000\nend\n");
    assert_eq!(served.say("my", "head -c 3000000 /dev/zero | tr '\\0' x").len(), 3_000_000);
    // A command that does not read its input is not waited for.
    fed(served.ssh("my", &["exit 3"]), &noise[..200_000], 3);

    // A script on the input of a shell, as VS Code sends one.
    assert_eq!(fed(served.ssh("my", &["bash"]), b"x=4\necho $((x*x))\nexit 5\n", 5), "16\n");
    assert_eq!(fed(served.ssh("my", &["-T"]), b"shopt -q login_shell && echo login\n", 0), "login\n");

    let terminal = said(served.ssh("my", &["-tt", "tty; stty size; echo $TERM"]), 0);
    assert!(terminal.contains("/dev/pts/") && terminal.contains("24 80"), "{terminal}");

    // Variables of the language, and no others.
    let mut command = served.ssh("my", &["-o", "SendEnv=LC_TEST LD_PRELOAD EVIL", "echo $LC_TEST-$LD_PRELOAD-$EVIL"]);
    command.env("LC_TEST", "yes").env("EVIL", "no");
    assert_eq!(said(command, 0), "yes--\n");
    // Neither the client's agent nor its screen is shown inside.
    let mut command = served.ssh("my", &["-A", "-X", "echo [$SSH_AUTH_SOCK$DISPLAY]"]);
    command.env("DISPLAY", ":0");
    assert_eq!(said(command, 0), "[]\n");

    // What was done is written down.
    let audit = served.server.command(&["audit", "my"]).expect_code(0).out();
    assert!(audit.contains("SSH login from 127.0.0.1") && audit.contains("exit 7"), "{audit}");
    served.server.end();
    leaks.assert_none_new_after_a_server();
}

#[test]
fn an_ordinary_users_server_does_the_same() {
    let host = Host::shared();
    let served = Served::start(&host.user(), &["--ssh-remote-forward"]);
    served.sandbox("my");
    assert_eq!(served.say("my", "id -un; echo kept > file"), "user\n");
    let back = ["-o", "ExitOnForwardFailure=yes", "-R", "/home/user/a.sock:/none", "stat -c '%U %a %F' a.sock"];
    assert_eq!(said(served.ssh("my", &back), 0), "user 600 socket\n");
    let mut command = served.program("scp", "id");
    command.arg("my@sandbox:file").arg(served.path("file"));
    said(command, 0);
    assert_eq!(std::fs::read(served.path("file")).unwrap(), b"kept\n");
    served.server.end();
}

#[test]
fn many_channels_share_a_connection_and_a_client_that_is_gone_ends_what_it_started() {
    let host = Host::shared();
    let served = Served::start(&host.root(), &[]);
    served.sandbox("my");
    let socket = served.path("master");
    let socket = socket.to_str().unwrap();
    let master = Background::start(served.ssh("my", &["-M", "-S", socket, "-N"]));
    until("a master", || std::path::Path::new(socket).exists().then_some(()));
    thread::scope(|scope| {
        let served = &served;
        let clients: Vec<_> = (0..8)
            .map(|number| scope.spawn(move || said(served.ssh("my", &["-S", socket, &format!("echo {number}")]), 0)))
            .collect();
        for (number, client) in clients.into_iter().enumerate() {
            assert_eq!(client.join().unwrap(), format!("{number}\n"));
        }
    });
    master.kill();

    for terminal in ["-tt", "-T"] {
        let script = "trap 'echo told > hangup; exit' HUP; rm -f hangup; touch started; sleep 1000 & wait";
        let client = Background::start(served.ssh("my", &[terminal, script]));
        until("a start", || {
            served.ssh("my", &["rm started"]).stderr(Stdio::null()).status().unwrap().success().then_some(())
        });
        client.kill();
        until("a hang-up", || (said(served.ssh("my", &["cat hangup 2>&1 || true"]), 0) == "told\n").then_some(()));
    }
    // What was told not to mind does not.
    let client =
        Background::start(served.ssh("my", &["nohup sh -c 'touch started; sleep 2; touch survived' </dev/null"]));
    until("a start", || {
        served.ssh("my", &["rm started"]).stderr(Stdio::null()).status().unwrap().success().then_some(())
    });
    client.kill();
    until("its end", || {
        served.ssh("my", &["rm survived"]).stderr(Stdio::null()).status().unwrap().success().then_some(())
    });
    served.server.end();
}
