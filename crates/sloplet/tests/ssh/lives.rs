//! Sandboxes that sleep, are made by a login, or outlive a server.

use crate::client::{Served, complained, said};
use crate::common::{Host, Server};

#[test]
fn a_login_wakes_a_sandbox_and_makes_one_where_that_is_allowed() {
    let host = Host::shared();
    let leaks = host.leaks();
    let root = host.root();
    let served = Served::start(&root, &["--ssh-create"]);
    served.sandbox("my");
    served.say("my", "echo kept > file");
    let state = |name: &str| served.server.json(&["info", name])["state"].as_str().unwrap().to_owned();
    for sleep in ["pause", "stop"] {
        served.server.command(&[sleep, "my"]).expect_code(0);
        assert_ne!(state("my"), "running");
        assert_eq!(served.say("my", "cat file"), "kept\n");
        assert_eq!(state("my"), "running");
    }
    // Two at once make one.
    let both: Vec<_> = std::thread::scope(|scope| {
        let login = || served.say("my.new_box", "hostname; cat /etc/hostname >/dev/null; echo $$ >> logins");
        let clients = [scope.spawn(login), scope.spawn(login)];
        clients.map(|client| client.join().unwrap()).into()
    });
    assert_eq!(both, ["my-new-box\n", "my-new-box\n"]);
    assert_eq!(served.say("my.new_box", "wc -l < logins"), "2\n");
    let made = served.server.json(&["info", "my.new_box"]);
    assert!(made["ends_ms"].is_null(), "it stays: {made}");
    assert!(complained(served.ssh("no:name", &["true"]), 255).contains("is not a name"));
    served.server.end();
    leaks.assert_none_new_after_a_server();
}

#[test]
fn a_killed_server_comes_back_with_the_same_key_and_leaves_no_shell_behind() {
    let host = Host::shared();
    let leaks = host.leaks();
    let root = host.root();
    let served = Served::start(&root, &[]);
    served.sandbox("my");
    served.say("my", "echo kept > file");
    let client = crate::client::Background::start(served.ssh("my", &["-tt", "touch started; exec sleep 4321"]));
    crate::client::until("a start", || {
        served.ssh("my", &["test -e started"]).status().unwrap().success().then_some(())
    });
    let Served { server, folder, address } = served;
    server.kill();
    client.kill();
    // On the same port: clients look the key up by it.
    let server = Server::start_with(&root, &["--ssh", &address, "--destroy-on-exit"]);
    let served = Served { server, folder, address };
    let mut command =
        served.ssh("my", &["-o", "StrictHostKeyChecking=yes", "cat file; pgrep -f '[s]leep 4321' || echo none"]);
    command.env("LC_ALL", "C");
    assert_eq!(said(command, 0), "kept\nnone\n");
    served.server.end();
    leaks.assert_none_new_after_a_server();
}
