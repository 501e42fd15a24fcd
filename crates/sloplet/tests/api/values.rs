//! Values at the edge: arguments of a mebibyte, sizes and names that make no sense.

use serde_json::{Value, json};

use crate::common::{Host, Server};

fn server(host: &Host) -> Server {
    let server = Server::start(&host.root());
    server.ask("POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201);
    server
}

fn exec(server: &Server, order: Value) -> Value {
    server.ask("POST", "/sandboxes/my/exec", Some(order)).expect(200).json()
}

#[test]
fn arguments_may_have_a_mebibyte() {
    let host = Host::shared();
    let server = server(&host);
    // A shell's line is longer than Linux takes as one argument.
    let line = |bytes: usize| format!("v={}; echo ${{#v}} $#", "x".repeat(bytes));
    for bytes in [131_000, 131_072, 262_144, 1_000_000] {
        let ran = exec(&server, json!({"command": line(bytes)}));
        assert_eq!((&ran["stdout"], &ran["exit_code"]), (&json!(format!("{bytes} 0\n")), &json!(0)));
        let words = json!(["bash", "-euo", "pipefail", "-c", line(bytes), "name", "one"]);
        assert_eq!(exec(&server, json!({"command": words}))["stdout"], format!("{bytes} 1\n"));
    }
    let words: Vec<String> = (0..100).map(|_| "y".repeat(10_400)).collect();
    let command = [&["sh".to_owned(), "-c".into(), "echo \"$# $*\" | wc -c".into(), "sh".into()], &words[..]].concat();
    assert_eq!(exec(&server, json!({"command": command}))["stdout"], "1040104\n");
    // By a command, as long as the shell of the host lets it start.
    server.command(&["create", "--name", "my"]).expect_code(0);
    let typed: Vec<&str> = ["exec", "my", "--"].into_iter().chain(command.iter().map(String::as_str)).collect();
    assert_eq!(server.command(&typed).expect_code(0).word(), "1040104");
    let typed: Vec<&str> = command.iter().map(String::as_str).collect();
    assert_eq!(server.sloplet.run(&[], &typed).expect_code(0).word(), "1040104");
    // What Linux does not take is told, with what to do.
    let refused =
        |order: Value, status: u16| server.ask("POST", "/sandboxes/my/exec", Some(order)).expect_refusal(status);
    let message = refused(json!({"command": ["echo", "x".repeat(131_072)]}), 400);
    assert!(message.contains("argument 1 has 131072 bytes") && message.contains("standard input"), "{message}");
    let message = refused(json!({"command": "true", "env": {"LONG": "x".repeat(131_072)}}), 400);
    assert!(message.contains("variable LONG has"), "{message}");
    refused(json!({"command": vec!["x".repeat(100_000); 25]}), 413);
    assert_eq!(exec(&server, json!({"command": "echo fine"}))["stdout"], "fine\n");
    server.end();
}

#[test]
fn a_value_that_makes_no_sense_is_refused_in_one_line() {
    let host = Host::shared();
    let server = server(&host);
    let one_line = |message: String| assert!(!message.contains('\n') && message.len() < 400, "{message}");
    for body in [
        json!({"disk": "999999TiB"}),
        json!({"env": {"A B": "1"}}),
        json!({"env": {"A\n": "1"}}),
        json!({"env": {"A": "x".repeat(140_000)}}),
        json!({"user": "a\u{0}b"}),
        json!({"user": "x".repeat(300)}),
        json!({"workdir": "/a\u{0}b"}),
        json!({"pids": 1_000_000_000}),
        json!({"cpus": 1e9}),
    ] {
        one_line(server.ask("POST", "/sandboxes", Some(body)).expect_refusal(400));
    }
    for order in [
        json!({"command": "true", "env": {"A B": "1"}}),
        json!({"command": "true", "env": {"": "1"}}),
        json!({"command": "true", "user": "no such"}),
        json!({"command": "true", "user": "4294967296"}),
        json!({"command": "tr\u{0}ue"}),
        json!({"command": ["true", "\u{0}"]}),
        json!({"command": "true", "cwd": "/a\u{0}b"}),
    ] {
        one_line(server.ask("POST", "/sandboxes/my/exec", Some(order)).expect_refusal(400));
    }
    server.end();
}

#[test]
fn an_unknown_image_does_not_tell_of_those_that_others_have() {
    let host = Host::shared();
    let server = server(&host);
    let snapshot = server.ask("POST", "/sandboxes/my/snapshot", None).expect(201).json();
    let other = server.new_key(&["other"]);
    let message = server.ask_as(&other, "POST", "/sandboxes", Some(json!({"image": "nosuch"}))).expect_refusal(404);
    assert!(message.contains("unknown image 'nosuch'") && !message.contains("snapshot-"), "{message}");
    assert!(!message.contains(snapshot["id"].as_str().unwrap()), "{message}");
    server.end();
}
