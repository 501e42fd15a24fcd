"""Other processes, the agent first of all, and what this one may."""

import ctypes
import errno
import json
import os
import resource
import signal
import struct
import subprocess

import attempts
from attempts import Contained, call, file_text, ignoring, nonempty, openable, part, probe, reached


# 1
@probe
def agent_binary(settings):
    """The program that runs as the agent (CVE-2019-5736): its file must not be had, in any way."""
    exe = f"/proc/{settings['victim']}/exe"
    part("open to read", lambda: openable(exe, os.O_RDONLY))
    part("open as a path", lambda: openable(exe, os.O_PATH))
    part("its name", lambda: os.readlink(exe))

    def execute():
        return subprocess.run([exe, "--version"], capture_output=True, timeout=5).stdout.decode()[:60] or "ran"

    part("execute", execute)

    def by_descriptor():
        fd = os.open(exe, os.O_PATH)
        try:
            openable(f"/proc/self/fd/{fd}", os.O_WRONLY)
        except OSError as error:
            if error.errno != errno.ETXTBSY:  # it was about to be written, were it not running
                raise
        return "open for writing but for it running"

    part("open to write by descriptor", by_descriptor)


# 2
@probe
def inherited_descriptors(settings):
    def extra():
        found = {}
        for fd in range(3, 4096):
            try:
                found[fd] = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
        # The pipe of this very part.
        found.pop(attempts.report, None)
        if not found:
            raise Contained("only 0 to 2")
        return str(found)

    part("beyond 0 to 2", extra)

    def folders():
        for fd in range(0, 64):
            try:
                os.chdir(f"/proc/self/fd/{fd}")
            except OSError:
                continue
            for name in (settings["canary"].lstrip("/"), "../" * 30 + settings["canary"].lstrip("/")):
                if os.path.exists(name):
                    return f"the host's root through descriptor {fd}"
        raise Contained("none is a folder of the host")

    part("a folder of the host", folders)


# 15
@probe
def other_processes(settings):
    victim = settings["victim"]
    address = settings.get("address", 0x400000)

    def attach(request):
        def attempt():
            call("ptrace", request, victim, None, None)
            os.waitpid(victim, 0x40000000) if request == 16 else None
            ignoring(call, "ptrace", 17, victim, None, None)
            return "attached"

        return attempt

    part("ptrace attach", attach(16))
    part("ptrace seize", attach(0x4206))

    def vector(name):
        def attempt():
            buffer = ctypes.create_string_buffer(16)
            local = struct.pack("PN", ctypes.addressof(buffer), 16)
            remote = struct.pack("PN", address, 16)
            if name == "process_vm_writev":  # an address where nothing is: refused late
                remote = struct.pack("PN", 8, 1)
                local = struct.pack("PN", ctypes.addressof(buffer), 1)
            return reached(name, victim, local, 1, remote, 1, 0)

        return attempt

    part("process_vm_readv", vector("process_vm_readv"))
    part("process_vm_writev", vector("process_vm_writev"))
    part("kcmp", lambda: reached("kcmp", os.getpid(), victim, 0, 0, 0), optional=True)

    def steal():
        fd = call("pidfd_open", victim, 0)
        return f"stole descriptor {call('pidfd_getfd', fd, 0, 0)}"

    part("pidfd_getfd", steal)
    part("process_madvise", lambda: reached("process_madvise", call("pidfd_open", victim, 0), struct.pack("PN", 0, 0), 1, 20, 0))
    for name in ("environ", "maps", "auxv", "io", "syscall", "stack", "smaps", "pagemap", "mountinfo", "mem"):
        def read(name=name):
            path = f"/proc/{victim}/{name}"
            if name == "mem":
                return openable(path, os.O_RDWR)
            if name == "mountinfo":
                text = file_text(path)
                if text == file_text("/proc/self/mountinfo"):
                    raise_if_inside(settings, "the own table")
                return text[:60].decode()
            return nonempty(path)

        part(f"read {name}", read, optional=name in ("stack", "syscall", "io", "pagemap"))
    for name in ("fd", "fdinfo", "map_files", "root", "cwd"):
        part(f"list {name}", lambda name=name: str(os.listdir(f"/proc/{victim}/{name}")[:4]), optional=name == "map_files")
    for name in ("root", "cwd", "exe"):
        part(f"link {name}", lambda name=name: os.readlink(f"/proc/{victim}/{name}"))
    part("its memory through a task", lambda: openable(f"/proc/{victim}/task/{victim}/mem", os.O_RDONLY))

    def descriptors():
        for fd in range(0, 64):
            path = f"/proc/{victim}/fd/{fd}"
            try:
                return f"{path} is {os.readlink(path)}"
            except FileNotFoundError:
                continue
        raise Contained("no descriptor is seen")

    part("its descriptors", descriptors)


def raise_if_inside(settings, text):
    if settings["inside"]:
        raise Contained(text)


# 16
@probe
def host_processes(settings):
    def by_pid():
        pid = settings["host_process"]
        os.kill(pid, 0)
        name = file_text(f"/proc/{pid}/cmdline")
        if settings["marker"].encode() not in name:
            raise Contained(f"pid {pid} is another process here")
        return f"signalled {pid}"

    part("signal", by_pid)

    def sleeper():
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            arguments = (ignoring(file_text, f"/proc/{name}/cmdline") or b"").split(b"\0")
            if arguments[0] == settings["marker"].encode():
                return f"process {name}"
        raise Contained(f"{sum(name.isdigit() for name in os.listdir('/proc'))} processes, none the host's")

    part("list", sleeper)
    # A root without every capability may not.
    part("limits", lambda: f"{resource.prlimit(settings['host_process'], 7)}", optional=True)
    part("priority", lambda: f"{os.getpriority(os.PRIO_PROCESS, settings['host_process'])}")
    part("scheduler", lambda: f"{os.sched_getaffinity(settings['host_process'])}")
    part("session", lambda: f"{os.getsid(settings['host_process'])}")
    part("pidfd", lambda: f"{call('pidfd_open', settings['host_process'], 0)}")


# 16
@probe
def kill_all(settings):
    """`kill -9 -1`: as somebody else on the host, of course."""
    def attempt():
        if not settings["inside"]:
            os.setgroups([])
            os.setresgid(*[settings["throwaway"]] * 3)
            os.setresuid(*[settings["throwaway"]] * 3)
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            raise Contained("nobody to kill")
        return "sent"

    part("kill -9 -1", attempt)


# 27
@probe
def privileges(settings):
    """Reports, does not attack: what this process has."""
    status = dict(line.split(":\t", 1) for line in file_text("/proc/self/status").decode().splitlines())
    fields = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    report = {name: status[name].strip() for name in fields}
    for name in ("uid_map", "gid_map", "setgroups"):
        report[name] = file_text(f"/proc/self/{name}").decode().strip()
    part("status", lambda: json.dumps(report))


# 26
@probe
def set_id_programs(settings):
    def of_the_system():
        """A set-user-ID program of the host."""
        before = os.geteuid()
        if before == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        copy = settings["setuid"]
        done = subprocess.run([copy, "-u"], capture_output=True, text=True)
        if done.stdout.strip() != "0":
            raise Contained(f"effective user {done.stdout.strip()!r} {done.stderr.strip()!r}")
        return "effective user 0"

    part("a mounted set-user-ID program", of_the_system)
