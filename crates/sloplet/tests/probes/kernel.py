"""Doors into the kernel: settings, masked files, calls that no sandbox needs."""

import ctypes
import errno
import os
import signal
import struct
import subprocess
import tempfile

from attempts import (
    CLONE_NEWCGROUP, CLONE_NEWNS, CLONE_NEWUSER, CLOSED, Contained, MNT_DETACH, call, file_text, ignoring, nonempty,
    openable, part, private_mounts, probe, reached,
)


# 3
@probe
def release_agent(settings):
    def mounted(new_user):
        def attempt():
            if new_user:
                call("unshare", CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP)
            else:
                private_mounts()
            place = tempfile.mkdtemp().encode()
            try:
                for kind, options in ((b"cgroup2", None), (b"cgroup", b"memory"), (b"cgroup", b"pids")):
                    try:
                        call("mount", b"none", place, kind, 0, options)
                        return f"{kind.decode()} is mounted"
                    except OSError as error:
                        last = error
                raise last
            finally:
                ignoring(call, "umount2", place, MNT_DETACH)
                ignoring(os.rmdir, place)

        return attempt

    part("mount a cgroup hierarchy", mounted(False))
    part("in a user namespace", mounted(True), optional=True)  # a VM's root cgroup may forbid it


# 4 and 5
@probe
def kernel_settings(settings):
    for path in ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/panic", "vm/drop_caches",
                 "kernel/overflowuid", "fs/file-max", "kernel/ns_last_pid"):
        path = "/proc/sys/" + path
        optional = path.endswith(("modprobe", "ns_last_pid"))
        part(path, lambda path=path: openable(path, os.O_WRONLY), optional)

    def same_pattern():
        before = file_text("/proc/sys/kernel/core_pattern")
        with open("/proc/sys/kernel/core_pattern", "r+b", buffering=0) as file:
            file.write(before)
        return "core_pattern was written"

    part("write core_pattern", same_pattern)
    for path in ("/proc/sys/fs/binfmt_misc/register", "/sys/kernel/uevent_helper", "/proc/sysrq-trigger", "/sys/power/state",
                 "/sys/kernel/profiling", "/proc/irq/default_smp_affinity", "/proc/mtrr"):
        part(path, lambda path=path: openable(path, os.O_WRONLY), optional=True)
    # World-writable by mode: checked only when something is written.
    slack = f"/proc/{settings['victim']}/timerslack_ns"

    def same_slack():
        value = file_text(slack)
        fd = os.open(slack, os.O_WRONLY)
        os.write(fd, value)
        return f"wrote {value}"

    part("/proc/1/timerslack_ns", same_slack, optional=True)
    for path in ("/proc/1/oom_score_adj", "/proc/1/sched", "/proc/1/clear_refs", "/proc/1/coredump_filter",
                 "/proc/1/projid_map", "/proc/1/uid_map", "/proc/1/setgroups"):
        real = path.replace("/1/", f"/{settings['victim']}/")
        part(path, lambda path=real: openable(path, os.O_WRONLY), optional="oom_score" not in path)


# 6
@probe
def masked_files(settings):
    for path in ("/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/interrupts", "/proc/kcore", "/proc/sched_debug",
                 "/proc/latency_stats", "/proc/kallsyms", "/proc/kmsg", "/proc/vmallocinfo", "/proc/iomem", "/proc/slabinfo"):
        needed = path in ("/proc/keys", "/proc/timer_list", "/proc/interrupts")

        def read(path=path):
            if path == "/proc/kmsg":
                return openable(path, os.O_RDONLY)
            return nonempty(path)

        if path in ("/proc/kallsyms", "/proc/iomem"):
            # Readable by all, but without addresses for whoever has no capability in the host's user namespace.
            def read(path=path):
                for line in file_text(path, 1 << 20).splitlines():
                    if line.replace(b"-", b"").lstrip(b" ")[:8].strip(b"0 "):
                        return line.decode()
                raise Contained("no addresses")

        part(path, read, optional=not needed)
    for path in ("/sys/firmware", "/sys/devices/virtual/powercap", "/sys/kernel", "/proc/acpi", "/proc/scsi", "/proc/asound",
                 "/sys/fs/cgroup", "/sys/class", "/sys/block"):
        def listed(path=path):
            names = os.listdir(path)
            if not names:
                raise Contained("empty")
            return str(names[:3])

        part(path, listed, optional=path not in ("/sys/firmware", "/sys/kernel", "/sys/class"))


# 17
@probe
def keyrings(settings):
    part("add_key", lambda: f"key {call('add_key', b'user', b'sloplet-probe', b'x', 1, -2)}")
    part("request_key", lambda: reached("request_key", b"user", b"sloplet-nothing", None, 0))
    part("keyctl", lambda: f"keyring {call('keyctl', 0, -3, 1)}")
    part("keyctl session", lambda: f"keyring {call('keyctl', 1, None)}")


