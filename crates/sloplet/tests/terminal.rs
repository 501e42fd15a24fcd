//! `sloplet run -it` on a real pseudo-terminal, played by `probes/terminal.py`: what a person types arrives, what the
//! sandbox shows is seen, and the terminal is afterwards as it was before.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;

use common::{Host, Sloplet};
use serde_json::{Value, json};

/// What came of a session.
struct Session {
    code: i64,
    shown: String,
}

/// Plays `steps` with `sloplet run <words>`.
#[track_caller]
fn play(host: &Host, sloplet: &Sloplet, words: &[&str], steps: Value) -> Session {
    let start = [host.binary().to_str().unwrap(), "run"];
    play_program(host, sloplet, &[&start, words].concat(), steps)
}

/// Plays `steps` with any program.
#[track_caller]
fn play_program(host: &Host, sloplet: &Sloplet, words: &[&str], steps: Value) -> Session {
    let driver = host.dir().join("terminal.py");
    if !driver.exists() {
        fs::write(&driver, include_str!("probes/terminal.py")).unwrap();
    }
    let steps = steps.to_string();
    let start = ["python3", "-B", driver.to_str().unwrap(), &steps];
    let ended = sloplet.other_program(&[&start, words].concat()).finish().expect_code(0);
    let result = ended.json();
    let shown = result["shown"].as_str().unwrap().to_owned();
    assert_eq!(result["problem"], Value::Null, "as {}: {words:?}: shown: {shown:?}", sloplet.name);
    assert_eq!(result["restored"], true, "the terminal's settings were not restored: {words:?}: shown: {shown:?}");
    assert_eq!(result["left_over_input"], 0, "{words:?}");
    Session { code: result["code"].as_i64().unwrap(), shown }
}

/// Runs `sloplet` with a program in the place of mmdebstrap that says what it does and takes its time.
const SLOW_BUILD: &str = r#"
set -e
printf '#!/bin/sh\necho "I: installing packages..." >&2\nsleep 3\necho "E: no archive" >&2\nexit 1\n' >"$2"
chmod 755 "$2"
mount --bind "$2" /usr/bin/mmdebstrap
exec "$1" image build base
"#;

#[test]
fn building_an_image_is_no_blank_screen() {
    let host = Host::shared();
    let sloplet = host.root();
    let (binary, fake) = (host.binary(), sloplet.folder("fake").join("mmdebstrap"));
    let script = ["unshare", "--mount", "sh", "-c", SLOW_BUILD, "sh"];
    let words = [&script[..], &[binary.to_str().unwrap(), fake.to_str().unwrap()]].concat();
    // The step, and seconds that go on while nothing is heard of it.
    let steps = json!([
        ["expect", "building: installing packages... (1 s)"],
        ["expect", "building: installing packages... (2 s)"],
        ["expect", "E: no archive"],
        ["end"],
    ]);
    let session = play_program(&host, &sloplet, &words, steps);
    assert_eq!(session.code, 125, "{:?}", session.shown);
    // The line is gone when the answer comes.
    assert!(session.shown.contains("\r\u{1b}[Ksloplet: "), "{:?}", session.shown);
    // And elsewhere there is none.
    let ended = sloplet.other_program(&words).finish().expect_code(125);
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    assert!(!ended.stderr.contains("installing"), "{ended}");
}

#[test]
fn comparing_walls_is_no_blank_screen() {
    let host = Host::shared();
    let sloplet = host.root();
    let words = [host.binary().to_str().unwrap(), "compare", "--rounds", "1000"];
    let steps = json!([["expect", "measuring "], ["expect", " of 1000 ("], ["type", "\u{3}"], ["end"]]);
    play_program(&host, &sloplet, &words, steps);
}

#[test]
fn colours_are_for_terminals_and_not_for_those_who_want_none() {
    let host = Host::shared();
    let sloplet = host.root();
    let binary = host.binary();
    let doctor = [binary.to_str().unwrap(), "doctor"];
    let steps = || json!([["expect", "'sloplet run' works here"], ["end"]]);
    let shown = play_program(&host, &sloplet, &doctor, steps()).shown;
    assert!(shown.contains("\u{1b}[32mgood\u{1b}[0m"), "{shown:?}");
    let shown = play_program(&host, &sloplet, &[&["env", "NO_COLOR=1"][..], &doctor].concat(), steps()).shown;
    assert!(shown.starts_with("good: ") && !shown.contains('\u{1b}'), "{shown:?}");
}

