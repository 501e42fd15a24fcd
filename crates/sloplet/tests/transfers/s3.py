"""A small S3 on loopback that checks every signature, digest and expiry; `s3.py FOLDER` prints its port.

Files in FOLDER say what goes wrong next: `cut-put` and `cut-get` hold how many requests are cut off half-way, `slow` how long
a part takes, `change` of which object there is another version when the next `cut-get` has happened;
with `blind` nobody looks at `If-Match`. `log` has a line for each request that was carried out.
"""

import base64, datetime, hashlib, hmac, os, re, sys, threading, time, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOLDER, KEY, SECRET = sys.argv[1], "test-key", "test-secret-that-nobody-may-see"
LOCK = threading.Lock()
NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def place(name):
    return os.path.join(FOLDER, urllib.parse.quote(name, safe=""))


def take(name):
    with LOCK:
        path = os.path.join(FOLDER, name)
        left = int(open(path).read()) if os.path.exists(path) else 0
        if left:
            open(path, "w").write(str(left - 1))
        return left > 0


class Refused(Exception):
    def __init__(self, status, code):
        self.status, self.code = status, code


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def check(self, path, query):
        """Signature version 4 in the query."""
        pairs = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        try:
            scope, date = pairs["X-Amz-Credential"].split("/", 1), pairs["X-Amz-Date"]
            signed, signature = pairs["X-Amz-SignedHeaders"].split(";"), pairs["X-Amz-Signature"]
        except KeyError:
            raise Refused(403, "AccessDenied")
        if scope[0] != KEY:
            raise Refused(403, "InvalidAccessKeyId")
        rest = "&".join(sorted(p for p in query.split("&") if not p.startswith("X-Amz-Signature=")))
        headers = "".join(f"{name}:{(self.headers[name] or '').strip()}\n" for name in signed)
        request = "\n".join([self.command, path, rest, headers, ";".join(signed), "UNSIGNED-PAYLOAD"])
        text = "\n".join(["AWS4-HMAC-SHA256", date, scope[1], hashlib.sha256(request.encode()).hexdigest()])
        key = ("AWS4" + SECRET).encode()
        for part in scope[1].split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        if not hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), signature) or "host" not in signed:
            raise Refused(403, "SignatureDoesNotMatch")
        made = datetime.datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc).timestamp()
        if time.time() > made + int(pairs["X-Amz-Expires"]):
            raise Refused(403, "AccessDenied")
        return pairs

    def body(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length and self.command == "PUT" and take("cut-put"):
            self.rfile.read(length // 2)
            raise ConnectionError
        data = self.rfile.read(length)
        if len(data) != length:
            raise ConnectionError
        wanted = self.headers.get("Content-MD5")
        if wanted and wanted != base64.b64encode(hashlib.md5(data).digest()).decode():
            raise Refused(400, "BadDigest")
        return data

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", len(body))
        self.end_headers()
        self.wfile.write(body)

    def note(self, text):
        with LOCK, open(os.path.join(FOLDER, "log"), "a") as log:
            log.write(text + "\n")

    def handle_any(self):
        path, _, query = self.path.partition("?")
        try:
            pairs = self.check(path, query)
            bucket, _, key = urllib.parse.unquote(path)[1:].partition("/")
            if bucket != "bucket":
                raise Refused(404, "NoSuchBucket")
            getattr(self, "on_" + self.command.lower())(key, pairs)
        except Refused as refused:
            self.close_connection = True
            text = f"<Error><Code>{refused.code}</Code><Message>no</Message></Error>".encode()
            self.answer(refused.status, b"" if self.command == "HEAD" else text)
        except (ConnectionError, BrokenPipeError):
            self.close_connection = True
            self.connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    def parts(self, upload):
        if not os.path.isdir(place(upload)):
            raise Refused(404, "NoSuchUpload")
        return sorted((int(name) for name in os.listdir(place(upload))))

    def part(self, upload, number):
        return open(os.path.join(place(upload), str(number)), "rb").read()

    def on_put(self, key, pairs):
        data = self.body()
        etag = hashlib.md5(data).hexdigest()
        if "uploadId" in pairs:
            self.parts(pairs["uploadId"])
            slow = os.path.join(FOLDER, "slow")
            if os.path.exists(slow):
                time.sleep(float(open(slow).read()))
            open(os.path.join(place(pairs["uploadId"]), pairs["partNumber"]), "wb").write(data)
            self.note(f"part {key} {pairs['partNumber']} {len(data)}")
        else:
            open(place("object " + key), "wb").write(data)
            open(place("etag " + key), "w").write(etag)
            self.note(f"put {key} {len(data)}")
        self.answer(200, ETag=f'"{etag}"')

    def on_post(self, key, pairs):
        body = self.body().decode()
        if "uploads" in pairs:
            upload = "upload " + os.urandom(8).hex()
            os.mkdir(place(upload))
            self.note(f"begin {key}")
            text = f"<InitiateMultipartUploadResult {NAMESPACE}><Bucket>bucket</Bucket><Key>{key}</Key><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return self.answer(200, text.encode())
        upload, there = pairs["uploadId"], self.parts(pairs["uploadId"])
        listed = re.findall(r'<ETag>(?:"|&quot;|&#34;)?([0-9a-f]+)(?:"|&quot;|&#34;)?</ETag>\s*<PartNumber>(\d+)', body)
        digests = b""
        with open(place("object " + key) + ".new", "wb") as whole:
            for etag, number in listed:
                data = self.part(upload, number) if int(number) in there else b""
                if hashlib.md5(data).hexdigest() != etag:
                    raise Refused(400, "InvalidPart")
                if len(data) < 5 << 20 and int(number) != len(listed):
                    raise Refused(400, "EntityTooSmall")
                digests += bytes.fromhex(etag)
                whole.write(data)
        os.rename(place("object " + key) + ".new", place("object " + key))
        etag = f"{hashlib.md5(digests).hexdigest()}-{len(listed)}"
        open(place("etag " + key), "w").write(etag)
        self.drop(upload)
        self.note(f"complete {key} {len(listed)}")
        text = f'<CompleteMultipartUploadResult {NAMESPACE}><Location>x</Location><Bucket>bucket</Bucket><Key>{key}</Key><ETag>"{etag}"</ETag></CompleteMultipartUploadResult>'
        self.answer(200, text.encode())

    def drop(self, upload):
        for number in self.parts(upload):
            os.unlink(os.path.join(place(upload), str(number)))
        os.rmdir(place(upload))

    def on_delete(self, key, pairs):
        if "uploadId" in pairs:
            self.drop(pairs["uploadId"])
            self.note(f"abort {key}")
        elif os.path.exists(place("object " + key)):
            os.unlink(place("object " + key))
            self.note(f"delete {key}")
        self.answer(204)

    def on_head(self, key, pairs):
        self.on_get(key, pairs)

    def on_get(self, key, pairs):
        if "uploadId" in pairs:
            rows = ""
            for number in self.parts(pairs["uploadId"]):
                data = self.part(pairs["uploadId"], number)
                rows += f'<Part><PartNumber>{number}</PartNumber><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"{hashlib.md5(data).hexdigest()}"</ETag><Size>{len(data)}</Size></Part>'
            text = f"<ListPartsResult {NAMESPACE}><Bucket>bucket</Bucket><Key>{key}</Key><UploadId>{pairs['uploadId']}</UploadId><PartNumberMarker>0</PartNumberMarker><NextPartNumberMarker>0</NextPartNumberMarker><MaxParts>1000</MaxParts><IsTruncated>false</IsTruncated>{rows}</ListPartsResult>"
            return self.answer(200, text.encode())
        if not os.path.exists(place("object " + key)):
            raise Refused(404, "NoSuchKey")
        data, etag = open(place("object " + key), "rb").read(), '"' + open(place("etag " + key)).read() + '"'
        if self.headers.get("If-Match") not in (None, etag) and not os.path.exists(os.path.join(FOLDER, "blind")):
            raise Refused(412, "PreconditionFailed")
        first = int((self.headers.get("Range") or "bytes=0-")[6:].rstrip("-"))
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("ETag", etag)
        self.send_header("Content-Length", len(data) - first)
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        self.note(f"get {key} {first}")
        rest = data[first:]
        if take("cut-get"):
            self.wfile.write(rest[: len(rest) // 2])
            if os.path.exists(os.path.join(FOLDER, "change")):
                changed = open(os.path.join(FOLDER, "change")).read()
                open(place("etag " + changed), "w").write("0" * 32)
            raise ConnectionError
        self.wfile.write(rest)


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
