//! What makes no sense is refused with one clear line and exit status 125, before anything is made; and what machines are
//! to read is what they can read.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use common::leaks::Leaks;
use common::{Host, Sloplet};

/// What is there after a run that went well: folders that are made once, and stay.
fn leaks(host: &Host, sloplet: &Sloplet) -> Leaks {
    sloplet.run(&[], &["true"]).expect_code(0);
    host.leaks()
}

/// Runs each case and fails with all that is wrong. A case: what is typed, and words that the answer must contain.
#[track_caller]
fn assert_refused(host: &Host, sloplet: &Sloplet, cases: &[(&[&str], &str)]) {
    let leaks = leaks(host, sloplet);
    let mut wrong = Vec::new();
    for (words, said) in cases {
        let ended = sloplet.invoke(words).finish();
        let mut complain = |what: &str| wrong.push(format!("{what}: {ended}"));
        let lines: Vec<&str> = ended.stderr.lines().collect();
        if ended.code != 125 {
            complain("the exit status is not 125");
        }
        if !ended.stdout.is_empty() {
            complain("something is on standard output");
        }
        if !ended.stderr.contains(said) {
            complain(&format!("it does not say '{said}'"));
        }
        // The parser of flags explains in its own way.
        let of_parser = lines.first().is_some_and(|line| line.starts_with("error: "));
        if !of_parser && (lines.len() != 1 || !lines[0].starts_with("sloplet: ")) {
            complain("it is not one line of ours");
        }
        if ended.stderr.contains("panicked") || ended.stderr.contains('\x1b') {
            complain("it panics or steers the terminal");
        }
    }
    wrong.extend(leaks.new_ones().into_iter().map(|trace| format!("left behind: {trace}")));
    assert!(wrong.is_empty(), "as {}:\n{}", sloplet.name, wrong.join("\n"));
}

#[test]
fn sizes_numbers_and_times() {
    let host = Host::alone();
    let size = "is not a size: write a positive number of bytes with an optional suffix, like 512MiB";
    let time = "is not a duration: write a positive time like 90s";
    let cpus = "is not a number of processors";
    for sloplet in [host.root(), host.user()] {
        let cases: &[(&[&str], &str)] = &[
            (&["run", "--memory", "0", "--", "true"], size),
            (&["run", "--memory=-1", "--", "true"], size),
            (&["run", "--memory", "-1", "--", "true"], "unexpected argument '-1'"),
            (&["run", "--memory", "1X", "--", "true"], size),
            (&["run", "--memory", "MiB", "--", "true"], size),
            (&["run", "--memory", "", "--", "true"], size),
            (&["run", "--memory", "nan", "--", "true"], size),
            (&["run", "--memory", "inf", "--", "true"], size),
            (&["run", "--memory", "1e400", "--", "true"], size),
            (&["run", "--memory", "99999999999999999999", "--", "true"], size),
            (&["run", "--memory", "16777216TiB", "--", "true"], size),
            (&["run", "--memory", "1KiB", "--", "true"], "give at least 4MiB"),
            (&["run", "--memory", "\u{1b}[2J", "--", "true"], "is not a size"),
            (&["run", "--disk", "0", "--", "true"], size),
            (&["run", "--disk", "5", "--", "true"], "give at least 1MiB"),
            (&["run", "--output-limit", "0", "--", "true"], size),
            (&["run", "--cpus", "0", "--", "true"], cpus),
            (&["run", "--cpus=-1", "--", "true"], cpus),
            (&["run", "--cpus", "1000000", "--", "true"], cpus),
            (&["run", "--cpus", "many", "--", "true"], cpus),
            (&["run", "--pids", "0", "--", "true"], "give at least 4"),
            (&["run", "--pids=-1", "--", "true"], "invalid value '-1'"),
            (&["run", "--pids", "5000000000", "--", "true"], "invalid value '5000000000'"),
            (&["run", "--inodes", "0", "--", "true"], "give at least 64"),
            (&["run", "--timeout", "0", "--", "true"], time),
            (&["run", "--timeout", "0s", "--", "true"], time),
            (&["run", "--timeout=-5s", "--", "true"], time),
            (&["run", "--timeout", "10parsecs", "--", "true"], time),
            (&["run", "--timeout", "99999999999999999999h", "--", "true"], time),
        ];
        assert_refused(&host, &sloplet, cases);
    }
}

