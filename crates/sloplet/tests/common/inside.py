"""For programs of the tests that try to reach something, inside of a sandbox and outside. Outcomes are words:

ok: somebody answered · no name: nobody knows the name · denied: an HTTP refusal of sloplet's · refused: cut or refused at once
· unreachable: there is no way · hangs: nothing happened for a long time
"""

import errno
import json
import os
import socket
import ssl
import sys

PATIENCE = 30
CA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ca.pem")
WEB = {80, 443, 8000, 8001, 8080, 8443}


def outcome(error):
    if isinstance(error, socket.gaierror):
        return "no name"
    if isinstance(error, TimeoutError):
        return "hangs"
    if isinstance(error, ssl.SSLError):
        return "refused" if "ALERT" in str(error).upper() or "EOF" in str(error).upper() else f"tls: {error}"
    if isinstance(error, (ConnectionResetError, ConnectionRefusedError, BrokenPipeError)):
        return "refused"
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT):
        return "unreachable"
    return repr(error)


def connect(host, port, family=0):
    """A connection to the first address of a name."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0]
    stream = socket.socket(family, kind, protocol)
    stream.settimeout(PATIENCE)
    stream.connect(address)
    return stream


def encrypted(stream, name):
    context = ssl.create_default_context(cafile=CA)
    if name is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(stream, server_hostname=name)


def everything(stream):
    said = b""
    while more := stream.recv(65536):
        said += more
    return said


def request(stream, host, path="/"):
    stream.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    said = everything(stream).decode("latin-1")
    if not said:
        return "refused"
    if said.split(" ")[1] == "200":
        return "ok"
    return "denied" if "sloplet" in said and said.split(" ")[1] == "403" else said.split("\r\n")[0]


def reach(host, port, family=0):
    """Speaks what the port is for, and tells what came of it."""
    try:
        with connect(host, port, family) as stream:
            if port in (443, 8443):
                stream = encrypted(stream, host)
            if port in WEB:
                return request(stream, f"[{host}]" if ":" in host else host)
            if port in (7, 53, 853):
                stream.sendall(b"ping")
            return "ok" if stream.recv(100) else "refused"
    except OSError as error:
        return outcome(error)


def attempt(function, *words):
    try:
        return function(*words)
    except OSError as error:
        return outcome(error)


def exchange(host, port, *pieces):
    """Sends bytes as they are; what comes back until the other end closes or resets."""
    said = b""
    try:
        with connect(host, port) as stream:
            for piece in pieces:
                stream.sendall(piece.encode("latin-1") if isinstance(piece, str) else piece)
            while more := stream.recv(65536):
                said += more
    except OSError as error:
        return said.decode("latin-1") or outcome(error)
    return said.decode("latin-1") or "refused"


def datagram(host, port, what=b"x"):
    """Sends one and waits for an answer."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE)
        try:
            sock.connect((host, port))
            sock.send(what)
            sock.recv(1500)
            return "ok"
        except OSError as error:
            return outcome(error)


def show(value):
    print(json.dumps(value))


if __name__ == "__main__":
    show([reach(host, port) for host, port in json.loads(sys.argv[1])])
