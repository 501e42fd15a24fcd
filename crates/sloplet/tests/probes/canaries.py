"""What must not be changed, and what must not be seen."""

import ctypes
import fcntl
import mmap
import os
import stat

from attempts import Contained, file_text, libc, nonempty, openable, part, probe, seen_in


# 34
@probe
def read_only_files(settings):
    path = settings["read_only"]

    def rewrite():
        before = file_text(path)
        with open(path, "r+b") as file:
            file.write(b"written ")
        with open(path, "r+b") as file:
            file.write(before[:8])
        return "written, and put back"

    part("write", rewrite)
    part("truncate", lambda: (os.truncate(path, len(file_text(path))), "truncated")[1])
    part("chmod", lambda: (os.chmod(path, 0o666), os.chmod(path, 0o644), "changed")[2])
    part("times", lambda: (os.utime(path), "changed")[1])
    part("unlink", lambda: (os.link(path, path + ".2"), os.unlink(path + ".2"), "linked and unlinked")[2])
    part("xattr", lambda: (os.setxattr(path, "user.sloplet", b"x"), os.removexattr(path, "user.sloplet"), "set")[2], optional=True)

    def through_descriptor():
        fd = os.open(path, os.O_RDONLY)
        return openable(f"/proc/self/fd/{fd}", os.O_WRONLY)

    part("by its descriptor", through_descriptor)

    def dirty_pipe():
        """CVE-2022-0847: no kernel in use does this any more; the file's content is what counts."""
        before = file_text(path)
        reader, writer = os.pipe()
        size = fcntl.fcntl(writer, 1032)  # F_GETPIPE_SZ
        for _ in range(size // 4096):
            os.write(writer, b"x" * 4096)
        for _ in range(size // 4096):
            os.read(reader, 4096)
        fd = os.open(path, os.O_RDONLY)
        os.splice(fd, writer, 1, offset_src=0) if hasattr(os, "splice") else libc.splice(
            fd, ctypes.byref(ctypes.c_int64(0)), writer, None, ctypes.c_size_t(1), 0)
        os.write(writer, b"DIRTY")
        if file_text(path) == before:
            raise Contained("unchanged")
        return "the file was changed"

    part("dirty pipe", dirty_pipe, optional=True)

    def mapped():
        with open(path, "rb") as file:
            mmap.mmap(file.fileno(), 8, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        return "mapped to write"

    # Never possible on a descriptor without write access, wherever.
    part("a writable mapping", mapped, optional=True)
    part("write in /usr", lambda: made_in("/usr"))
    part("write in /usr/bin", lambda: made_in("/usr/bin"))


def made_in(folder):
    path = os.path.join(folder, f".sloplet-probe-{os.getpid()}")
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    os.unlink(path)
    return f"made a file in {folder}"


@probe
def environment(settings):
    def leaked():
        for name, value in os.environ.items():
            if settings["secret"] in name or settings["secret"] in value:
                return name
        raise Contained(str(sorted(os.environ)))

    part("the host's variable", leaked)
    part("of the parent", lambda: seen_in(f"/proc/{os.getppid()}/environ", settings["secret"]), optional=True)


@probe
def canaries(settings):
    for path in settings["canaries"]:
        part(f"read {path}", lambda path=path: nonempty(path))
        part(f"look at {path}", lambda path=path: f"{os.lstat(path).st_size} bytes")


@probe
def sweep(settings):
    """Reads everything there is for a secret that was planted all over the host."""
    def everywhere():
        secret = settings["secret"].encode()
        roots = ["/"] if settings["inside"] else settings["sweep"]
        files = 0
        for root in roots:
            for top, folders, names in os.walk(root):
                folders[:] = [name for name in folders if os.path.join(top, name) not in
                              ("/usr", "/proc", "/sys", "/bin", "/sbin", "/lib", "/lib64", "/dev") and top != settings["own"]]
                if top == settings["own"]:
                    continue
                for name in folders + names:
                    path = os.path.join(top, name)
                    if settings["secret"] in name:
                        return f"the name {path}"
                    try:
                        info = os.lstat(path)
                        if stat.S_ISLNK(info.st_mode) and settings["secret"] in os.readlink(path):
                            return f"the link {path}"
                        if stat.S_ISREG(info.st_mode) and info.st_size < 8 << 20:
                            files += 1
                            if secret in file_text(path, 8 << 20):
                                return f"the content of {path}"
                    except OSError:
                        continue
        raise Contained(f"not in any of {files} files")

    part("files", everywhere)

    def processes():
        secret = settings["secret"].encode()
        own = {os.getpid(), os.getppid()}
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in own:
                continue
            for file in ("environ", "mountinfo", "maps", "cgroup", "status", "comm"):
                try:
                    if secret in file_text(f"/proc/{name}/{file}", 1 << 20):
                        return f"/proc/{name}/{file}"
                except OSError:
                    continue
        raise Contained("in none")

    part("processes", processes)
