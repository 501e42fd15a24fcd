"""Plain requests to a sandbox's own API."""

import base64
import http.client
import json
import os
import struct
import time
from urllib.parse import urlencode, urlsplit


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def messages(self):
        """The messages of a stream, each with its flags."""
        found, rest = [], self.body
        while rest:
            flags, length = struct.unpack(">BI", rest[:5])
            found.append((flags, json.loads(rest[5 : 5 + length])))
            rest = rest[5 + length :]
        return found

    def error(self):
        """The code of the error, of a single answer or of a stream."""
        if self.headers.get("content-type", "").startswith("application/connect"):
            flags, last = self.messages()[-1]
            assert flags == 2, last
            return last.get("error", {}).get("code")
        return self.json().get("code")


def envelope(message, flags=0):
    content = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">BI", flags, len(content)) + content


def eventually(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def basic(user):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode()}


class Wire:
    def __init__(self, sandbox):
        self.address = urlsplit(os.environ["E2B_SANDBOX_URL"])
        self.headers = {
            "E2b-Sandbox-Id": sandbox.sandbox_id,
            "E2b-Sandbox-Port": "49983",
            "X-Access-Token": sandbox._envd_access_token,
        }

    def connect(self):
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        return kind(self.address.hostname, self.address.port, timeout=30)

    def ask(self, method, path, body=None, headers=None, token=True, query=None):
        sent = dict(self.headers)
        if not token:
            del sent["X-Access-Token"]
        sent.update(headers or {})
        if query:
            path += "?" + urlencode(query)
        connection = self.connect()
        try:
            connection.request(method, path, body=body, headers=sent)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    def call(self, method, message, headers=None):
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.ask("POST", "/" + method, body, {"Content-Type": "application/json", **(headers or {})})

    def stream(self, method, body, headers=None):
        body = body if isinstance(body, bytes) else envelope(body)
        return self.ask("POST", "/" + method, body, {"Content-Type": "application/connect+json", **(headers or {})})
