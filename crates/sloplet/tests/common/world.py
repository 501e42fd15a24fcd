"""The outside world of a test: servers on every address of their own network namespace. Whatever reaches them is kept.

world.py CONFIG: a JSON file with `control` (a socket to ask what was seen), `certificate` and `key`, `site` (a folder that is
served), `standin` (the folder of the stand-in for LLM APIs), `addresses` (of this namespace) and `names` (what the name server
answers; `*.` for suffixes).
"""

import json
import os
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading
from urllib.parse import parse_qs, urlsplit

with open(sys.argv[1]) as file:
    config = json.load(file)
sys.path.insert(0, config["standin"])
sys.dont_write_bytecode = True

import standin  # noqa: E402

seen, seen_lock = [], threading.Lock()
names = config["names"]


def keep(kind, **more):
    with seen_lock:
        seen.append({"kind": kind, **more})


def plain(address):
    return address.removeprefix("::ffff:")


class Calls:
    """What the stand-in was sent."""

    def append(self, call):
        path, headers, body = call
        keep("call", path=path, headers=headers, body=body)


class Web(standin.Handler):
    """Tells what it was asked; /headers tells with which headers, /redirect?to= redirects, /bytes/N is long, /site/ is a folder, POST /v1/ is an LLM's API."""

    timeout = 120

    def setup(self):
        super().setup()
        local = self.request.getsockname()
        self.local = [plain(local[0]), local[1]]
        keep("tcp", to=self.local)

    def git(self):
        """Repositories in `git` of the site, for who has what is in `git-auth`: git's own server behind it."""
        with open(os.path.join(config["site"], "git-auth")) as file:
            if self.headers.get("Authorization") != file.read().strip():
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                return self.end_headers()
        body = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size + 2)[:-2]
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url, kind = urlsplit(self.path), self.headers.get("Content-Type", "")
        said = {name: self.headers.get(header, "") for name, header in
                (("HTTP_CONTENT_ENCODING", "Content-Encoding"), ("GIT_PROTOCOL", "Git-Protocol"))}
        done = subprocess.run(["git", "http-backend"], input=body, stdout=subprocess.PIPE, check=True, env={
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nowhere", "GIT_HTTP_EXPORT_ALL": "1", "REMOTE_USER": "somebody",
            "GIT_PROJECT_ROOT": os.path.join(config["site"], "git"), "PATH_INFO": url.path.removeprefix("/git"),
            "QUERY_STRING": url.query, "REQUEST_METHOD": self.command, "CONTENT_TYPE": kind, "CONTENT_LENGTH": str(len(body)),
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*", **said})
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        if self.path.startswith("/git/"):
            return self.git()
        keep("http", to=self.local, host=self.headers.get("Host"), path=self.path, headers=dict(self.headers))
        url = urlsplit(self.path)
        if url.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", parse_qs(url.query)["to"][0])
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if url.path == "/headers":
            return self.send(json.dumps(dict(self.headers)).encode())
        if url.path.startswith("/bytes/"):
            return self.send(b"x" * int(url.path.split("/")[2]))
        if url.path.startswith("/site/"):
            return self.file(os.path.join(config["site"], url.path.removeprefix("/site/")))
        self.send(json.dumps({"host": self.headers.get("Host"), "path": self.path, "to": self.local}).encode())

    def do_POST(self):
        if self.path.startswith("/git/"):
            return self.git()
        if self.path.startswith("/v1/"):
            return super().do_POST()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        keep("http", to=self.local, host=self.headers.get("Host"), path=self.path, headers=dict(self.headers),
             body=body[:4096].decode("latin-1"), bytes=len(body))
        self.send(b"%d" % len(body))

    def file(self, path):
        if os.path.isdir(path):
            links = "".join(f'<a href="{name}">{name}</a>\n' for name in sorted(os.listdir(path)))
            return self.send(links.encode(), "text/html")
        try:
            with open(path, "rb") as file:
                self.send(file.read())
        except OSError:
            self.send(b"not found", status=404)

    def send(self, body, kind="application/octet-stream", status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Echo(socketserver.BaseRequestHandler):
    """Says what it is told."""

    banner = b""

    def handle(self):
        local = self.request.getsockname()
        keep("tcp", to=[plain(local[0]), local[1]])
        self.request.settimeout(120)
        try:
            self.request.sendall(self.banner)
            while data := self.request.recv(65536):
                self.request.sendall(data)
        except OSError:
            pass


class Banner(Echo):
    """Speaks first, as mail and shell servers do."""

    banner = b"220 hello\r\n"


class Listener(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6
    allow_reuse_address = daemon_threads = True
    request_queue_size = 1024
    block_on_close = False
    kept = Calls()

    def __init__(self, port, handler, context=None):
        super().__init__(("::", port), handler, bind_and_activate=False)
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.server_bind()
        self.server_activate()
        if context:
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass


def datagrams(port, reply):
    """Answers datagrams, from the address that they were sent to."""
    for address in config["addresses"]:
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((address, port))
        threading.Thread(target=converse, args=(sock, port, reply), daemon=True).start()


def converse(sock, port, reply):
    while True:
        data, peer = sock.recvfrom(65536)
        sock.sendto(reply(port, data), peer)


def pong(port, data):
    keep("udp", port=port, data=data[:100].hex())
    return b"pong"


def found(name):
    name = name.lower().rstrip(".")
    while True:
        if name in names:
            return names[name]
        name = name.removeprefix("*.")
        if "." not in name:
            return None
        name = "*." + name.split(".", 1)[1]


def answer(query):
    """An answer to one question, as a name server for everything gives it."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("latin-1"))
        at += 1 + query[at]
    name, kind = ".".join(labels), struct.unpack("!H", query[at + 1 : at + 3])[0]
    keep("dns", name=name.lower(), type=kind)
    addresses, records = found(name), []
    for address in addresses or []:
        family, wanted = (socket.AF_INET6, 28) if ":" in address else (socket.AF_INET, 1)
        if kind == wanted:
            data = socket.inet_pton(family, address)
            records.append(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(data)) + data)
    flags = 0x8180 if addresses is not None else 0x8183
    return query[:2] + struct.pack("!HHHHH", flags, 1, len(records), 0, 0) + query[12 : at + 5] + b"".join(records)


def named(_, query):
    try:
        return answer(query)
    except (IndexError, struct.error):
        keep("dns", name="(malformed)", type=0)
        return b""


class Control(socketserver.StreamRequestHandler):
    """One question and its answer, each a line of JSON."""

    def handle(self):
        asked = json.loads(self.rfile.readline() or "{}")
        with seen_lock:
            if "name" in asked:
                names[asked["name"]] = asked["addresses"]
            told = list(seen)
            if asked.get("forget"):
                seen.clear()
        try:
            self.wfile.write(json.dumps(told).encode() + b"\n")
        except OSError:
            pass  # whoever only looked whether there is somebody


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(config["certificate"], config["key"])
for port in (80, 8000, 8001, 8080):
    Listener(port, Web)
for port in (443, 8443):
    Listener(port, Web, context)
for port in (22, 25, 5432, 6379):
    Listener(port, Banner)
for port in (7, 53, 853):
    Listener(port, Echo)
for port in (443, 5353, 9999):
    datagrams(port, pong)
datagrams(53, named)
with socketserver.ThreadingUnixStreamServer(config["control"] + ".new", Control) as control:
    os.chmod(config["control"] + ".new", 0o600)
    os.rename(config["control"] + ".new", config["control"])
    control.serve_forever()