# 18 and 19
@probe
def kernel_interfaces(settings):
    def bpf():
        attributes = struct.pack("IIII", 2, 4, 4, 1) + bytes(112)
        return f"map {call('bpf', 0, attributes, len(attributes))}"

    part("bpf", bpf)

    def perf():
        attributes = struct.pack("IIQQQQQ", 1, 112, 0, 0, 0, 0, 1) + bytes(72)
        return f"event {call('perf_event_open', attributes, 0, -1, -1, 0)}"

    part("perf_event_open", perf)
    part("userfaultfd", lambda: f"fd {call('userfaultfd', 0o2000000)}")
    part("userfaultfd for user mode", lambda: f"fd {call('userfaultfd', 0o2000001)}")
    part("/dev/userfaultfd", lambda: openable("/dev/userfaultfd", os.O_RDWR), optional=True)
    part("io_uring_setup", lambda: f"ring {call('io_uring_setup', 4, bytes(120))}")
    part("fanotify", lambda: f"fd {call('fanotify_init', 0, 0)}")
    part("memfd_secret", lambda: f"fd {call('memfd_secret', 0)}", optional=True)
    part("iopl", lambda: f"iopl returned {call('iopl', 0)}", optional=True)
    part("modify_ldt", lambda: reached("modify_ldt", 0, bytes(16), 16), optional=True)
    part("move_pages", lambda: reached("move_pages", 0, 0, None, None, None, 0), optional=True)
    part("vhangup", lambda: reached("vhangup") if settings["inside"] else "not tried on the host", optional=True)


# 20
@probe
def kernel_power(settings):
    part("init_module", lambda: reached("init_module", None, 0, b""), optional=True)  # kernels without modules
    part("finit_module", lambda: reached("finit_module", -1, b"", 0), optional=True)
    part("delete_module", lambda: reached("delete_module", b"sloplet_nothing", 0), optional=True)
    part("kexec_load", lambda: reached("kexec_load", 0, 1 << 30, None, 0xFFFF0000), optional=True)
    part("kexec_file_load", lambda: reached("kexec_file_load", -1, -1, 0, None, 0xFFFF), optional=True)
    part("reboot", lambda: reached("reboot", 0, 0, 0, None))  # without its magic numbers
    part("swapon", lambda: reached("swapon", b"/sloplet/nothing", 0))
    part("swapoff", lambda: reached("swapoff", b"/sloplet/nothing"))
    part("acct", lambda: reached("acct", b"/sloplet/nothing"))
    part("syslog", lambda: f"{call('syslog', 3, ctypes.create_string_buffer(4096), 4096)} bytes")
    part("quotactl", lambda: reached("quotactl", -1, b"/sloplet/nothing", 0, None), optional=True)
    part("sethostname", lambda: f"{call('sethostname', os.uname().nodename.encode(), len(os.uname().nodename))}")


# 21
@probe
def clocks(settings):
    part("clock_settime", lambda: reached("clock_settime", 0, struct.pack("qq", -1, -1)))

    def adjust(name, *first):
        def attempt():
            buffer = ctypes.create_string_buffer(256)
            call(name, *first, buffer)  # reading: modes are 0
            struct.pack_into("I", buffer, 0, 0x10)  # ADJ_STATUS, as it is
            return f"{name} returned {call(name, *first, buffer)}"

        return attempt

    part("adjtimex", adjust("adjtimex"))
    part("clock_adjtime", adjust("clock_adjtime", 0))
    part("settimeofday", lambda: reached("settimeofday", struct.pack("qq", -1, -1), None))


# 23
@probe
def other_doors(settings):
    """The same calls through int 0x80 and the x32 numbers; `doors` is compiled from doors.c."""
    doors = settings["doors"]
    if not doors:
        return
    names = subprocess.run([doors, "list"], capture_output=True, text=True).stdout.split()

    for name in names:
        def attempt(name=name):
            done = subprocess.run([doors, name], capture_output=True, text=True, timeout=5)
            if done.returncode < 0:
                raise Contained(f"killed by {signal.Signals(-done.returncode).name}")
            result = int(done.stdout.split()[0])
            if result < 0 and -result in CLOSED | {errno.EAFNOSUPPORT}:
                raise OSError(-result, os.strerror(-result))
            return f"returned {result}"

        # x32 is an option that few kernels have.
        part(name, attempt, optional=name.startswith("x32") or name.endswith("init_module"))


# 24
@probe
def personalities(settings):
    for name, value in {"READ_IMPLIES_EXEC": 0x400000, "ADDR_NO_RANDOMIZE": 0x40000, "ADDR_COMPAT_LAYOUT": 0x200000,
                        "MMAP_PAGE_ZERO": 0x100000, "SHORT_INODE": 0x1000000, "PER_BSD": 6, "PER_SVR4": 0x4100001,
                        "LINUX32 and more": 0x40008}.items():
        part(name, lambda value=value: f"before: {call('personality', value)}")