/// More memory than there is would bound nothing; the same with `--best-effort` is what somebody accepts.
#[test]
fn ten_tebibytes_of_memory_and_floats_in_a_file_get_one_clear_line() {
    let host = Host::alone();
    for sloplet in [host.root(), host.user()] {
        let folder = sloplet.folder("settings");
        let file = folder.join("sloplet.toml");
        let path = file.to_str().unwrap();
        let leaks = leaks(&host, &sloplet);
        for (line, said) in [
            ("memory = 1.5", "line 2: '1.5' is not a size: a number without a unit is bytes; write text with a suffix"),
            ("memory = true", "line 2: invalid type: boolean `true`, expected a number, or text like \"512MiB\""),
            ("memory = \"10TiB\"", "memory 10TiB is more than this machine has"),
            ("pids = 1.5", "line 2: invalid type: number `1.5`, expected a whole number"),
            ("inodes = \"many\"", "expected a whole number"),
            ("env = \"A=1\"", "expected a list"),
            ("env = [\"A B=1\"]", "env 'A B' is not of the form NAME=value: a name has no spaces"),
            ("user = \"70000\"", "ids inside are 0 to 65535"),
            ("cpus = 0.001", "is not a number of processors"),
        ] {
            fs::write(&file, format!("[sandbox]\n{line}\n")).unwrap();
            let ended = sloplet.run(&["--config", path], &["true"]).expect_code(125).expect_said(said);
            assert!(ended.stderr.starts_with("sloplet: ") && ended.stderr.lines().count() == 1, "{line}: {ended}");
        }
        fs::write(&file, "[sandbox]\ncpus = 1.5\ntimeout = 30.5\ndisk = 1e9\n").unwrap();
        sloplet.run(&["--config", path], &["true"]).expect_code(0);
        leaks.assert_none_new();
        let said = "memory 10TiB is more than this machine has";
        assert_refused(&host, &sloplet, &[(&["run", "--memory", "10TiB", "--", "true"], said)]);
        sloplet.run(&["--memory", "10TiB", "--best-effort"], &["true"]).expect_code(0);
    }
}

#[test]
fn commands_images_and_isolation() {
    let host = Host::alone();
    for sloplet in [host.root(), host.user()] {
        let cases: &[(&[&str], &str)] = &[
            (&["run"], "no command was given: add one after '--'"),
            (&["run", "--"], "no command was given"),
            (&["run", "--nosuch", "--", "true"], "unexpected argument '--nosuch'"),
            (&["nosuch"], "unrecognized subcommand 'nosuch'"),
            (&[], "requires a subcommand"),
            (&["run", "--json", "--tty", "--", "true"], "cannot be used with"),
            (&["run", "--isolation", "nosuch", "--", "true"], "choose one of process, container, gvisor, vm"),
            (&["run", "--driver", "nosuch", "--", "true"], "there is no driver 'nosuch'"),
            (&["run", "--image", "nosuch", "--", "true"], "unknown image 'nosuch'; there is: host. Get one with"),
            (&["run", "--image", "", "--", "true"], "image"),
            // Making an image of it would be showing it.
            (&["run", "--image", "/etc", "--", "true"], "'/etc' is protected"),
            (&["run", "--image", "../../etc", "--", "true"], "'../../etc' is protected"),
            (&["run", "--image", "/", "--", "true"], "'/' contains the protected"),
            (&["image", "import", "/etc"], "'/etc' is protected"),
            (&["image", "import", "/"], "contains the protected"),
            (&["run", "--image", "./nowhere.tar", "--", "true"], "cannot read ./nowhere.tar: No such file"),
            (&["run", "--image", "/etc/passwd", "--", "true"], "/etc/passwd is no image"),
            (&["image", "import", "/nowhere"], "cannot read /nowhere: No such file"),
            (&["image", "import", "/etc/passwd"], "/etc/passwd is no image"),
            (&["image", "rm", "nosuch"], "unknown image 'nosuch'"),
            (&["image", "rm"], "required"),
            (&["image", "pull", "UPPER CASE"], "cannot name an image"),
            (&["image", "pull", ""], "cannot name an image"),
            (&["image", "pull", "127.0.0.1:1/x"], "cannot pull 127.0.0.1:1/x"),
            (&["completion", "nosuch"], "possible values: bash"),
            (&["run", "--data", "/proc/nowhere", "--", "true"], "/proc/nowhere"),
            (&["run", "--data", "/etc/passwd", "--", "true"], "/etc/passwd"),
        ];
        assert_refused(&host, &sloplet, cases);
    }
    // What is built in cannot be removed; that it is unknown would not be true.
    let ended = host.root().invoke(&["image", "rm", "host"]).finish().expect_code(125);
    assert!(!ended.stderr.contains("unknown image"), "{ended}");
}

