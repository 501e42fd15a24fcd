"""Containment probes: the same code runs on the host, where each must take effect, and inside, where none may.

    probe.py SETTINGS NAME...

SETTINGS is a JSON object of what the test knows about the host: canaries, pids, names. For each part of each probe one
JSON line is printed:

    {"probe": "mounts", "part": "fsopen", "did": false, "errno": "EPERM", "saw": "", "optional": false}

`did` tells that the attempt took effect. `optional` parts need something that not every host has (a device, a kernel
option); all others must take effect on the host, else the test is inconclusive and fails.

Whatever would harm the host if it worked is asked for in a way that the kernel refuses late: an errno other than
"not permitted" then shows that the door was open.
"""

import errno
import json
import os
import select
import signal
import sys
import time

import attempts
import canaries  # noqa: F401 (each registers its probes)
import channels  # noqa: F401
import kernel  # noqa: F401
import processes  # noqa: F401
import roots


def run_part(name, action):
    """In a process of its own: some attempts change or end the one that makes them."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        attempts.report = writer
        os.set_inheritable(writer, False)
        try:
            result = {"did": True, "errno": None, "saw": str(action())}
        except attempts.Contained as found:
            result = {"did": False, "errno": None, "saw": str(found)}
        except OSError as error:
            code = errno.errorcode.get(error.errno, str(error.errno))
            result = {"did": False, "errno": code, "saw": str(error)}
        except BaseException as error:  # a broken probe must be seen, not pass
            result = {"did": None, "errno": None, "saw": f"broken probe: {error!r}"}
        os.write(writer, json.dumps(result).encode()[:60000])
        os._exit(0)
    os.close(writer)
    data, deadline = b"", time.monotonic() + 20
    while True:
        ready, _, _ = select.select([reader], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            os.kill(pid, signal.SIGKILL)
            break
        chunk = os.read(reader, 65536)
        if not chunk:
            break
        data += chunk
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if data:
        return json.loads(data)
    if os.WIFSIGNALED(status):
        return {"did": False, "errno": signal.Signals(os.WTERMSIG(status)).name, "saw": "killed"}
    return {"did": None, "errno": None, "saw": "broken probe: no answer"}


def main():
    if sys.argv[1] == "handle":
        return roots.host_handle(sys.argv[2])
    settings = json.loads(sys.argv[1])
    for name in sys.argv[2:]:
        attempts.PARTS.clear()
        attempts.PROBES[name](settings)
        for part_name, action, optional in list(attempts.PARTS):
            result = run_part(part_name, action)
            print(json.dumps({"probe": name, "part": part_name, "optional": bool(optional), **result}), flush=True)


if __name__ == "__main__":
    main()