#[test]
fn tab_completes_values_and_names_in_bash() {
    let host = Host::shared();
    let sloplet = host.root();
    let say = |words: &[&str]| sloplet.invoke(words).finish().expect_code(0);
    say(&["create", "--name", "quiet-box"]);
    say(&["create", "--name", "stopped-box"]);
    say(&["stop", "stopped-box"]);
    let binary = host.binary();
    let folder = binary.parent().unwrap().to_str().unwrap();
    let start = format!(
        "export PATH={folder}:$PATH PS1='[prompt] '; source <(sloplet completion bash); bind 'set bell-style none'\r"
    );
    // Ctrl-U takes back what was completed.
    let mut steps = vec![json!(["expect", "# "]), json!(["type", start]), json!(["expect", "2004h[prompt] "])];
    for (typed, completed) in [
        ("sloplet exec qu\t", "sloplet exec quiet-box "),
        ("sloplet resume stop\t", "sloplet resume stopped-box "),
        ("sloplet run --isolation gv\t", "sloplet run --isolation gvisor "),
        ("sloplet run --isolation=gv\t", "sloplet run --isolation=gvisor "),
        ("sloplet run --at-cap k\t", "sloplet run --at-cap kill "),
        ("sloplet create --image ho\t", "sloplet create --image host "),
        ("sloplet image build code\t", "sloplet image build code-interpreter "),
        ("sloplet snapsh\t", "sloplet snapshot "),
        ("sloplet cp qu\t", "sloplet cp quiet-box:"),
        // Whatever is not ours is a file.
        ("sloplet run -- cat /etc/os-rel\t", "sloplet run -- cat /etc/os-release "),
    ] {
        steps.extend([json!(["type", typed]), json!(["expect", completed]), json!(["type", "\u{15}\r"])]);
        steps.push(json!(["expect", "2004h[prompt] "]));
    }
    steps.extend([json!(["type", "exit\r"]), json!(["end"])]);
    play_program(&host, &sloplet, &["bash", "--norc", "--noprofile", "-i"], steps.into());
    say(&["rm", "--all"]);
    say(&["server", "stop"]);
}

/// A shell whose prompt can be told from everything else.
const SHELL: [&str; 9] = ["-it", "--env", "PS1=[prompt] ", "--", "bash", "--norc", "--noprofile", "--noediting", "-i"];

#[test]
fn a_shell_is_a_shell() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let steps = json!([
            ["expect", "[prompt] "],
            ["type", "tty; test -t 0 && test -t 1 && test -t 2 && echo three-terminals\r"],
            ["expect", "/dev/pts/"],
            ["expect", "three-terminals"],
            ["expect", "[prompt] "],
            // Echoed by the terminal inside, once.
            ["type", "echo 1$((20 + 3))4\r"],
            ["expect", "echo 1$((20 + 3))4\r\n1234\r\n[prompt] "],
            ["type", "echo $TERM; ps -o tty= -p $$\r"],
            ["expect", "xterm-256color\r\npts/"],
            ["expect", "[prompt] "],
            ["type", "cat </dev/tty | tr a-z A-Z\r"],
            ["type", "hello\r"],
            ["expect", "HELLO"],
            ["type", "\u{4}"],
            ["expect", "[prompt] "],
            ["type", "exit 42\r"],
            ["end"],
        ]);
        let session = play(&host, &sloplet, &SHELL, steps);
        assert_eq!(session.code, 42, "{:?}", session.shown);
    }
}

#[test]
fn the_end_of_input_ends_the_shell() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let steps = json!([
            ["expect", "[prompt] "],
            ["type", "(exit 7)\r"],
            ["expect", "[prompt] "],
            ["type", "\u{4}"],
            ["end"]
        ]);
        assert_eq!(play(&host, &sloplet, &SHELL, steps).code, 7);
    }
}

#[test]
fn the_size_follows_the_window() {
    let host = Host::shared();
    let program = "
import os, signal
def show(*_):
    os.write(1, b'size %d %d\\n' % (os.get_terminal_size().lines, os.get_terminal_size().columns))
signal.signal(signal.SIGWINCH, show)
show()
input()
";
    for sloplet in [host.root(), host.user()] {
        let steps = json!([
            ["resize", 30, 100],
            ["expect", "size 30 100\r\n"],
            ["resize", 51, 133],
            ["expect", "size 51 133\r\n"],
            ["resize", 5, 7],
            ["expect", "size 5 7\r\n"],
            ["type", "\r"],
            ["end"],
        ]);
        let session = play(&host, &sloplet, &["-it", "--", "python3", "-c", program], steps);
        assert_eq!(session.code, 0, "{:?}", session.shown);
    }
}