#[test]
fn mounts() {
    let host = Host::alone();
    let home = host.root().folder("home");
    for folder in [".ssh", ".aws", "project", "project/deep"] {
        fs::create_dir_all(home.join(folder)).unwrap();
    }
    symlink(home.join(".ssh"), home.join("project/innocent")).unwrap();
    symlink("/etc", home.join("project/configuration")).unwrap();
    let at = |path: &str| format!("{}:/inside", home.join(path).display());
    for sloplet in [host.root(), host.user()] {
        let leaks = leaks(&host, &sloplet);
        let data = format!("{}:/inside", sloplet.data.display());
        let around_data = format!("{}:/inside", sloplet.data.parent().unwrap().display());
        fs::create_dir_all(sloplet.data.join("images")).unwrap();
        let mut cases = vec![
            ("/nowhere:/inside".to_owned(), "cannot mount '/nowhere': No such file"),
            ("/etc:/inside".into(), "'/etc' is protected"),
            ("/etc/ssl:/inside".into(), "is protected (/etc)"),
            ("/:/inside".into(), "contains the protected"),
            ("/proc:/inside".into(), "is protected"),
            ("/sys/fs/cgroup:/inside".into(), "is protected"),
            ("/dev:/inside".into(), "is protected"),
            ("/dev/null:/inside".into(), "is protected"),
            ("/run:/inside".into(), "is protected"),
            ("/var/run:/inside".into(), "is protected"),
            ("/tmp/../etc:/inside".into(), "is protected"),
            ("/proc/self/root/etc:/inside".into(), "is protected"),
            ("/proc/self/cwd:/inside".into(), "contains the protected"),
            (at(".ssh"), "is protected"),
            (at(".aws"), "is protected"),
            (at("project/innocent"), "is protected"),
            (at("project/configuration"), "is protected"),
            (at("project/../.ssh"), "is protected"),
            (at(""), "contains the protected"),
            (at("."), "contains the protected"),
            (data, "is protected"),
            (around_data, "contains the protected"),
        ];
        for form in ["", ":", "/tmp", "/tmp:", ":/x", "/tmp:relative", "/tmp:/x:rx", "/tmp:/a/../b"] {
            cases.push((form.to_owned(), "mount"));
        }
        for target in ["/", "/proc", "/proc/1", "/dev/null", "/sys/fs"] {
            cases.push((format!("/tmp:{target}"), "must be an absolute path"));
        }
        if sloplet.account.is_some() {
            cases.push(("/root:/inside".into(), "cannot mount '/root'"));
        }
        let mut wrong = Vec::new();
        for (mount, said) in cases {
            let invocation = sloplet.invoke_run(&["--mount", &mount], &["ls", "/inside"]);
            let ended = invocation.env("HOME", home.to_str().unwrap()).finish();
            let of_parser = ended.stderr.starts_with("error: ");
            let one_line = ended.stderr.lines().count() == 1 && ended.stderr.starts_with("sloplet: ");
            if ended.code != 125 || !(of_parser || one_line) || !ended.stderr.contains(said) || !ended.stdout.is_empty()
            {
                wrong.push(format!("'{mount}', which must say '{said}': {ended}"));
            }
        }
        assert!(wrong.is_empty(), "as {}:\n{}", sloplet.name, wrong.join("\n"));
        leaks.assert_none_new();
        // And what is not protected can be mounted, from the same home.
        let fine = sloplet.invoke_run(&["--mount", &at("project/deep")], &["ls", "-d", "/inside"]);
        assert_eq!(fine.env("HOME", home.to_str().unwrap()).finish().expect_code(0).word(), "/inside");
    }
}

