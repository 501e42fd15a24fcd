"""A person at a terminal: runs a program on a real pseudo-terminal and plays a script of keys and expectations.

    terminal.py SCRIPT PROGRAM ARGUMENT...

SCRIPT is a JSON list of steps:

    ["expect", "text"]          wait until this comes, after what was expected before
    ["type", "keys"]            type this (control characters included)
    ["resize", rows, columns]   as a window that changes its size, SIGWINCH included
    ["signal", number]          send a signal to the program itself
    ["sleep", seconds]
    ["end"]                     wait for the program's end

Prints one JSON object: exit status, everything that was shown, whether the terminal's settings are as before.
"""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

PATIENCE = 50


def resize(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Person:
    def __init__(self, command):
        self.controller, self.terminal = os.openpty()
        resize(self.controller, 24, 80)
        self.before = termios.tcgetattr(self.terminal)
        self.shown, self.seen, self.status, self.problem = b"", 0, None, None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(self.terminal, termios.TIOCSCTTY, 0)
            for fd in range(3):
                os.dup2(self.terminal, fd)
            os.closerange(3, 256)
            os.environ["TERM"] = "xterm-256color"
            os.execvp(command[0], command)

    def read(self, seconds):
        ready, _, _ = select.select([self.controller], [], [], seconds)
        if ready:
            try:
                self.shown += os.read(self.controller, 65536)
            except OSError:  # nobody has the terminal open any more
                time.sleep(0.01)
        return bool(ready)

    def ended(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None

    def expect(self, text):
        deadline = time.monotonic() + PATIENCE
        while (at := self.shown.find(text.encode(), self.seen)) < 0:
            if time.monotonic() > deadline or self.ended() and not self.read(0.2):
                raise TimeoutError(f"waited in vain for {text!r} after {self.shown[self.seen:][-2000:]!r}")
            self.read(0.05)
        self.seen = at + len(text.encode())

    def wait(self):
        deadline = time.monotonic() + PATIENCE
        while not self.ended():
            if time.monotonic() > deadline:
                raise TimeoutError(f"it does not end; last: {self.shown[-500:]!r}")
            self.read(0.05)
        while self.read(0.05) and time.monotonic() < deadline:
            pass

    def play(self, step):
        kind, *values = step
        if kind == "expect":
            self.expect(values[0])
        elif kind == "type":
            os.write(self.controller, values[0].encode())
        elif kind == "resize":
            resize(self.controller, *values)
        elif kind == "signal":
            os.kill(self.pid, values[0])
        elif kind == "sleep":
            time.sleep(values[0])
        elif kind == "end":
            self.wait()
        else:
            raise ValueError(kind)


def main():
    person = Person(sys.argv[2:])
    try:
        for step in json.loads(sys.argv[1]):
            person.play(step)
        person.wait()
    except (TimeoutError, OSError) as problem:
        person.problem = str(problem)
        if not person.ended():
            os.kill(person.pid, signal.SIGTERM)
            time.sleep(1)
            if not person.ended():
                os.kill(person.pid, signal.SIGKILL)
                _, person.status = os.waitpid(person.pid, 0)
    after = termios.tcgetattr(person.terminal)
    # Characters that were typed and that nobody took: what is left of TIOCSTI, for instance.
    left = struct.unpack("i", fcntl.ioctl(person.terminal, termios.FIONREAD, bytes(4)))[0]
    print(json.dumps({
        "code": os.waitstatus_to_exitcode(person.status), "shown": person.shown.decode(errors="replace"),
        "restored": after == person.before, "problem": person.problem, "left_over_input": left,
    }))


main()