#[test]
fn control_c_interrupts_the_command_and_not_the_shell() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let steps = json!([
            ["expect", "[prompt] "],
            ["type", "sleep 1000; echo status $?\r"],
            ["sleep", 0.3],
            ["type", "\u{3}"],
            ["expect", "^C"],
            ["expect", "[prompt] "],
            ["type", "echo status $?\r"],
            ["expect", "status 130\r\n"],
            ["expect", "[prompt] "],
            // Quit, too.
            ["type", "sleep 1000\r"],
            ["sleep", 0.3],
            ["type", "\u{1c}"],
            ["expect", "Quit"],
            ["expect", "[prompt] "],
            ["type", "exit 3\r"],
            ["end"],
        ]);
        assert_eq!(play(&host, &sloplet, &SHELL, steps).code, 3);
    }
}

#[test]
fn jobs_stop_and_go_on() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let steps = json!([
            ["expect", "[prompt] "],
            ["type", "cat\r"],
            ["type", "one\r"],
            ["expect", "one\r\none\r\n"],
            ["type", "\u{1a}"],
            ["expect", "Stopped"],
            ["expect", "[prompt] "],
            ["type", "jobs\r"],
            ["expect", "[1]+"],
            ["expect", "[prompt] "],
            ["type", "fg\r"],
            ["expect", "cat\r\n"],
            ["type", "two\r"],
            ["expect", "two\r\ntwo\r\n"],
            ["type", "\u{1a}"],
            ["expect", "[prompt] "],
            ["type", "fg\r"],
            ["expect", "cat\r\n"],
            ["type", "\u{4}"],
            ["expect", "[prompt] "],
            ["type", "exit 5\r"],
            ["end"],
        ]);
        let session = play(&host, &sloplet, &SHELL, steps);
        assert_eq!(session.code, 5, "{:?}", session.shown);
        assert!(!session.shown.contains("no job control"), "{:?}", session.shown);
    }
}

/// Killed in the middle of a session that has the terminal in raw mode.
#[test]
fn the_terminal_is_restored_when_sloplet_is_killed() {
    let host = Host::alone();
    for sloplet in [host.root(), host.user()] {
        sloplet.run(&[], &["true"]).expect_code(0);
        let leaks = host.leaks();
        for signal in [15, 1] {
            let steps =
                json!([["expect", "[prompt] "], ["type", "sleep 1000\r"], ["sleep", 0.3], ["signal", signal], ["end"]]);
            let session = play(&host, &sloplet, &SHELL, steps);
            assert!(session.code > 0, "{} {:?}", session.code, session.shown);
        }
        leaks.assert_none_new();
    }
}

#[test]
fn the_terminal_is_restored_when_the_time_is_over_or_the_start_fails() {
    let host = Host::shared();
    let sloplet = host.root();
    let session = play(&host, &sloplet, &["-it", "--timeout", "1s", "--", "bash", "--norc"], json!([["end"]]));
    assert_eq!(session.code, 124, "{:?}", session.shown);
    assert!(session.shown.contains("the time of 1s was over"), "{:?}", session.shown);
    let session = play(&host, &sloplet, &["-it", "--", "/nowhere"], json!([["end"]]));
    assert_eq!(session.code, 127, "{:?}", session.shown);
    let session = play(&host, &sloplet, &["-it", "--image", "nosuch", "--", "sh"], json!([["end"]]));
    assert_eq!(session.code, 125, "{:?}", session.shown);
}

/// Programs that draw on the whole screen and take single keys.
#[test]
fn full_screen_programs_work() {
    let host = Host::shared();
    // ncurses looks whether there was a signal and then waits for a key: a signal that comes in between waits with it, on any
    // terminal. So the program never waits for long.
    let program = "
import curses
def main(screen):
    screen.timeout(100)
    rows, columns = screen.getmaxyx()
    screen.addstr(0, 0, f'size {rows} {columns}')
    screen.addstr(1, 0, 'press a key')
    screen.refresh()
    while True:
        key = screen.getch()
        if key == curses.KEY_RESIZE:
            rows, columns = screen.getmaxyx()
            screen.addstr(2, 0, f'now {rows} {columns}.')
        elif key == curses.KEY_UP:
            screen.addstr(3, 0, 'arrow')
        elif key == ord('q'):
            return
        elif key != -1:
            screen.addstr(4, 0, f'key {key}.')
        screen.refresh()
curses.wrapper(main)
print('done')
";
    for sloplet in [host.root(), host.user()] {
        let steps = json!([
            ["expect", "size 24 80"],
            ["expect", "press a key"],
            ["type", "x"],
            ["expect", "key 120."],
            // Control-C is a key like any other in raw mode of the host, and the interrupt inside unless it is raw, too.
            ["type", "\u{1b}OA"],
            ["expect", "arrow"],
            ["resize", 40, 90],
            ["expect", "now 40 90."],
            ["type", "q"],
            ["expect", "done"],
            ["end"],
        ]);
        let words = ["-it", "--", "python3", "-c", program];
        assert_eq!(play(&host, &sloplet, &words, steps).code, 0);
    }
}

