"""Terminals."""

import time

import pytest
from e2b import CommandExitException, NotFoundException, PtySize
from e2b.exceptions import SandboxException


def output(terminal):
    seen = []
    result = terminal.wait(on_pty=seen.append)
    return result.exit_code, b"".join(seen).decode()


def test_a_shell(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), envs={"ABC": "1" + "2"}, cwd="/usr")
    sandbox.pty.send_stdin(terminal.pid, b"echo $ABC-$((1+1)); pwd; tty; echo $TERM; exit 3\n")
    seen = []
    with pytest.raises(CommandExitException) as ended:
        terminal.wait(on_pty=seen.append)
    text = b"".join(seen).decode()
    assert ended.value.exit_code == 3
    assert "12-2" in text and "/usr" in text and "/dev/pts/" in text and "xterm-256color" in text


def test_sizes(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=30, cols=100))
    sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=123))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
    code, text = output(terminal)
    assert code == 0 and "40 123" in text


def test_reconnect_and_kill(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    terminal.disconnect()
    again = sandbox.pty.connect(terminal.pid)
    sandbox.pty.send_stdin(terminal.pid, b"echo still-$((40+2))\n")
    for _, _, data in again:
        if data and b"still-42" in data:
            break
    assert sandbox.pty.kill(terminal.pid)
    with pytest.raises(CommandExitException):
        again.wait()
    assert not sandbox.pty.kill(terminal.pid)


def test_control_keys(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.send_stdin(terminal.pid, b"sleep 700; echo code-$?\n")
    time.sleep(0.5)
    sandbox.pty.send_stdin(terminal.pid, b"\x03")
    sandbox.pty.send_stdin(terminal.pid, b"echo done-$((1+1))\nexit 0\n")
    code, text = output(terminal)
    assert code == 0 and "done-2" in text


def test_streamed_input(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.stream_input(terminal.pid, [b"echo a$((1+1))\n", b"echo b$((2+2))\n", b"exit\n"])
    code, text = output(terminal)
    assert code == 0 and "a2" in text and "b4" in text


def test_what_is_no_terminal(sandbox, wire):
    command = sandbox.commands.run("cat", background=True, stdin=True)
    with pytest.raises(SandboxException):
        sandbox.pty.send_stdin(command.pid, b"x")
    with pytest.raises(SandboxException):
        sandbox.pty.resize(command.pid, PtySize(rows=1, cols=1))
    command.kill()
    with pytest.raises(NotFoundException):
        sandbox.pty.resize(4_000_000, PtySize(rows=1, cols=1))
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    with pytest.raises(SandboxException):
        sandbox.commands.send_stdin(terminal.pid, "x")
    with pytest.raises(SandboxException):
        sandbox.commands.close_stdin(terminal.pid)
    sandbox.pty.kill(terminal.pid)
    for size in [{"cols": 70000, "rows": 1}, {"cols": -1, "rows": 1}, {"cols": "x"}, 5]:
        start = {"process": {"cmd": "true"}, "pty": {"size": size}}
        assert wire.stream("process.Process/Start", start).error() == "invalid_argument", size


def test_async(in_async):
    async def work(sandbox):
        seen = []
        terminal = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=lambda data: seen.append(data))
        await sandbox.pty.resize(terminal.pid, PtySize(rows=50, cols=99))
        await sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
        assert (await terminal.wait()).exit_code == 0
        assert b"50 99" in b"".join(seen)

    in_async(work)
