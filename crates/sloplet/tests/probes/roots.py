"""Ways out of the root: namespaces, mounts, handles, control groups."""

import ctypes
import fcntl
import json
import os
import signal
import struct
import tempfile

from attempts import (
    AT_FDCWD, CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS,
    Contained, MNT_DETACH, MS_BIND, MS_RDONLY, MS_REC, MS_REMOUNT, MS_SHARED, call, file_text, ignoring, openable,
    part, private_mounts, probe, reached,
)


# 9
@probe
def namespaces(settings):
    flags = {"user": CLONE_NEWUSER, "mount": CLONE_NEWNS, "pid": CLONE_NEWPID, "net": CLONE_NEWNET, "ipc": CLONE_NEWIPC,
             "uts": CLONE_NEWUTS, "cgroup": CLONE_NEWCGROUP, "time": 0x80}
    for name, flag in flags.items():
        part(f"unshare {name}", lambda flag=flag: f"unshare returned {call('unshare', flag)}")

        def clone(flag=flag):
            pid = call("clone", flag | signal.SIGCHLD, None, None, None, None)
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            return f"clone made {pid}"

        if name != "time":  # its bit is part of the exit signal here
            part(f"clone {name}", clone)

        def clone3(flag=flag):
            arguments = struct.pack("11Q", flag, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
            pid = call("clone3", arguments, len(arguments))
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            return f"clone3 made {pid}"

        part(f"clone3 {name}", clone3)
    # The filter must look at all the bits, in any company.
    part("unshare user among others", lambda: call("unshare", CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET) or "done")


# 10 and 11
@probe
def mounts(settings):
    def in_private(action):
        def attempt():
            private_mounts()
            return action()

        return attempt

    def place():
        return tempfile.mkdtemp(dir="/tmp").encode()

    def with_place(action):
        def attempt():
            private_mounts()
            folder = place()
            try:
                return action(folder)
            finally:
                ignoring(call, "umount2", folder, MNT_DETACH)
                ignoring(os.rmdir, folder)

        return attempt

    part("mount tmpfs", with_place(lambda folder: f"mounted {call('mount', b'none', folder, b'tmpfs', 0, None)}"))
    part("mount proc", with_place(lambda folder: f"mounted {call('mount', b'none', folder, b'proc', 0, None)}"))
    part("mount sysfs", with_place(lambda folder: f"mounted {call('mount', b'none', folder, b'sysfs', 0, None)}"))
    part("bind /", with_place(lambda folder: f"mounted {call('mount', b'/', folder, None, MS_BIND, None)}"))
    part("mount a disk", with_place(lambda folder: reached("mount", b"/dev/vda", folder, b"ext4", MS_RDONLY, b"nonsense")))
    part("fsopen", in_private(lambda: f"fsopen returned {call('fsopen', b'tmpfs', 0)}"))
    part("fsconfig", in_private(lambda: reached("fsconfig", -1, 6, None, None, 0)))
    part("fsmount", in_private(lambda: reached("fsmount", -1, 0, 0)))
    part("fspick", in_private(lambda: f"fspick returned {call('fspick', AT_FDCWD, b'/', 0)}"))
    part("open_tree", in_private(lambda: f"open_tree returned {call('open_tree', AT_FDCWD, b'/', 1)}"))
    part("open_tree as a path", in_private(lambda: f"open_tree returned {call('open_tree', AT_FDCWD, b'/', 0)}"))
    part("open_tree_attr", in_private(lambda: reached("open_tree_attr", AT_FDCWD, b"/", 1, None, 0)), optional=True)

    def move(folder):
        tree = call("open_tree", AT_FDCWD, b"/usr", 1)
        return f"moved {call('move_mount', tree, b'', AT_FDCWD, folder, 4)}"

    part("move_mount", with_place(move))
    part("move_mount without a tree", in_private(lambda: reached("move_mount", -1, b"", AT_FDCWD, b"/mnt", 4)))

    def attributes(folder):
        # Read-only off again, as for /usr.
        ignoring(call, "mount", b"none", folder, b"tmpfs", MS_RDONLY, None)
        target = folder if os.path.ismount(folder) else b"/usr"
        call("mount_setattr", AT_FDCWD, target, 0, struct.pack("4Q", 0, 1, 0, 0), 32)
        return f"{target} is writable"

    part("mount_setattr", with_place(attributes))

    def unmask():
        private_mounts()
        # On the host nothing is masked: mask it first.
        ignoring(call, "mount", b"/dev/null", b"/proc/timer_list", None, MS_BIND, None)
        call("umount2", b"/proc/timer_list", MNT_DETACH)
        return "the mask is off"

    part("umount a mask", unmask)

    def umount_proc():
        private_mounts()
        ignoring(call, "mount", b"none", b"/proc/sys", b"tmpfs", 0, None)
        call("umount2", b"/proc/sys", MNT_DETACH)
        return "unmounted"

    part("umount the read-only cover of /proc/sys", umount_proc)

    def remount(path):
        def attempt():
            private_mounts()
            ignoring(call, "mount", path, path, None, MS_BIND, None)
            call("mount", b"none", path, None, MS_REMOUNT | MS_BIND, None)
            return "remounted"

        return attempt

    for path in (b"/", b"/usr", b"/proc/sys"):
        part(f"remount {path.decode()} writable", remount(path))

    def umount_all():
        private_mounts()
        call("umount2", b"/dev", MNT_DETACH)
        return "unmounted /dev"

    part("umount /dev", umount_all)
    part("statmount", lambda: reached("statmount", None, 0, None, 0, 0), optional=True)
    part("listmount", lambda: reached("listmount", None, None, 0, 0), optional=True)


# 12
@probe
def enter_namespaces(settings):
    for name in ("mnt", "pid", "net", "ipc", "uts", "cgroup"):
        def enter(name=name):
            fd = os.open(f"/proc/{settings['victim']}/ns/{name}", os.O_RDONLY)
            return f"setns returned {call('setns', fd, 0)}"

        part(name, enter)

        def enter_own(name=name):
            fd = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
            return f"setns returned {call('setns', fd, 0)}"

        part(f"own {name}", enter_own)

    def by_pidfd():
        fd = call("pidfd_open", settings["victim"], 0)
        return f"setns returned {call('setns', fd, CLONE_NEWUTS | CLONE_NEWIPC)}"

    part("by pidfd", by_pidfd)

    def parent_of_namespace():
        fd = os.open("/proc/self/ns/user", os.O_RDONLY)
        parent = fcntl.ioctl(fd, 0xb702)  # NS_GET_PARENT
        return f"the parent user namespace is open as {parent}"

    # The host's first user namespace has no parent to show.
    part("the parent user namespace", parent_of_namespace, optional=True)


# 13
@probe
def climb_out(settings):
    canary = settings["canary"]

    def double_chroot():
        top = os.open("/", os.O_RDONLY)
        folder = tempfile.mkdtemp(dir="/tmp")
        try:
            os.chroot(folder)
            ignoring(os.rmdir, folder)
            os.fchdir(top)
            for _ in range(64):
                os.chdir("..")
            os.chroot(".")
        finally:
            ignoring(os.rmdir, folder)
        if not os.path.exists(canary):
            raise Contained("still inside")
        return "the host's canary is there"

    part("double chroot", double_chroot)

    def dots():
        path = "/" + "../" * 64 + canary.lstrip("/")
        return f"{len(file_text(path))} bytes"

    part("dots", dots)

    def pivot():
        private_mounts()
        folder = tempfile.mkdtemp(dir="/tmp").encode()
        try:
            ignoring(call, "mount", b"none", folder, b"tmpfs", 0, None)
            ignoring(os.mkdir, folder + b"/old")
            call("pivot_root", folder, folder + b"/old")
            return "pivoted"
        finally:
            ignoring(call, "umount2", folder, MNT_DETACH)
            ignoring(os.rmdir, folder + b"/old")
            ignoring(os.rmdir, folder)

    part("pivot_root", pivot)

    for link in ("root", "cwd", "fd/0", "task/1/root"):
        def through(link=link):
            path = f"/proc/{settings['victim']}/{link}".replace("/1/", f"/{settings['victim']}/")
            os.chdir(path)
            if not os.path.exists("../" * 30 + canary.lstrip("/")) and not os.path.exists(canary.lstrip("/")):
                raise Contained("not the host")
            return f"the host through {path}"

        part(f"through {link}", through, optional=link == "fd/0")

    def mounts_of(path):
        # A mount of the host that was forgotten below the new root would be in the table.
        for line in file_text("/proc/self/mountinfo").decode().splitlines():
            point = line.split()[4]
            candidate = os.path.join(point, canary.lstrip("/"))
            if os.path.exists(candidate):
                return candidate
        raise Contained("no mount leads to the canary")

    part("a forgotten mount", lambda: mounts_of(canary))


# 14
@probe
def file_handles(settings):
    """Shocker: the handle of the host's folder is known, and a file of its file system can be opened."""
    class Handle(ctypes.Structure):
        _fields_ = [("size", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]

    def opened():
        handle = Handle()
        data = bytes.fromhex(settings["handle"])
        handle.size, handle.kind = len(data), settings["handle_kind"]
        ctypes.memmove(handle.data, data, len(data))
        mount = os.open("/usr", os.O_RDONLY)
        fd = call("open_by_handle_at", mount, ctypes.byref(handle), os.O_RDONLY)
        return f"{os.listdir(fd)[:4]}"

    part("open_by_handle_at", opened)

    def named():
        handle, mount_id = Handle(), ctypes.c_int()
        handle.size = 128
        call("name_to_handle_at", AT_FDCWD, b"/usr", ctypes.byref(handle), ctypes.byref(mount_id), 0)
        return bytes(handle.data[: handle.size]).hex()

    part("name_to_handle_at", named)


def host_handle(path):
    """Prints the handle of a folder, for the settings."""
    buffer = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128), 136)
    mount_id = ctypes.c_int()
    call("name_to_handle_at", AT_FDCWD, path.encode(), buffer, ctypes.byref(mount_id), 0)
    size, kind = struct.unpack_from("Ii", buffer.raw)
    print(json.dumps({"handle": buffer.raw[8 : 8 + size].hex(), "handle_kind": kind}))