/// Bytes are passed as they are, in both directions.
#[test]
fn every_key_arrives() {
    let host = Host::shared();
    let program = "
import os, sys, tty
tty.setraw(0)
os.write(1, b'ready')
keys = b''
while len(keys) < 9:
    keys += os.read(0, 100)
os.write(1, keys.hex().encode() + b'|')
";
    let steps = json!([
        ["expect", "ready"],
        ["type", "\u{3}\u{4}\u{11}\u{13}\u{1a}\u{1c}\r\n\u{7f}"],
        ["expect", "030411131a1c0d0a7f|"],
        ["end"]
    ]);
    let session = play(&host, &host.root(), &["-it", "--", "python3", "-c", program], steps);
    assert_eq!(session.code, 0, "{:?}", session.shown);
}

/// Nothing that is done to the terminal inside does anything to the one outside.
#[test]
fn nothing_is_typed_into_the_hosts_terminal() {
    let host = Host::shared();
    let program = "
import fcntl, os, sys, termios
for request in (0x5412, 0x541c):
    for fd in (0, 1, 2):
        try:
            for character in b'id\\n':
                fcntl.ioctl(fd, request, bytes([character]))
            print('TYPED')
        except OSError as error:
            print('refused', error.errno)
settings = termios.tcgetattr(0)
settings[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, settings)
print('end')
";
    for sloplet in [host.root(), host.user()] {
        let session =
            play(&host, &sloplet, &["-it", "--", "python3", "-c", program], json!([["expect", "end"], ["end"]]));
        assert_eq!(session.shown.matches("refused 1").count(), 6, "{:?}", session.shown);
        assert!(!session.shown.contains("TYPED"), "{:?}", session.shown);
    }
    // Without -t there is no terminal at all inside, though sloplet itself has one.
    let script =
        "test -t 0 || test -t 1 || test -t 2 || echo none; (: </dev/tty) 2>/dev/null || echo no controlling one";
    let session = play(&host, &host.root(), &["--", "sh", "-c", script], json!([["end"]]));
    assert_eq!(session.shown, "none\r\nno controlling one\r\n");
}

/// `-t` gives a terminal also where sloplet has none.
#[test]
fn init_asks_what_to_protect_what_to_allow_and_what_it_may_cost() {
    let host = Host::shared();
    let root = host.root();
    let folder = root.folder("asked");
    let driver = host.dir().join("terminal-of-init.py");
    fs::write(&driver, include_str!("probes/terminal.py")).unwrap();
    let answers = [
        ("no sandbox may see", "~/.ssh ~/.aws"),
        ("no sandbox may get", "A_KEY"),
        ("no sandbox may reach", "-"),
        ("may reach, such as", "api.anthropic.com:443"),
        ("Dollars", "2.50"),
        ("Memory", ""),
        ("Its time", "30m"),
    ];
    let steps: Vec<Value> = answers
        .iter()
        .flat_map(|(question, answer)| [json!(["expect", question]), json!(["type", format!("{answer}\r")])])
        .chain([json!(["end"])])
        .collect();
    let script = format!("cd {} && exec \"$@\"", folder.display());
    let (steps, driver) = (Value::from(steps).to_string(), driver.to_str().unwrap());
    let words = ["sh", "-c", &script, "sh", "python3", "-B", driver, &steps, host.binary().to_str().unwrap(), "init"];
    let ended = root.other_program(&words).finish().expect_code(0);
    assert_eq!((&ended.json()["problem"], &ended.json()["code"]), (&Value::Null, &json!(0)), "{ended}");
    let text = fs::read_to_string(folder.join("sloplet.toml")).unwrap();
    for line in [
        "hosts = []",
        "paths = [\"~/.aws\", \"~/.ssh\"]",
        "env = [\"A_KEY\"]",
        "allow = [\"api.anthropic.com:443\"]",
        "usd = \"2.50\"",
        "memory = \"2GiB\"",
        "timeout = \"30m\"",
    ] {
        assert!(text.lines().any(|own| own == line), "{line}: {text}");
    }
}

#[test]
fn a_terminal_without_a_terminal() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let ended = sloplet.run(&["-t"], &["sh", "-c", "test -t 1 && stty size"]).expect_code(0);
        assert_eq!(ended.out(), "24 80\r\n", "{ended}");
        let words = ["-it", "--", "sh", "-c", "read line; echo got $line; test -t 0 && exit 6"];
        let all: Vec<&str> = ["run"].iter().chain(&words).copied().collect();
        let ended = sloplet.invoke(&all).input("typed\n").finish().expect_code(6);
        assert!(ended.out().contains("got typed"), "{ended}");
    }
}
