"""Writes archives that no archiver writes: craft.py KIND ARCHIVE FOLDER_OUTSIDE"""

import io
import os
import sys
import tarfile

kind, path, outside = sys.argv[1:4]
tar = tarfile.open(path, "w:gz" if kind == "bomb" else "w", format=tarfile.GNU_FORMAT)


def add(name, type=tarfile.REGTYPE, link="", data=b"", mode=0o755, **numbers):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = type, link, mode, len(data)
    for key, value in numbers.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(data))


usual = ["bin", "etc", "tmp", "proc", "dev"]
if kind == "parent":
    add("../" * 20 + outside.lstrip("/") + "/slipped", data=b"x")
elif kind == "absolute":
    add(outside + "/slipped", data=b"x")
elif kind == "link":
    add("way", tarfile.SYMTYPE, outside)
    add("way/slipped", data=b"x")
elif kind == "relative-link":
    add("way", tarfile.SYMTYPE, "../" * 20 + outside.lstrip("/"))
    add("way/slipped", data=b"x")
elif kind == "hardlink":
    add("victim", tarfile.LNKTYPE, outside + "/precious")
    add("victim", data=b"overwritten")
elif kind == "hardlink-up":
    add("victim", tarfile.LNKTYPE, "../" * 20 + outside.lstrip("/") + "/precious")
elif kind == "proc":
    add("proc", tarfile.SYMTYPE, "/tmp")
elif kind == "dev":
    add("dev", tarfile.SYMTYPE, "/tmp")
elif kind == "sys":
    add("sys", tarfile.SYMTYPE, "/tmp")
elif kind == "dev-null":
    add("dev", tarfile.DIRTYPE)
    add("dev/null", tarfile.SYMTYPE, "/proc/sysrq-trigger")
elif kind == "bomb":
    # A file of four exabytes, of which a gigabyte of zeros follows.
    info = tarfile.TarInfo("zeros")
    info.size = 1 << 62
    tar.fileobj.write(info.tobuf(tarfile.GNU_FORMAT))
    for _ in range(16):
        tar.fileobj.write(bytes(64 << 20))
elif kind == "deep":
    add("/".join("d" * 300), data=b"x")
elif kind == "long":
    add("/".join(["d" * 200] * 30), data=b"x")
elif kind == "truncated":
    add("file", data=b"x" * 100000)
elif kind == "devices":
    for name in usual:
        add(name, tarfile.DIRTYPE)
    with open("/bin/busybox" if os.path.exists("/bin/busybox") else "/usr/bin/busybox", "rb") as file:
        add("bin/busybox", data=file.read())
    add("bin/sh", tarfile.SYMTYPE, "busybox")
    add("disk", tarfile.BLKTYPE, devmajor=8, devminor=0)
    add("memory", tarfile.CHRTYPE, devmajor=1, devminor=1)
    add("dev/kmsg", tarfile.CHRTYPE, devmajor=1, devminor=11)
    add("fifo", tarfile.FIFOTYPE)
    add("proc/planted", data=b"x")
    add("proc/self/attr/exec", data=b"x")
    add("dev/planted", data=b"x")
    add("powerful", data=b"#!/bin/sh\n", mode=0o4755)
if kind == "truncated":
    tar.fileobj.truncate(tar.fileobj.tell() - 50000)
    sys.exit()
if kind == "bomb":
    tar.fileobj.close()
    sys.exit()
tar.close()