# 32
@probe
def cgroups(settings):
    def own_path():
        for line in file_text("/proc/self/cgroup").decode().splitlines():
            path = line.split(":", 2)[2]
            if path != "/" or settings.get("cgroup_marker", "\0") in path:
                return line
        raise Contained("/ everywhere")

    # A host whose shell sits in the root cgroup shows nothing either.
    part("own path", own_path, optional=True)

    def writable():
        for top, folders, files in os.walk("/sys/fs/cgroup"):
            if top.count("/") > 5:
                folders[:] = []
            for name in files:
                if name in ("cgroup.procs", "memory.max", "tasks", "memory.limit_in_bytes", "release_agent", "devices.allow"):
                    try:
                        return openable(os.path.join(top, name), os.O_WRONLY)
                    except OSError:
                        continue
        raise Contained("no file of cgroups can be opened")

    part("write", writable)


# 33
@probe
def propagation(settings):
    def shared():
        if ignoring(call, "unshare", CLONE_NEWNS) is not None:
            call("mount", b"none", b"/", None, MS_REC | MS_SHARED, None)
        for line in file_text("/proc/self/mountinfo").decode().splitlines():
            if " shared:" in line or " master:" in line:
                return line
        raise Contained("no shared mount")

    part("shared mounts", shared)
