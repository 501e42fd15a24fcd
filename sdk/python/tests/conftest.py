"""A server is named by the environment (SLOPLET_RUN or SLOPLET_URL); the package is installed or on the path."""

import pathlib
import socket
import subprocess
import sys
import threading
import time

import pytest
import sloplet
from sloplet import AsyncSandbox, Client, Sandbox


@pytest.fixture(scope="session", autouse=True)
def type_check():
    """Checks the types of the package while the tests run: it takes the longest."""
    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", "-p", "sloplet"]
    place = pathlib.Path(sloplet.__file__).parent.parent
    with subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as checking:
        yield checking
        checking.kill()


@pytest.fixture(scope="session")
def client():
    return Client.default()


@pytest.fixture(scope="session")
def sandbox():
    """One that tests leave as usable as they found it."""
    with Sandbox.create(image="python", ttl="10m") as made:
        yield made


@pytest.fixture
def own():
    """One that a test may break."""
    with Sandbox.create(image="python", ttl="5m") as made:
        yield made


@pytest.fixture
def waiting(sandbox):
    """The shared one, for use with `await`."""

    async def get():
        return await AsyncSandbox.get_from_id(sandbox.id)

    return get


class Cutter:
    """A relay to the server that cuts a connection after so many bytes from it, or towards it."""

    def __init__(self, path):
        self.path, self.down, self.up, self.cut, self.opened = path, [], [], 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self.path)
            self.opened += 1
            pair = (near, far)
            for source, target, limits in ((near, far, self.up), (far, near, self.down)):
                limit = limits.pop(0) if limits else None
                threading.Thread(target=self._relay, args=(source, target, limit, pair), daemon=True).start()

    def _relay(self, source, target, left, pair):
        try:
            while data := source.recv(65536):
                if left is not None:
                    data, left = data[:left], left - len(data)
                target.sendall(data)
                if left is not None and left <= 0:
                    self.cut += 1
                    break
        except OSError:
            pass
        for one in pair:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()


@pytest.fixture
def cutter(client):
    relay = Cutter(client.place.socket)
    yield relay
    relay.close()


@pytest.fixture(scope="session")
def admin_key(client):
    """A key, for those who come over TCP."""
    made = client.ask("POST", "/keys", json={"label": "sdk", "scope": "admin"})
    yield made["secret"]
    client.ask("DELETE", f"/keys/{made['id']}")


@pytest.fixture
def eventually():
    """Waits until something is true."""

    def wait(condition, seconds=30):
        ends = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < ends, "it never became true"
            time.sleep(0.02)

    return wait
