//! Sessions that nothing a command does can break.

use serde_json::{Value, json};

use crate::common::{Host, Server};

struct Session<'a> {
    server: &'a Server,
    path: String,
}

impl Session<'_> {
    fn open(server: &Server, body: Value) -> Session<'_> {
        let made = server.ask("POST", "/sandboxes/my/sessions", Some(body)).expect(201).json();
        Session { server, path: format!("/sandboxes/my/sessions/{}", made["id"].as_str().unwrap()) }
    }

    /// Exit code and output.
    #[track_caller]
    fn run(&self, command: &str) -> (i64, String) {
        let body = json!({"command": command, "timeout": "20s"});
        let ran = self.server.ask("POST", &format!("{}/exec", self.path), Some(body)).expect(200).json();
        (ran["exit_code"].as_i64().unwrap(), ran["stdout"].as_str().unwrap().to_owned())
    }

    #[track_caller]
    fn says(&self, command: &str, code: i64, output: &str) {
        assert_eq!(self.run(command), (code, output.to_owned()), "{command}");
    }
}

fn server(host: &Host) -> Server {
    let server = Server::start(&host.root());
    server.ask("POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201);
    server
}

#[test]
fn what_a_command_leaves_is_there_for_the_next() {
    let host = Host::shared();
    let server = server(&host);
    let session = Session::open(&server, json!({"cwd": "/tmp", "env": {"GIVEN": "1"}}));
    session.says("pwd; echo $GIVEN", 0, "/tmp\n1\n");
    session.says("mkdir -p 'a b/c'; cd 'a b/c'; export X='it'\"'\"'s \"q\" $y'; unset GIVEN; false", 1, "");
    session.says("pwd; echo \"$X\"; echo \"[$GIVEN]\"", 0, "/tmp/a b/c\nit's \"q\" $y\n[]\n");
    session.says("plain=7; list=(a 'b c'); greet() { echo \"hi $1\"; }; umask 027", 0, "");
    session.says("echo $plain ${#list[@]} \"${list[1]}\"; greet you; umask", 0, "7 2 b c\nhi you\n0027\n");
    session.says("newline=$'a\\nb'; IFS=:", 0, "");
    session.says("printf '%s|%q' \"$newline\" \"$IFS\"; IFS=$' \\t\\n'", 0, "a\nb|:");
    session.says("rm -r '/tmp/a b'; cd /; true", 0, "");
    session.says("pwd", 0, "/\n");
    server.end();
}

#[test]
fn nothing_that_a_command_does_breaks_a_session() {
    let host = Host::shared();
    let server = server(&host);
    let session = Session::open(&server, json!({}));
    session.says("export KEPT=yes; cd /tmp; exit 7", 7, "");
    session.says("echo $KEPT; pwd", 0, "yes\n/tmp\n");
    for broken in ["echo 'unterminated", "echo \"also", "if true; then", "for x in", ")", "cat <<EOF\nnever ended"] {
        session.run(broken);
        session.says("echo $KEPT", 0, "yes\n");
    }
    // Whatever ends a command by force leaves the state of before.
    for violent in ["export KEPT=no; kill -9 $$", "export KEPT=no; exec false", "exec >&-; exit 3"] {
        session.run(violent);
        session.says("echo ${KEPT:+there}", 0, "there\n");
    }
    session.says("export KEPT=yes; set -e; false; echo never", 1, "");
    session.says("false; echo $KEPT", 0, "yes\n");
    session.says("PATH=/nowhere; cd() { builtin cd /; }; printf() { :; }; set -- a b c; set -u", 0, "");
    session.says("builtin pwd; builtin echo $KEPT $#; unset -f cd printf; PATH=/usr/bin:/bin", 0, "/tmp\nyes 0\n");
    session.says("trap 'echo bye' EXIT; export AFTER=1", 0, "bye\n");
    session.says("readonly FIXED=1; export LATER=2", 0, "");
    session.says("echo $LATER", 0, "2\n");
    session.says("set -x; export TRACED=1", 0, "");
    session.says("echo $TRACED; __sloplet_file=/tmp/elsewhere", 1, "1\n");
    session.says("echo $TRACED", 0, "1\n");
    server.end();
}

#[test]
fn jobs_stay_binary_output_is_whole_and_time_is_limited() {
    let host = Host::shared();
    let server = server(&host);
    let session = Session::open(&server, json!({}));
    let (code, _) = session.run("sleep 1000 & echo $! > /tmp/pid");
    assert_eq!(code, 0);
    session.says("kill -0 $(cat /tmp/pid) && echo alive; kill $(cat /tmp/pid)", 0, "alive\n");
    let body = json!({"command": "printf '\\377\\000x'"});
    let ran = server.ask("POST", &format!("{}/exec", session.path), Some(body)).expect(200).json();
    assert_eq!(ran["stdout_base64"], "/wB4", "{ran}");
    let body = json!({"command": "export LOST=1; sleep 60", "timeout": "300ms"});
    let ran = server.ask("POST", &format!("{}/exec", session.path), Some(body)).expect(200).json();
    assert_eq!(ran["timed_out"], true, "{ran}");
    session.says("echo [$LOST]", 0, "[]\n");
    let body = json!({"command": "cat", "stdin": "fed"});
    let ran = server.ask("POST", &format!("{}/exec", session.path), Some(body)).expect(200).json();
    assert_eq!(ran["stdout"], "fed");
    server.end();
}

#[test]
fn a_command_in_the_background_keeps_its_session_busy_until_it_ends() {
    let host = Host::shared();
    let server = server(&host);
    let session = Session::open(&server, json!({}));
    let start = json!({"command": "read line; export LINE=$line; echo $line", "stdin": true});
    let pid = server.ask("POST", &format!("{}/processes", session.path), Some(start)).expect(201).json()["pid"].clone();
    server.ask("POST", &format!("{}/exec", session.path), Some(json!({"command": "true"}))).expect_refusal(409);
    assert_eq!(server.ask("GET", &session.path, None).expect(200).json()["busy"], true);
    let process = format!("/sandboxes/my/processes/{pid}");
    server.send(&server.key, "POST", &format!("{process}/stdin?close=true"), b"word\n").expect(204);
    let events = server.events(&format!("{process}/output"), "").rest();
    assert_eq!(events[0].data["text"], "word\n", "{events:?}");
    while server.ask("GET", &session.path, None).expect(200).json()["busy"] == true {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    session.says("echo $LINE", 0, "word\n");
    server.end();
}

#[test]
fn sessions_are_listed_and_closed_and_survive_the_server() {
    let host = Host::shared();
    let sloplet = host.root();
    let server = Server::start_with(&sloplet, &[]);
    server.ask("POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201);
    let path = {
        let session = Session::open(&server, json!({}));
        session.says("export STILL=here", 0, "");
        session.path.clone()
    };
    let key = server.key.clone();
    server.end();
    let mut server = Server::start(&sloplet);
    server.key = key;
    let session = Session { server: &server, path };
    session.says("echo $STILL", 0, "here\n");
    let listed = server.ask("GET", "/sandboxes/my/sessions", None).expect(200).json();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    server.ask("DELETE", &session.path, None).expect(204);
    server.ask("POST", &format!("{}/exec", session.path), Some(json!({"command": "true"}))).expect_refusal(404);
    let left = server.ask("POST", "/sandboxes/my/exec", Some(json!({"command": "ls -A /tmp | grep session"})));
    assert_eq!(left.expect(200).json()["stdout"], "");
    server.end();
}
