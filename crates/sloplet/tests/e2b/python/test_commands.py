"""Commands: how they start, what they write, how they end."""

import base64

import pytest
from e2b import CommandExitException, InvalidArgumentException, NotFoundException, TimeoutException
from e2b.exceptions import AuthenticationException, SandboxException

from wire import envelope, eventually


def running(sandbox):
    return {process.pid for process in sandbox.commands.list()}


def test_output_and_code(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code, result.error) == ("out\n", "err\n", 0, None)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo said; exit 7")
    assert (failed.value.exit_code, failed.value.stdout, failed.value.error) == (7, "said\n", "exit status 7")


def test_user_home_and_environment(sandbox):
    lines = sandbox.commands.run('id -un; pwd; echo "$HOME $USER $LOGNAME $X"', envs={"X": "a b=c"}).stdout.splitlines()
    assert lines == ["user", "/home/user", "/home/user user user a b=c"]
    lines = sandbox.commands.run('id -un; echo "$HOME $USER"', user="root").stdout.splitlines()
    assert lines == ["root", "/root root"]
    with pytest.raises(AuthenticationException):
        sandbox.commands.run("true", user="nobody-at-all")
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.run("true", envs={"A\0B": "x"})


def test_working_directory(sandbox):
    assert sandbox.commands.run("pwd", cwd="/usr").stdout == "/usr\n"
    sandbox.files.make_dir("below/home")
    assert sandbox.commands.run("pwd", cwd="below/home").stdout == "/home/user/below/home\n"
    assert sandbox.commands.run("pwd", cwd="~/below").stdout == "/home/user/below\n"
    with pytest.raises(InvalidArgumentException) as missing:
        sandbox.commands.run("pwd", cwd="/no/such")
    assert "cwd '/no/such' does not exist" in str(missing.value)


def test_signals(sandbox):
    with pytest.raises(CommandExitException) as killed:
        sandbox.commands.run("kill -9 $$")
    assert (killed.value.exit_code, killed.value.error) == (-1, "signal: killed")
    command = sandbox.commands.run("sleep 600 | sleep 601", background=True)
    assert command.kill()
    with pytest.raises(CommandExitException) as killed:
        command.wait()
    assert killed.value.error == "signal: killed"
    # With all that it started.
    assert not sandbox.commands.run("pgrep -x sleep || true").stdout
    assert not command.kill()


def test_what_was_killed_is_gone_when_kill_returns(sandbox):
    # A kill that only sends the signal left the process there in one of thirty.
    for _ in range(60):
        command = sandbox.commands.run("sleep 700 & sleep 701 & (sleep 702 &); wait", background=True)
        eventually(lambda: len(sandbox.commands.run("pgrep -x sleep || true").stdout.split()) == 3)
        assert command.kill()
        assert command.pid not in running(sandbox)
        assert not sandbox.commands.run("pgrep -x sleep || true").stdout


def test_a_killed_process_whose_output_nobody_reads_is_gone_too(sandbox):
    command = sandbox.commands.run("yes", background=True)
    assert command.kill()
    assert command.pid not in running(sandbox) and not command.kill()


def test_a_line_of_a_mebibyte(sandbox):
    # Longer than Linux takes as one argument, which is 128 KiB.
    for size in (130_000, 131_072, 200_000, 1_000_000):
        text = "x" * size
        result = sandbox.commands.run(f"v={text}; echo ${{#v}} $#")
        assert result.stdout == f"{size} 0\n"
    assert sandbox.commands.run("cat <<'END' | wc -c\n" + "é\n" * 340_000 + "END").stdout.strip() == str(3 * 340_000)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run(f": {'x' * 900_000}; exit 9")
    assert failed.value.exit_code == 9
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.run("true " + "x" * 3_000_000)
    with pytest.raises(InvalidArgumentException, match="variable LONG has"):
        sandbox.commands.run("true", envs={"LONG": "x" * 200_000})
    assert sandbox.commands.run("echo still here").stdout == "still here\n"


