"""Ways to talk to somebody: devices, terminals, sockets, shared memory."""

import ctypes
import fcntl
import os
import signal
import socket
import stat
import tempfile
import termios

from attempts import Contained, call, ignoring, nonempty, openable, part, probe, reached, seen_in


# 22
@probe
def sockets(settings):
    def made(*arguments):
        def attempt():
            socket.socket(*arguments).close()
            return "made"

        return attempt

    part("AF_PACKET", made(17, socket.SOCK_RAW, 0x300))
    part("AF_PACKET datagrams", made(17, socket.SOCK_DGRAM, 0x300))
    part("SOCK_PACKET", made(2, 10, 0x300), optional=True)
    part("raw IPv4", made(2, 3, 1))
    part("raw IPv4 with flags", made(2, 3 | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 255))
    part("raw IPv6", made(10, 3, 58), optional=True)
    part("netlink netfilter", made(16, 3, 12), optional=True)
    part("netlink audit", made(16, 3, 9), optional=True)
    part("netlink uevents", made(16, 3, 15))
    part("AF_VSOCK", made(40, 1, 0), optional=True)
    families = {"AF_ALG": 38, "AF_BLUETOOTH": 31, "AF_CAN": 29, "AF_TIPC": 30, "AF_XDP": 44, "AF_RXRPC": 33, "AF_KEY": 15,
                "AF_RDS": 21, "AF_IB": 27, "AF_SMC": 43, "AF_NFC": 39, "AF_KCM": 41, "AF_QIPCRTR": 42, "AF_MCTP": 45,
                "AF_PPPOX": 24, "AF_LLC": 26, "AF_X25": 9, "AF_AX25": 3, "AF_APPLETALK": 5}
    for name, family in families.items():
        for kind in (1, 2, 3, 5):
            part(f"{name} {kind}", made(family, kind, 0), optional=True)
    for name, kind, protocol in (("SCTP", 1, 132), ("DCCP", 6, 33), ("MPTCP", 1, 262), ("UDP-Lite", 2, 136), ("L2TP", 2, 115)):
        part(name, made(2, kind, protocol), optional=True)

    def connected(address):
        def attempt():
            with socket.create_connection(address, timeout=2):
                return f"connected to {address}"

        return attempt

    part("the host's loopback", connected(("127.0.0.1", settings["port"])))

    def interfaces():
        names = [name for _, name in socket.if_nameindex() if name != "lo"]
        if not names:
            raise Contained("only lo")
        return str(names)

    # A host without any network is conceivable.
    part("interfaces but lo", interfaces, optional=True)

    def routed():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect(("192.0.2.1", 9))
        return "there is a route"

    part("a route out", routed, optional=True)


# 25
@probe
def terminals(settings):
    def with_terminal(action):
        def attempt():
            # TIOCSTI works on the controlling terminal: get one.
            controller, terminal = os.openpty()
            os.setsid()
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
            return action(controller, terminal)

        return attempt

    def pushed(number):
        def attempt(controller, terminal):
            character = ctypes.create_string_buffer(b"!")
            call("ioctl", terminal, ctypes.c_ulong(number), character)
            return "a character was typed"

        return attempt

    part("TIOCSTI", with_terminal(pushed(0x5412)))
    part("TIOCSTI by high bits", with_terminal(pushed(0x5412 | 1 << 32)))  # CVE-2019-10063

    def carried_out(number):
        def attempt(controller, terminal):
            return reached("ioctl", terminal, number, ctypes.create_string_buffer(b"\x02" + bytes(63)))

        return attempt

    for name, number in {"TIOCLINUX": 0x541C, "TIOCCONS": 0x541D, "TIOCSETD": 0x5423, "TIOCVHANGUP": 0x5437}.items():
        part(name, with_terminal(carried_out(number)))

    def names():
        found = [name for name in os.listdir("/dev") if name.startswith(("tty", "vcs", "console", "hvc"))]
        found = [name for name in found if name != "tty"]
        if not found:
            raise Contained("none")
        return str(sorted(found)[:4])

    part("consoles", names, optional=True)
    part("the host's terminal", lambda: openable("/dev/tty", os.O_RDWR), optional=True)

    def pts():
        names = os.listdir("/dev/pts")
        if settings["pts"] not in names:
            raise Contained(str(names))
        return f"the host's terminal {settings['pts']}"

    part("the host's pseudo-terminals", pts)


# 28
@probe
def devices(settings):
    def node(kind, major, minor, use):
        def attempt():
            folder = tempfile.mkdtemp(dir=settings.get("folder") or "/tmp")
            path = os.path.join(folder, "node")
            try:
                os.mknod(path, kind | 0o600, os.makedev(major, minor))
                return openable(path, os.O_RDONLY) if use else "made"
            finally:
                ignoring(os.unlink, path)
                ignoring(os.rmdir, folder)

        return attempt

    part("mknod 8:0", node(stat.S_IFBLK, 8, 0, False))
    part("mknod of memory", node(stat.S_IFCHR, 1, 1, False))
    part("mknod of kernel messages, and read", node(stat.S_IFCHR, 1, 11, True))
    part("mknod of the root disk, and read", node(stat.S_IFBLK, *settings["disk"], True), optional=True)
    for name in ("mem", "kmem", "port", "kvm", "fuse", "net/tun", "loop-control", "loop0", "cpu/0/msr", "kmsg", "vda", "sda",
                 "vsock", "hwrng", "snapshot", "autofs", "btrfs-control", "vhost-net", "uinput", "input/event0", "rtc0",
                 "mapper/control", "console", "tty0", "tty1", "vcs", "ttyS0", "dri/card0", "watchdog", "cpu_dma_latency",
                 "mqueue", "hugepages"):
        flags = os.O_RDONLY
        part(f"/dev/{name}", lambda name=name, flags=flags: openable(f"/dev/{name}", flags), optional=name != "kmsg")

    def write_dev():
        path = "/dev/sloplet-probe"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
        os.unlink(path)
        return "made a file in /dev"

    part("a file in /dev", write_dev)


# 29 and 30
@probe
def host_sockets(settings):
    def connect(address, kind=socket.SOCK_STREAM):
        def attempt():
            with socket.socket(socket.AF_UNIX, kind) as sock:
                sock.settimeout(2)
                sock.connect(address)
                return "connected"

        return attempt

    part("abstract", connect("\0" + settings["abstract"]))
    part("by path", connect(settings["socket"]))

    def sweep():
        found = []
        # The host is large: there, only where the test's own socket is.
        for top, folders, files in os.walk("/" if settings["inside"] else os.path.dirname(settings["socket"])):
            folders[:] = [name for name in folders if os.path.join(top, name) not in ("/proc", "/sys")]
            if top.count("/") > 6:
                folders[:] = []
            for name in files:
                path = os.path.join(top, name)
                try:
                    if stat.S_ISSOCK(os.lstat(path).st_mode):
                        found.append(path)
                except OSError:
                    continue
        if not found:
            raise Contained("no socket anywhere")
        return str(found[:5])

    part("any", sweep)
    part("abstract names in /proc/net/unix", lambda: seen_in("/proc/net/unix", settings["abstract"]))


# 31
@probe
def shared_memory(settings):
    part("System V", lambda: f"segment {call('shmget', settings['shm_key'], 0, 0)}")
    part("listed", lambda: seen_in("/proc/sysvipc/shm", str(settings["shm_key"])))
    part("/dev/shm", lambda: nonempty("/dev/shm/" + settings["shm_file"]))
    part("POSIX queue", lambda: f"queue {call('mq_open', settings['queue'].encode(), os.O_RDONLY, None, None)}")
