//! Programs: output, exit, input, users, failures to start.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use sloplet_wire::*;

fn agent() -> (tempfile::TempDir, Agent) {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::fixed(folder.path());
    (folder, agent)
}

#[test]
fn output_errors_and_exit_code_arrive_apart() {
    let (_folder, mut agent) = agent();
    let done = agent.client.run(shell("echo out; echo err >&2; exit 7"));
    assert_eq!((done.output.as_slice(), done.error.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!((done.exit.code, done.exit.signal, done.exit.timed_out), (Some(7), None, false));
    assert!(done.exit.max_rss_kib > 0);
    assert_eq!(agent.client.hello.clone().unwrap().version, VERSION);
    assert!(agent.finish(), "the agent ends when its last connection does");
}

#[test]
fn a_signal_is_told_as_one() {
    let (_folder, mut agent) = agent();
    let done = agent.client.run(shell("kill -SEGV $$"));
    assert_eq!((done.exit.code, done.exit.signal), (None, Some(11)));
}

#[test]
fn a_program_gets_the_given_environment_and_place_and_its_user() {
    let (folder, mut agent) = agent();
    let mut request = shell("env; pwd; umask; ls /proc/self/fd; cat /proc/self/oom_score_adj; ps -o pgid= -p $$");
    request.env.push(b"X=\xff1".to_vec().into());
    request.cwd = Some(b"/usr".to_vec().into());
    let done = agent.client.run(request);
    let lines: Vec<&[u8]> = done.output.split(|byte| *byte == b'\n').collect();
    let has = |line: &[u8]| lines.contains(&line);
    assert!(has(b"X=\xff1") && has(b"PATH=/usr/local/bin:/usr/bin:/bin") && has(b"/usr") && has(b"0022"));
    assert!(!lines.iter().any(|line| line.starts_with(b"CARGO")));
    assert!(has(format!("HOME={}", folder.path().display()).as_bytes()));
    assert!(
        lines.iter().any(|line| line.starts_with(b"USER=")) && lines.iter().any(|line| line.starts_with(b"LOGNAME="))
    );
    // 3 is `ls`'s own.
    assert!(has(b"3") && !has(b"4"), "{}", String::from_utf8_lossy(&done.output));
    assert!(has(b"500"));
    let group = String::from_utf8_lossy(lines[lines.len() - 2]).trim().to_owned();
    assert_eq!(group, done.pid.to_string());
    // Without a working directory: home.
    let done = agent.client.run(shell("pwd"));
    assert_eq!(done.output, format!("{}\n", folder.path().display()).into_bytes());
}

#[test]
fn signals_are_as_a_fresh_program_expects() {
    let (_folder, mut agent) = agent();
    let done = agent.client.run(shell(
        "while read -r line; do case $line in SigBlk*|SigIgn*) echo \"$line\"; esac; done < /proc/self/status",
    ));
    let text = String::from_utf8(done.output).unwrap();
    for line in text.lines() {
        assert!(line.ends_with("0000000000000000"), "{text}");
    }
    assert_eq!(text.lines().count(), 2);
}

#[test]
fn what_cannot_start_says_why() {
    let (folder, mut agent) = agent();
    let file = folder.path().join("not-executable");
    std::fs::write(&file, "x").unwrap();
    let script = folder.path().join("no-format");
    std::fs::write(&script, "x").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let fifo = folder.path().join("fifo");
    std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let mut failed = |request: Exec| match agent.client.ask(&Request::Exec(request)) {
        Event::Failed(failure) => failure,
        other => panic!("{other:?}"),
    };
    let missing = failed(exec(&["no-such-program", "x"]));
    assert_eq!(missing.code, ErrorCode::NotFound);
    assert!(missing.message.contains("no-such-program"), "{}", missing.message);
    assert_eq!(failed(exec(&["/no/such/program"])).code, ErrorCode::NotFound);
    assert_eq!(failed(exec(&[&path(&file)])).code, ErrorCode::Denied);
    assert_eq!(failed(exec(&[&path(&fifo)])).code, ErrorCode::Denied);
    assert_eq!(failed(exec(&[&path(&script)])).code, ErrorCode::Invalid);
    assert_eq!(failed(exec(&[])).code, ErrorCode::Invalid);
    assert_eq!(failed(exec(&["a\0b"])).code, ErrorCode::Invalid);
    let missing = failed(Exec { cwd: Some(b"/no/where".to_vec().into()), ..exec(&["true"]) });
    assert_eq!(missing.code, ErrorCode::NotFound);
    assert!(missing.message.contains("/no/where"), "{}", missing.message);
    assert_eq!(failed(Exec { user: Some("other".into()), ..exec(&["true"]) }).code, ErrorCode::NoUser);
    assert_eq!(agent.client.run(exec(&["true"])).exit.code, Some(0));
}

#[test]
fn input_arrives_and_ends() {
    let (_folder, mut agent) = agent();
    let stream = agent.client.open(&Request::Exec(Exec { stdin: true, ..exec(&["wc", "-c"]) }));
    agent.client.send(stream, &[b'x'; 300_000]);
    agent.client.end(stream);
    assert_eq!(agent.client.finish(stream).output, b"300000\n");
    // Without input: an end of file at once.
    assert_eq!(agent.client.run(exec(&["wc", "-c"])).output, b"0\n");
}

#[test]
fn input_flows_only_as_fast_as_it_is_read() {
    let (_folder, mut agent) = agent();
    // Nobody reads: the agent takes the first window and grants no more.
    let stream = agent.client.open(&Request::Exec(Exec { stdin: true, ..shell("read go; wc -c") }));
    agent.client.started(stream);
    let window = flow::INITIAL_WINDOW as usize;
    let mut data = vec![b'x'; window];
    data[0] = b'\n';
    // A stopped program cannot block the agent either.
    agent.client.send(stream, &data[1..]);
    assert_eq!(agent.client.run(exec(&["echo", "still here"])).output, b"still here\n");
    agent.client.send(stream, b"\n");
    // Now everything up to the newline is consumed by `read`, so credit returns.
    let mut credit = 0;
    while credit < window / 2 {
        match agent.client.next(stream) {
            Seen::Window(0, more) => credit += more as usize,
            other => panic!("{other:?}"),
        }
    }
    agent.client.send(stream, &vec![b'y'; credit]);
    agent.client.end(stream);
    let mut all = Finished::default();
    agent.client.finish_started(stream, &mut all);
    assert_eq!(all.output, format!("{credit}\n").into_bytes());
}

#[test]
fn input_to_a_program_that_does_not_read_ends_with_it() {
    let (_folder, mut agent) = agent();
    let stream = agent.client.open(&Request::Exec(Exec { stdin: true, ..exec(&["true"]) }));
    agent.client.send(stream, &vec![0; flow::INITIAL_WINDOW as usize]);
    assert_eq!(agent.client.finish(stream).exit.code, Some(0));
}

#[test]
fn a_timeout_takes_the_whole_group() {
    let (_folder, mut agent) = agent();
    let request = Exec { timeout_ms: Some(200), ..shell("sleep 1000 & echo $!; sleep 1000") };
    let done = agent.client.run(request);
    assert_eq!((done.exit.signal, done.exit.timed_out), (Some(9), true));
    let child: u32 = String::from_utf8(done.output).unwrap().trim().parse().unwrap();
    eventually("the background child died", || !alive(child));
}

#[test]
fn a_daemon_that_keeps_the_output_open_does_not_delay_the_exit_nor_die() {
    let (folder, mut agent) = agent();
    let mark = folder.path().join("mark");
    let script = format!("(sleep 0.5; echo late; echo late; echo ok > {}) & echo early", mark.display());
    let done = agent.client.run(shell(&script));
    assert_eq!((done.output.as_slice(), done.exit.code), (&b"early\n"[..], Some(0)));
    // The daemon wrote to its inherited output after that and survived.
    eventually("the daemon went on", || std::fs::read(&mark).is_ok_and(|mark| mark == b"ok\n"));
}

#[test]
fn a_reset_stream_and_a_lost_connection_kill_the_foreground() {
    let (_folder, mut agent) = agent();
    let stream = agent.client.open(&Request::Exec(shell("sleep 1000 & sleep 1000")));
    let first = agent.client.started(stream);
    let stream2 = agent.client.open(&Request::Exec(exec(&["sleep", "1000"])));
    let second = agent.client.started(stream2);
    agent.client.reset(stream);
    eventually("reset killed it", || !alive(first));
    assert!(alive(second));
    assert!(agent.finish());
    eventually("the lost connection killed it", || !alive(second));
}

#[test]
fn zombies_are_reaped() {
    let (_folder, mut agent) = agent();
    let done = agent.client.run(exec(&[
        "python3",
        "-c",
        "import os\nfor i in range(3000):\n p=os.fork()\n if p==0:\n  if os.fork()==0: os._exit(0)\n  os._exit(0)\n os.waitpid(p,0)",
    ]));
    assert_eq!(done.exit.code, Some(0), "{}", String::from_utf8_lossy(&done.error));
    let children = format!("/proc/{0}/task/{0}/children", agent.pid());
    eventually("no child remains", || std::fs::read_to_string(&children).unwrap().trim().is_empty());
}

#[test]
fn a_large_output_arrives_whole_and_in_order() {
    let (_folder, mut agent) = agent();
    let done = agent.client.run(exec(&["seq", "3000000"]));
    let mut expected = 1u32;
    for line in done.output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        assert_eq!(line, expected.to_string().as_bytes());
        expected += 1;
    }
    assert_eq!(expected, 3_000_001);
}

#[test]
fn without_credit_a_flood_stops_and_others_are_served() {
    let (_folder, mut agent) = agent();
    agent.client.grants = false;
    let flood = agent.client.open(&Request::Exec(exec(&["yes"])));
    agent.client.started(flood);
    let mut received = 0;
    while received < flow::INITIAL_WINDOW as usize {
        match agent.client.next(flood) {
            Seen::Data(1, bytes) => received += bytes.len(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received, flow::INITIAL_WINDOW as usize);
    assert_eq!(agent.client.run(exec(&["echo", "hi"])).output, b"hi\n");
    // Nothing of the flood came in between.
    agent.client.grant(flood, 1, 10);
    assert!(matches!(agent.client.next(flood), Seen::Data(1, bytes) if bytes.len() == 10));
    agent.client.reset(flood);
}

#[test]
fn many_programs_at_once() {
    let (_folder, mut agent) = agent();
    let streams: Vec<u32> =
        (0..100).map(|n| agent.client.open(&Request::Exec(exec(&["echo", &n.to_string()])))).collect();
    for (n, stream) in streams.into_iter().enumerate() {
        assert_eq!(agent.client.finish(stream).output, format!("{n}\n").into_bytes());
    }
}

#[test]
fn users_are_switched_completely() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::switching("nobody");
    let id = |request: Exec, agent: &mut Agent| String::from_utf8(agent.client.run(request).output).unwrap();
    let by_default = id(shell("grep -E '^(Uid|Gid|Groups|CapEff|CapPrm)' /proc/self/status"), &mut agent);
    assert!(by_default.contains("Uid:\t65534\t65534\t65534\t65534"), "{by_default}");
    assert!(by_default.contains("Groups:\t65534 \n"), "{by_default}");
    assert!(by_default.contains("CapPrm:\t0000000000000000"), "{by_default}");
    let by_number = id(Exec { user: Some("1234:77".into()), ..shell("id -u; id -g; id -G") }, &mut agent);
    assert_eq!(by_number, "1234\n77\n77\n");
    let root = id(Exec { user: Some("root".into()), ..shell("id -u; pwd") }, &mut agent);
    assert_eq!(root, "0\n/root\n");
    let failed = agent.client.ask(&Request::Exec(Exec { user: Some("ghost".into()), ..exec(&["true"]) }));
    assert_eq!(code(&failed), ErrorCode::NoUser);
}

#[test]
fn a_filter_is_not_put_in_force_where_somebody_runs_who_would_escape_it() {
    let (_folder, mut agent) = agent();
    // This agent is no first process of a namespace: there is always somebody.
    let refused = agent.client.ask(&Request::FilterCommands);
    assert_eq!(code(&refused), ErrorCode::Invalid);
    assert_eq!(agent.client.run(shell("exit 3")).exit.code, Some(3));
}