def test_arguments_of_a_mebibyte_in_sum(wire):
    words = ["x" * 10_000] * 104
    body = envelope({"process": {"cmd": "sh", "args": ["-c", 'echo "$# $*" | wc -c', "sh", *words]}, "stdin": False})
    messages = [message for _, message in wire.stream("process.Process/Start", body).messages()]
    said = b"".join(base64.b64decode(one["event"]["data"]["stdout"]) for one in messages if "data" in one.get("event", {}))
    assert int(said) == len("104 ") + 104 * 10_001, messages
    # One that is too long for Linux, of a program that is no shell: told in one line.
    body = envelope({"process": {"cmd": "echo", "args": ["x" * 131_072]}})
    assert wire.stream("process.Process/Start", body).error() == "invalid_argument"


def test_terminate(sandbox, wire):
    command = sandbox.commands.run("trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done", background=True)
    for out, _, _ in command:
        assert out == "ready\n"
        break
    named = {"process": {"pid": command.pid}}
    assert wire.call("process.Process/SendSignal", {**named, "signal": "SIGNAL_SIGTERM"}).status == 200
    with pytest.raises(CommandExitException) as ended:
        command.wait()
    assert "bye" in ended.value.stdout and ended.value.exit_code == 3
    for signal in ["SIGNAL_SIGHUP", 1, None, {}]:
        assert wire.call("process.Process/SendSignal", {**named, "signal": signal}).error() == "invalid_argument"


def test_a_command_that_takes_too_long_is_killed(sandbox):
    before = running(sandbox)
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 602", timeout=0.5)
    eventually(lambda: running(sandbox) == before)
    assert sandbox.commands.run("pgrep -f 'sleep 60[2]' || true").stdout == ""


def test_a_client_that_leaves_does_not_end_its_command(sandbox):
    command = sandbox.commands.run("for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done; echo end > left", background=True)
    command.disconnect()
    again = sandbox.commands.connect(command.pid)
    assert again.pid == command.pid
    assert again.wait().stdout.endswith("6\n")
    assert sandbox.files.read("left") == "end\n"
    # One that has ended is still known.
    assert sandbox.commands.connect(command.pid).wait().exit_code == 0
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(4_000_000)


def test_connecting_twice_tells_both(sandbox):
    command = sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    others = [sandbox.commands.connect(command.pid) for _ in range(2)]
    command.send_stdin("it\n")
    assert [handle.wait().stdout for handle in [command, *others]] == ["got it\n"] * 3


def test_list(sandbox):
    command = sandbox.commands.run("sleep 603", background=True, envs={"A": "1"}, cwd="/usr")
    found = next(process for process in sandbox.commands.list() if process.pid == command.pid)
    assert (found.cmd, found.args, found.cwd) == ("/bin/bash", ["-l", "-c", "sleep 603"], "/usr")
    assert found.envs == {"A": "1"} and found.tag is None
    command.kill()
    eventually(lambda: command.pid not in running(sandbox))


def test_tags_name_processes(sandbox, wire):
    start = {"process": {"cmd": "sleep", "args": ["604"]}, "tag": "worker"}
    connection = wire.connect()
    connection.request(
        "POST",
        "/process.Process/Start",
        body=envelope(start),
        headers={**wire.headers, "Content-Type": "application/connect+json"},
    )
    assert connection.getresponse().status == 200
    tagged = [process for process in sandbox.commands.list() if process.tag == "worker"]
    assert len(tagged) == 1
    named = {"process": {"tag": "worker"}}
    assert wire.call("process.Process/SendSignal", {**named, "signal": "SIGNAL_SIGKILL"}).status == 200
    eventually(lambda: tagged[0].pid not in running(sandbox))
    assert wire.call("process.Process/SendSignal", {**named, "signal": 9}).error() == "not_found"
    both = {"process": {"tag": "worker", "pid": 1}, "signal": 9}
    assert wire.call("process.Process/SendSignal", both).error() == "invalid_argument"
    connection.close()


def test_standard_input(sandbox):
    command = sandbox.commands.run("cat; echo over", background=True, stdin=True)
    command.send_stdin("one ")
    sandbox.commands.send_stdin(command.pid, b"two\n")
    command.close_stdin()
    assert command.wait().stdout == "one two\nover\n"
    # Without a wish for it, input is empty and cannot be written.
    assert sandbox.commands.run("cat; echo over").stdout == "over\n"
    silent = sandbox.commands.run("sleep 605", background=True)
    with pytest.raises(SandboxException):
        silent.send_stdin("x")
    silent.kill()