/// A file that root may mount, but its mode tells others from reading it.
#[test]
fn a_mount_that_the_user_may_not_read() {
    let host = Host::alone();
    let secret = host.dir().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o700)).unwrap();
    fs::write(secret.join("file"), "of root").unwrap();
    let sloplet = host.user();
    let leaks = leaks(&host, &sloplet);
    for path in [secret.clone(), secret.join("file")] {
        let ended =
            sloplet.run(&["--mount", &format!("{}:/inside", path.display())], &["cat", "/inside", "/inside/file"]);
        assert!(!ended.out().contains("of root"), "{ended}");
        assert_ne!(ended.code, 0, "{ended}");
    }
    leaks.assert_none_new();
}

#[test]
fn environment_folder_name_and_user() {
    let host = Host::alone();
    for sloplet in [host.root(), host.user()] {
        let long = "x".repeat(64);
        let cases: &[(&[&str], &str)] = &[
            (
                &["run", "--env", "NOSUCHVARIABLE", "--", "true"],
                "--env NOSUCHVARIABLE: there is no such variable on the host",
            ),
            (&["run", "--env", "=x", "--", "true"], "is not of the form NAME=value"),
            (&["run", "--env", "", "--", "true"], "--env"),
            (&["run", "--env", "A B=1", "--", "true"], "a name has no spaces"),
            (&["run", "--user", "70000", "--", "true"], "--user 70000: ids inside are 0 to 65535"),
            (&["run", "--user", "0:70000", "--", "true"], "ids inside are 0 to 65535"),
            (&["run", "--network", "host", "--", "true"], "only 'none' is known: say what it may reach with --allow"),
            (&["run", "--network", "none", "--allow", "example.com", "--", "true"], "cannot be used with"),
            (&["run", "--workdir", "relative", "--", "true"], "must be an absolute path"),
            (&["run", "--workdir", "/nowhere", "--", "true"], "working directory /nowhere: No such file"),
            (&["run", "--workdir", "/etc/passwd", "--", "true"], "working directory /etc/passwd: Not a directory"),
            (&["run", "--hostname", "a b", "--", "true"], "is not a host name: use up to 63"),
            (&["run", "--hostname", "", "--", "true"], "is not a host name"),
            (&["run", "--hostname=-x", "--", "true"], "is not a host name"),
            (&["run", "--hostname", &long, "--", "true"], "is not a host name"),
            (&["run", "--hostname", "a/b", "--", "true"], "is not a host name"),
            (&["run", "--user", "nosuch", "--", "true"], "no user \"nosuch\""),
            (&["run", "--user", "", "--", "true"], "user"),
            (&["run", "--user", "1:2:3", "--", "true"], "user"),
            (&["run", "--user=-1", "--", "true"], "user"),
            (&["run", "--user", "99999999", "--", "true"], "user"),
            (&["run", "--user", "4294967295", "--", "true"], "user"),
        ];
        assert_refused(&host, &sloplet, cases);
    }
}

/// The command's own faults have statuses of their own, as with a shell.
#[test]
fn commands_that_cannot_be_executed() {
    let host = Host::alone();
    for sloplet in [host.root(), host.user()] {
        let leaks = leaks(&host, &sloplet);
        for (command, code, said) in [
            ("nosuch", 127, "nosuch: no such program in PATH"),
            ("/nowhere", 127, "/nowhere: No such file"),
            ("", 125, "empty"),
            ("/etc/passwd", 126, "/etc/passwd: Permission denied"),
            ("/tmp", 126, "/tmp"),
        ] {
            let ended = sloplet.run(&[], &[command]).expect_code(code).expect_said(said);
            assert!(ended.stderr.starts_with("sloplet: ") && ended.stderr.lines().count() == 1, "{ended}");
        }
        leaks.assert_none_new();
    }
}

