"""What all probes are made of."""

import ctypes
import errno
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

X86 = platform.machine() == "x86_64"
# name: (x86_64, aarch64)
NUMBERS = {
    "ptrace": (101, 117), "syslog": (103, 116), "personality": (135, 92), "pivot_root": (155, 41), "adjtimex": (159, 171),
    "acct": (163, 89), "settimeofday": (164, 170), "mount": (165, 40), "umount2": (166, 39), "swapon": (167, 224),
    "swapoff": (168, 225), "reboot": (169, 142), "sethostname": (170, 161), "iopl": (172, None), "init_module": (175, 105),
    "delete_module": (176, 106), "quotactl": (179, 60), "clock_settime": (227, 112), "mq_open": (240, 180),
    "kexec_load": (246, 104), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "unshare": (272, 97),
    "move_pages": (279, 239), "perf_event_open": (298, 241), "fanotify_init": (300, 262), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "clock_adjtime": (305, 266), "setns": (308, 268), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "kcmp": (312, 272), "finit_module": (313, 273), "kexec_file_load": (320, 294),
    "bpf": (321, 280), "userfaultfd": (323, 282), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "io_uring_setup": (425, 425), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "clone3": (435, 435), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467), "statmount": (457, 457), "listmount": (458, 458), "clone": (56, 220), "ioctl": (16, 29),
    "modify_ldt": (154, None), "process_madvise": (440, 440), "memfd_secret": (447, 447), "setdomainname": (171, 162),
    "lookup_dcookie": (212, 18), "vhangup": (153, 58), "shmget": (29, 194), "chroot": (161, 51),
}
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x2000000, 0x4000000, 0x8000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 1, 32, 4096, 16384, 1 << 18, 1 << 20
MNT_DETACH, AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = 2, -100, 0x1000, 0x8000
# What a closed door answers. Anything else was said by the code behind the door.
CLOSED = {errno.EPERM, errno.EACCES, errno.ENOSYS}


class Contained(Exception):
    """The attempt found nothing; says what was found instead."""


def call(name, *arguments):
    """A raw system call; raises OSError."""
    number = NUMBERS[name][0 if X86 else 1]
    if number is None:
        raise Contained("no such call on this processor")
    converted = []
    for argument in arguments:
        if argument is None:
            argument = 0
        if isinstance(argument, int):
            argument = ctypes.c_long(argument)
        converted.append(argument)
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *converted)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def reached(name, *arguments):
    """Whether a system call gets past the door, whatever the code behind it then says."""
    try:
        return f"{name} returned {call(name, *arguments)}"
    except OSError as error:
        if error.errno in CLOSED:
            raise
        return f"{name} was carried out: {error}"


def ignoring(action, *arguments):
    try:
        return action(*arguments)
    except (OSError, Contained):
        return None


def private_mounts():
    """A mount namespace to play in, on the host; inside this fails, and the attempt goes on without."""
    if ignoring(call, "unshare", CLONE_NEWNS) is not None:
        call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)


def file_text(path, limit=65536):
    with open(path, "rb") as file:
        return file.read(limit)


def nonempty(path):
    data = file_text(path, 4096)
    if not data:
        raise Contained("empty")
    return f"{len(data)} bytes: {data[:40]!r}"


def openable(path, flags):
    os.close(os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY))
    return f"opened {path}"


def seen_in(path, text):
    if text.encode() not in file_text(path, 1 << 22):
        raise Contained("not there")
    return f"in {path}"


PROBES = {}
PARTS = []


def probe(function):
    PROBES[function.__name__] = function
    return function


def part(name, action, optional=False):
    PARTS.append((name, action, optional))


# The descriptor through which the running part answers.
report = -1