def test_much_input_to_a_slow_reader(sandbox):
    size = 6_000_000
    command = sandbox.commands.run("sleep 0.5; wc -c", background=True, stdin=True, timeout=60)
    command.send_stdin("x" * size)
    command.close_stdin()
    assert command.wait().stdout.strip() == str(size)


def test_streamed_input_keeps_its_order(sandbox):
    pieces = [f"{number}\n" for number in range(2000)]
    command = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.stream_input(command.pid, pieces)
    command.close_stdin()
    assert command.wait().stdout == "".join(pieces)
    with pytest.raises(NotFoundException):
        sandbox.commands.stream_input(4_000_000, ["x"])


def test_much_output_arrives_whole(sandbox):
    assert len(sandbox.commands.run("head -c 20000000 /dev/zero | tr '\\0' x").stdout) == 20_000_000
    lines = sandbox.commands.run("seq 1 20000").stdout.splitlines()
    assert lines == [str(number) for number in range(1, 20001)]


def test_broken_text_is_not_lost(sandbox):
    assert sandbox.commands.run(r"printf 'a\xe2\x82\xac\xff'").stdout == "a€\ufffd"


def test_a_sandbox_that_is_killed_ends_its_streams(own_sandbox):
    command = own_sandbox.commands.run("sleep 606", background=True)
    own_sandbox.kill()
    with pytest.raises(TimeoutException) as ended:
        command.wait()
    assert "was killed or reached its end of life" in str(ended.value)
    assert not own_sandbox.is_running()


def test_keepalives_are_sent(wire):
    headers = {"Keepalive-Ping-Interval": "1", "Connect-Timeout-Ms": "2500"}
    answer = wire.stream("process.Process/Start", {"process": {"cmd": "sleep", "args": ["607"]}}, headers)
    kinds = [next(iter(message.get("event", message))) for _, message in answer.messages()]
    assert kinds[0] == "start" and kinds.count("keepalive") == 2 and kinds[-1] == "error"
    assert answer.error() == "deadline_exceeded"


def test_events_in_their_order(wire):
    command = {"process": {"cmd": "/bin/sh", "args": ["-c", "printf hi; exit 4"]}}
    answer = wire.stream("process.Process/Start", command)
    assert answer.headers["content-type"] == "application/connect+json"
    (_, start), (_, data), (_, end), last = answer.messages()
    assert start["event"]["start"]["pid"] > 1
    assert base64.b64decode(data["event"]["data"]["stdout"]) == b"hi"
    expected = {"exitCode": 4, "exited": True, "status": "exit status 4", "error": "exit status 4"}
    assert end["event"]["end"] == expected and last == (2, {})


def test_two_sandboxes_do_not_see_each_other(sandbox, own_sandbox):
    command = sandbox.commands.run("sleep 608", background=True)
    assert command.pid not in running(own_sandbox) or own_sandbox.commands.kill(command.pid)
    assert command.pid in running(sandbox)
    command.kill()


def test_async(in_async):
    async def work(sandbox):
        seen = []
        result = await sandbox.commands.run("echo one; echo two >&2", on_stdout=seen.append, on_stderr=seen.append)
        assert sorted(seen) == ["one\n", "two\n"] and result.exit_code == 0
        command = await sandbox.commands.run("cat", background=True, stdin=True)
        await sandbox.commands.send_stdin(command.pid, "text")
        await command.close_stdin()
        assert (await command.wait()).stdout == "text"
        sleeper = await sandbox.commands.run("sleep 609", background=True)
        await sleeper.disconnect()
        assert sleeper.pid in [process.pid for process in await sandbox.commands.list()]
        again = await sandbox.commands.connect(sleeper.pid)
        assert await sandbox.commands.kill(sleeper.pid)
        with pytest.raises(CommandExitException):
            await again.wait()
        with pytest.raises(TimeoutException):
            await sandbox.commands.run("sleep 610", timeout=0.3)

    in_async(work)
