"""Commands, streams, processes, sessions, terminals."""

from hashlib import sha256

import pytest
from sloplet import CommandExecutionError, CommandTimeoutError, NotFoundError


def test_a_command_tells_what_it_wrote_and_how_it_ended(sandbox):
    done = sandbox.exec("printf 'out\\n'; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code, done.success) == ("out\n", "err\n", 3, False)
    assert "exit_code=3" in repr(done)
    done = sandbox.exec("echo $A; pwd", env={"A": "ä b"}, cwd="/tmp")
    assert done.stdout == "ä b\n/tmp\n" and done.success
    assert sandbox.exec(["printf", "%s", "a b;c"]).stdout == "a b;c"
    assert sandbox.exec("cat", stdin="fed").stdout == "fed"
    assert sandbox.exec("printf '\\377\\000x'").stdout_bytes == b"\xff\x00x"
    assert sandbox.exec("id -un", user="root").stdout == "root\n"


def test_check_raises_with_the_result(sandbox):
    with pytest.raises(CommandExecutionError, match="ended with 4") as error:
        sandbox.exec("echo why >&2; exit 4", check=True)
    assert error.value.result.stderr == "why\n"
    done = sandbox.exec("echo early; sleep 60", timeout=0.5)
    assert done.timed_out and done.stdout == "early\n"
    with pytest.raises(CommandTimeoutError, match="launch_process"):
        done.check()


def test_a_stream_tells_as_it_happens_and_ends_with_the_code(sandbox):
    events = list(sandbox.exec_stream("echo a; echo b >&2; exit 5"))
    assert sorted((one.type, one.data) for one in events[:-1]) == [("stderr", "b\n"), ("stdout", "a\n")]
    assert (events[-1].type, events[-1].data, events[-1].exit_code) == ("exit", "5", 5)
    # Half a character comes first.
    text = "".join(one.data for one in sandbox.exec_stream("printf '\\303'; sleep 0.2; printf '\\244'") if one.is_output)
    assert text == "ä"


def test_a_stream_loses_nothing_of_what_is_written_faster_than_read(sandbox):
    digest, size = sha256(), 0
    for event in sandbox.exec_stream("seq 1 1000000"):
        assert event.type != "gap"
        digest.update(event.raw)
        size += len(event.raw)
    here = "".join(f"{n}\n" for n in range(1, 1_000_001)).encode()
    assert size == len(here) and digest.digest() == sha256(here).digest()


def test_a_reader_that_leaves_ends_the_command(sandbox, eventually):
    for event in sandbox.exec_stream("echo started; sleep 1234"):
        assert event.data == "started\n"
        break
    eventually(lambda: not sandbox.list_processes("sleep 1234"))


async def test_the_same_with_await(waiting):
    sandbox = await waiting()
    assert (await sandbox.exec("echo hi")).stdout == "hi\n"
    events = [one async for one in sandbox.exec_stream("echo a; exit 2")]
    assert [(one.type, one.data) for one in events] == [("stdout", "a\n"), ("exit", "2")]
    assert await sandbox.is_ready() and await sandbox.status == "running"
    process = await sandbox.start("cat; exit 6", stdin=True)
    await process.write("x", close=True)
    assert await process.wait(timeout=30) == 6 and await process.logs() == "x"


def test_processes_in_the_background(sandbox, eventually):
    pid = sandbox.launch_process("echo begun; sleep 4321", cwd="/tmp", env={"B": "1"})
    listed = [one for one in sandbox.list_processes("sleep 4321") if one.pid == pid]
    assert len(listed) == 1 and listed[0].status == "running" and listed[0].managed
    manager = sandbox.processes
    assert manager.is_running(pid) and manager.get(pid).pid == pid
    for event in manager.attach(pid).output():
        assert event.data == "begun\n"
        break
    assert sandbox.kill_process(pid) is True
    assert manager.wait_for(pid, timeout=30) == 137
    assert manager.get_output(pid) == "begun\n" and not manager.is_running(pid)
    assert sandbox.kill_process(pid) is False and sandbox.kill_process(99999) is False
    first, second = manager.launch("sleep 1111"), manager.launch("sleep 2222")
    assert manager.kill_by_pattern("sleep 1111") >= 1
    eventually(lambda: not manager.is_running(first))
    assert manager.is_running(second) and sandbox.kill_all_processes() == 1
    # One that nobody started through the API.
    sandbox.exec("sleep 7777 & echo $! >/tmp/pid")
    stray = int(sandbox.filesystem.read_file("/tmp/pid"))
    assert manager.kill(stray) is True
    eventually(lambda: not manager.is_running(stray))


def test_input_and_signals(sandbox):
    process = sandbox.start("trap 'echo caught; exit 7' INT; read line; echo got $line; while :; do sleep 0.05; done", stdin=True)
    process.write("text\n")
    seen = ""
    for event in process.output():
        seen += event.data if event.is_output else ""
        if event.data == "got text\n":
            process.signal("SIGINT")
        if event.type == "exit":
            assert event.exit_code == 7
    assert seen == "got text\ncaught\n"
    with pytest.raises(CommandTimeoutError):
        sandbox.start("sleep 5").wait(timeout=0.1)


def test_sessions_remember(sandbox):
    with sandbox.create_session("my-session", env={"DEBUG": "1"}, cwd="/workspace") as session:
        session.exec("export MY_VAR=hello; cd /tmp")
        done = session.exec("echo $MY_VAR $DEBUG; pwd; exit 3")
        assert (done.stdout, done.exit_code) == ("hello 1\n/tmp\n", 3)
        assert sandbox.get_session("my-session").id == session.id
        assert [one.name for one in sandbox.list_sessions()] == ["my-session"]
        assert session.start("echo later").wait(timeout=30) == 0
    with pytest.raises(NotFoundError):
        sandbox.get_session("my-session")


def test_the_reference_s_service_client(sandbox):
    client = sandbox._get_service_client()
    assert client.health()
    client.create_session("other", env={"DEBUG": "1"}, cwd="/workspace")
    client.session_exec("other", "export MY_VAR=hello")
    assert client.session_exec("other", "echo $MY_VAR").stdout == "hello\n"
    assert client.get_session("other").name == "other"
    client.close_session("other")
    pid = client.exec_background("echo one; echo two; printf three")
    assert list(client.stream_process_logs(pid)) == ["one", "two", "three"]
    assert client.get_process_logs(pid, tail=1) == "three" and client.kill_process(pid) is False
    assert client.exec("echo x").stdout == "x\n"
    assert [one.data for one in client.exec_stream("echo y")] == ["y\n", "0"]


def test_a_terminal(sandbox):
    with sandbox.pty(columns=90, rows=20) as terminal:
        terminal.write("stty size; echo $((40+2))\n")
        seen = terminal.read_until("42\r\n")
        assert b"20 90\r\n" in seen
        terminal.resize(100, 30)
        terminal.write("stty size; exit 5\n")
        assert b"30 100" in b"".join(terminal.read())
        assert terminal.wait(timeout=30) == 5


def test_input_may_have_any_size(sandbox):
    data = bytes(range(256)) * (32 * 4096)
    done = sandbox.exec("sha256sum", stdin=data, check=True)
    assert done.stdout.split()[0] == sha256(data).hexdigest()
    # Who does not read is heard all the same.
    assert sandbox.exec("seq 3", stdin=data).stdout == "1\n2\n3\n"
    process = sandbox.start("sleep 0.3; sha256sum", stdin=True)
    process.write(data, close=True)
    assert process.wait(timeout=60) == 0 and process.logs().split()[0] == sha256(data).hexdigest()
