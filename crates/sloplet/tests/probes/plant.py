"""What the probes look for on the host: a process, sockets, a terminal, shared memory. Gone when standard input ends.

    plant.py MARKER FOLDER SECRET

Prints one JSON object for the settings of the probes.
"""

import ctypes
import json
import os
import socket
import sys

from attempts import call


def main():
    marker, folder, secret = sys.argv[1:4]
    key = 0x51000000 | os.getpid()
    segment = call("shmget", key, 4096, 0o1000 | 0o666)
    shm_file = os.path.join("/dev/shm", marker)
    with open(shm_file, "w") as file:
        file.write(secret)
    os.chmod(shm_file, 0o644)
    queue = call("mq_open", marker.encode(), os.O_CREAT | os.O_RDWR, 0o666, None)

    tcp = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0" + marker)
    abstract.listen()
    path = os.path.join(folder, marker + ".socket")
    by_path = socket.socket(socket.AF_UNIX)
    by_path.bind(path)
    by_path.listen()
    os.chmod(path, 0o666)
    controller, terminal = os.openpty()

    memory = ctypes.create_string_buffer(secret.encode(), 64)
    print(json.dumps({
        "victim": os.getpid(), "host_process": os.getpid(), "marker": marker, "address": ctypes.addressof(memory),
        "shm_key": key, "shm_file": marker, "queue": marker, "port": tcp.getsockname()[1], "abstract": marker,
        "socket": path, "pts": os.path.basename(os.ttyname(terminal)),
    }), flush=True)
    try:
        sys.stdin.read()
    finally:
        ctypes.CDLL(None).shmctl(segment, 0, None)
        os.unlink(shm_file)
        os.unlink(path)
        os.close(queue)
        ctypes.CDLL(None).mq_unlink(("/" + marker).encode())


main()
