"""A gateway in front of a stand-in for each test. GATEWAY_FORWARD is the program, GATEWAY_CERTIFICATES a folder with the
stand-in's certificate."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from standin import StandIn

VALUE = "sk-real-key-0123456789abcdef"


class Gate:
    """A gateway as one host, with what it told and what went out behind it."""

    def __init__(self, folder, host, budget):
        certificates = Path(os.environ["GATEWAY_CERTIFICATES"])
        self.folder = folder
        self.standin = StandIn(certificates / "chain.pem", certificates / "key.pem")
        address = "%s:%d" % self.standin.server_address
        config = {
            "upstream": address,
            "roots": str(certificates / "roots.pem"),
            "folder": str(folder),
            "host": host,
            "port": 443,
            "secrets": [f"API_KEY=env:GATEWAY_TEST_VALUE@{host}"],
            "budget": budget,
        }
        path = folder / "config.json"
        path.write_text(json.dumps(config))
        environment = {**os.environ, "GATEWAY_TEST_VALUE": VALUE}
        command = [os.environ["GATEWAY_FORWARD"], str(path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        where, port = self.process.stdout.readline().strip().rsplit(":", 1)
        self.address = (where, int(port))
        [(_, self.placeholder)] = json.loads(self.process.stdout.readline())

    @property
    def kept(self):
        return self.standin.kept

    def calls(self, count):
        """The calls that were told, once there are so many: a call is told at its answer's end."""
        for _ in range(3000):
            lines = (self.folder / "events.jsonl").read_text().splitlines()
            events = [json.loads(line) for line in lines]
            calls = [event for event in events if event["event"] == "llm_call"]
            if len(calls) >= count:
                return calls
            time.sleep(0.01)
        raise AssertionError(f"{len(calls)} calls were told, not {count}")

    def events(self):
        return (self.folder / "events.jsonl").read_text()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.standin.shutdown()


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """Makes a gateway; this process then finds the host there, and trusts it by the variable that a sandbox has."""
    gates = {}
    real = socket.getaddrinfo

    def resolved(host, port, *rest, **more):
        found = gates.get(host.decode() if isinstance(host, bytes) else host)
        return real(*found.address, *rest, **more) if found else real(host, port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)

    def make(host, budget):
        made = Gate(tmp_path, host, budget)
        gates[host] = made
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        return made

    yield make
    for made in gates.values():
        made.end()