#[test]
fn habits_of_other_tools_are_understood_and_files_of_the_host_are_pointed_out() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let ended = sloplet.run(&["--rm", "--network", "none"], &["true"]).expect_code(0);
        assert_eq!(ended.stderr, "", "{ended}");
        // A folder without a word about where it goes, and what is said if it was forgotten.
        let folder = sloplet.folder("project");
        fs::write(folder.join("agent.py"), "print('from the folder')").unwrap();
        let folder = folder.to_str().unwrap();
        let ended = sloplet.run(&["--mount", folder], &["sh", "-c", "pwd; python3 agent.py; : >new"]).expect_code(2);
        assert_eq!(ended.out(), "/workspace\nfrom the folder\n", "{ended}");
        sloplet.run(&["--mount", &format!("{folder}:rw")], &["touch", "new"]).expect_code(0);
        let ended = sloplet.run(&[], &["cat", "etc/os-release"]).expect_code(1);
        assert!(ended.stderr.lines().last().unwrap().contains("'--mount .' shows it"), "{ended}");
        sloplet.run(&[], &["usr/bin/env"]).expect_code(127).expect_said("--mount .");
        assert!(!sloplet.run(&[], &["cat", "/nowhere"]).expect_code(1).stderr.contains("--mount"));
    }
}

#[test]
fn what_was_denied_is_told_after_a_run_with_the_rule_that_would_allow_it() {
    let host = Host::shared();
    let ended = host.root().sh(&["--allow", "example.com"], "getent hosts api.github.com; true").expect_code(0);
    let told = "sloplet: it was not let reach api.github.com (--allow 'api.github.com' would let it)";
    assert_eq!(ended.stderr.lines().filter(|line| *line == told).count(), 1, "{ended}");
}

#[test]
fn what_was_tried_is_told_and_recorded_also_where_nothing_is_allowed() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let ended = sloplet.sh(&[], "getent hosts api.github.com; cat /etc/resolv.conf").expect_code(0);
        let told = "sloplet: it was not let reach api.github.com (--allow 'api.github.com' would let it)";
        assert_eq!(ended.stderr.lines().collect::<Vec<_>>(), [told], "{ended}");
        assert_eq!(ended.out(), "", "{ended}");
        let script = "import socket\nfor _ in range(3):\n try: socket.create_connection(('93.184.216.34', 443))\n except OSError: pass";
        let ended = sloplet.run(&[], &["python3", "-c", script]).expect_code(0);
        assert!(ended.stderr.starts_with("sloplet: it tried 3 times to reach an address, and nothing may"), "{ended}");
        let record = sloplet.invoke(&["audit", "--json"]).finish().expect_code(0).out();
        assert!(record.contains("\"kind\":\"dns\"") && record.contains("api.github.com"), "{record}");
        assert!(record.contains("3 attempts to reach addresses found no way out"), "{record}");
        // Who tries nothing is told nothing; and what is on loopback is nobody's attempt.
        let script =
            "import socket\ns = socket.create_server(('127.0.0.1', 0))\nsocket.create_connection(s.getsockname())";
        assert_eq!(sloplet.run(&[], &["python3", "-c", script]).expect_code(0).stderr, "");
    }
}

#[test]
fn a_typo_is_told_with_what_was_meant() {
    let host = Host::shared();
    for (words, said) in [
        (&["snapsot", "my"][..], "a similar subcommand exists: 'snapshot'"),
        (&["run", "--memry", "1GiB", "--", "true"], "a similar argument exists: '--memory'"),
        (&["image", "biuld"], "a similar subcommand exists: 'build'"),
        (&["key", "create", "x", "--scope", "admn"], "a similar value exists: 'admin'"),
        (&["run", "--image", "bas", "--", "true"], "unknown image 'bas'; there is: host"),
    ] {
        let ended = host.root().invoke(words).finish().expect_code(125).expect_said(said);
        assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    }
}

#[test]
fn sloplet_says_its_name_once() {
    let host = Host::shared();
    let sloplet = host.root();
    fs::create_dir_all(&sloplet.data).unwrap();
    fs::write(sloplet.data.join("sloplet.db"), "no database").unwrap();
    let ended =
        sloplet.invoke(&["ls"]).finish().expect_code(125).expect_said("the server could not start: the database");
    assert_eq!(ended.stderr.matches("sloplet: ").count(), 1, "{ended}");
}

#[test]
fn asking_without_a_terminal_says_that_nobody_was_asked() {
    let host = Host::shared();
    let script = "import socket\ntry: socket.create_connection(('ask.example', 443)).recv(1)\nexcept OSError: pass";
    let binary = host.binary();
    // Without a controlling terminal, whoever runs this test.
    let words =
        ["setsid", "--wait", binary.to_str().unwrap(), "run", "--ask", "ask.example", "--", "python3", "-c", script];
    let ended = host.root().other_program(&words).finish().expect_code(0);
    let said =
        "wants to reach ask.example:443 (rule 'ask.example'): nobody was asked, there is no terminal: the answer is no";
    assert!(ended.stderr.contains(said), "{ended}");
}

#[test]
fn the_doctor_says_first_what_most_want_to_know_and_starts_no_virtual_machine() {
    let host = Host::shared();
    let ended = host.root().invoke(&["doctor"]).finish().expect_code(0);
    assert!(ended.out().starts_with("good: 'sloplet run' works here"), "{ended}");
    assert!(!ended.out().contains('\x1b'), "{ended}");
}

#[test]
fn what_machines_read_is_json() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let doctor = sloplet.invoke(&["doctor", "--json"]).finish().expect_code(0).json();
        let drivers = doctor.as_array().unwrap();
        assert!(drivers.len() >= 2, "{doctor:#}");
        assert!(
            drivers.iter().all(|driver| driver["isolation"].is_string() && driver["capabilities"].is_array()),
            "{doctor:#}"
        );
        assert_eq!(sloplet.invoke(&["image", "ls", "--json"]).finish().expect_code(0).json(), serde_json::json!([]));
        let gc = sloplet.invoke(&["gc", "--json"]).finish().expect_code(0).json();
        assert!(gc["removed"].is_u64(), "{gc}");

        let script = "printf 'out\\n\"\\001\\377'; echo problem >&2; exit 7";
        let ended = sloplet.invoke_run(&["--json"], &["sh", "-c", script]).finish().expect_code(7);
        assert_eq!((ended.stderr.as_str(), ended.out().lines().count()), ("", 1), "{ended}");
        let result = ended.json();
        assert_eq!(result["stdout"], "out\n\"\u{1}\u{fffd}", "{result:#}");
        assert_eq!(result["stderr"], "problem\n", "{result:#}");
        assert_eq!(result["exit_code"], 7, "{result:#}");
        assert_eq!(result["timed_out"], false, "{result:#}");
        let ended = sloplet.invoke_run(&["--json", "--timeout", "300ms"], &["sleep", "60"]).finish().expect_code(124);
        assert_eq!(ended.json()["timed_out"], true, "{ended}");
        let ended = sloplet.invoke_run(&["--json"], &["sh", "-c", "kill -9 $$"]).finish().expect_code(137);
        assert_eq!((&ended.json()["signal"], &ended.json()["exit_code"]), (&9.into(), &137.into()), "{ended}");
    }
}

#[test]
fn completion_scripts_are_scripts() {
    let host = Host::shared();
    for shell in ["bash", "zsh", "fish"] {
        let script = host.root().invoke(&["completion", shell]).finish().expect_code(0);
        assert!(script.out().contains("sloplet") && script.stderr.is_empty(), "{script}");
        // Checked by the shell itself, where it is installed; bash always is.
        let Ok(mut child) = Command::new(shell).arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
            assert_ne!(shell, "bash");
            continue;
        };
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), &script.stdout).unwrap();
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{shell}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn help_shows_examples() {
    let host = Host::shared();
    let sloplet = host.root();
    for words in [vec![], vec!["run"], vec!["image", "import"], vec!["image", "pull"], vec!["completion"]] {
        let ended = sloplet.invoke(&[words.as_slice(), &["--help"]].concat()).finish().expect_code(0);
        assert!(ended.out().contains("Example"), "{ended}");
        assert!(ended.stderr.is_empty(), "{ended}");
    }
    for words in [["doctor"].as_slice(), &["gc"], &["image"], &["image", "ls"], &["image", "rm"], &["image", "build"]] {
        let ended = sloplet.invoke(&[words, &["--help"]].concat()).finish().expect_code(0);
        assert!(ended.out().contains("Usage: sloplet"), "{ended}");
    }
    let version = sloplet.invoke(&["--version"]).finish().expect_code(0);
    assert!(version.out().starts_with("sloplet "), "{version}");
}

#[test]
fn a_reader_that_leaves_early_is_no_panic() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_sloplet"))
        .args(["completion", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!said.contains("panicked") && ended.status.code() == Some(0), "{}: {said}", ended.status);
}
