"""A small S3 server over HTTP for the clients of Arrow and Lance: ranges, listings, multipart and conditional writes.

moto cannot be installed with this project's pins: botocore needs python-dateutil below 3.
"""

import hashlib
import io
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

DATE = "Mon, 23 Nov 2026 00:00:00 GMT"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a response is two writes, and the second would wait 40 ms for the client's ACK

    def log_message(self, *_):
        pass

    def answer(self, status=200, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def xml(self, name, inner, status=200):
        self.answer(status, f'<?xml version="1.0"?><{name}>{inner}</{name}>'.encode(), Content_Type="application/xml")

    def refuse(self, status, code):
        self.xml("Error", f"<Code>{code}</Code><Message>{code}</Message>", status)

    def asked(self):
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        self.server.requests.append(self.command)
        return bucket, key, {name: value[-1] for name, value in parse_qs(parts.query, keep_blank_values=True).items()}

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            raw = self._chunks(self.rfile)
        else:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        streaming = self.headers.get("x-amz-content-sha256", "").startswith("STREAMING")
        if streaming or "aws-chunked" in self.headers.get("Content-Encoding", ""):
            raw = self._chunks(io.BytesIO(raw))
        return raw

    @staticmethod
    def _chunks(stream):
        out = b""
        while size := int(stream.readline().split(b";")[0].strip() or b"0", 16):
            out += stream.read(size)
            stream.readline()
        while stream.readline().strip():
            pass
        return out

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        bucket, key, query = self.asked()
        objects = self.server.objects
        if bucket not in objects:
            return self.refuse(404, "NoSuchBucket")
        if not key:
            return self.listing(bucket, query) if self.command == "GET" else self.answer(200)
        content = objects[bucket].get(key)
        if content is None:
            return self.refuse(404, "NoSuchKey")
        about = {"ETag": f'"{hashlib.md5(content).hexdigest()}"', "Last_Modified": DATE, "Accept_Ranges": "bytes"}
        span = self.headers.get("Range")
        if not span:
            return self.answer(200, content, **about)
        first, _, last = span.split("=")[1].partition("-")
        start = int(first) if first else len(content) - int(last)
        stop = min(int(last) + 1 if first and last else len(content), len(content))
        about["Content_Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return self.answer(206, content[start:stop], **about)

    def listing(self, bucket, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after") or ""
        keys, folders = [], []
        for key in sorted(self.server.objects[bucket]):
            if key.startswith(prefix) and key > after:
                rest = key[len(prefix) :]
                if delimiter and delimiter in rest:
                    folder = prefix + rest.split(delimiter)[0] + delimiter
                    if folder not in folders:
                        folders.append(folder)
                else:
                    keys.append(key)
        most = min(int(query.get("max-keys", 1000)), 1000)
        cut = len(keys) > most
        keys = keys[:most]
        facts = (
            '<LastModified>2026-11-23T00:00:00.000Z</LastModified><ETag>"x"</ETag><StorageClass>STANDARD</StorageClass>'
        )
        sizes = {key: len(self.server.objects[bucket][key]) for key in keys}
        entries = (f"<Key>{escape(key)}</Key>{facts}<Size>{size}</Size>" for key, size in sizes.items())
        inner = "".join(f"<Contents>{entry}</Contents>" for entry in entries)
        inner += "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders)
        more = f"<NextContinuationToken>{escape(keys[-1])}</NextContinuationToken>" if cut else ""
        self.xml(
            "ListBucketResult",
            f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(keys) + len(folders)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(cut).lower()}</IsTruncated>{more}{inner}",
        )

    def do_PUT(self):
        bucket, key, query = self.asked()
        content = self.body()
        objects = self.server.objects
        if not key:
            objects.setdefault(bucket, {})
            return self.answer(200)
        tag = {"ETag": f'"{hashlib.md5(content).hexdigest()}"'}
        if "uploadId" in query:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = content
            return self.answer(200, **tag)
        with self.server.lock:
            if self.headers.get("If-None-Match") == "*" and key in objects[bucket]:
                return self.refuse(412, "PreconditionFailed")
            if source := self.headers.get("x-amz-copy-source"):
                other, _, name = unquote(source).lstrip("/").partition("/")
                objects[bucket][key] = objects[other][name]
                return self.xml("CopyObjectResult", '<ETag>"x"</ETag>')
            objects[bucket][key] = content
        return self.answer(200, **tag)

    def do_POST(self):
        bucket, key, query = self.asked()
        content = self.body()
        if "delete" in query:
            for one in ElementTree.fromstring(content).iter():
                if one.tag.endswith("Key"):
                    self.server.objects[bucket].pop(one.text, None)
            return self.xml("DeleteResult", "")
        if "uploads" in query:
            number = f"u{len(self.server.uploads)}"
            self.server.uploads[number] = {}
            return self.xml("InitiateMultipartUploadResult", f"<UploadId>{number}</UploadId>")
        parts = self.server.uploads.pop(query["uploadId"])
        self.server.objects[bucket][key] = b"".join(parts[k] for k in sorted(parts))
        return self.xml("CompleteMultipartUploadResult", f'<Key>{escape(key)}</Key><ETag>"x"</ETag>')

    def do_DELETE(self):
        bucket, key, query = self.asked()
        if "uploadId" in query:
            self.server.uploads.pop(query["uploadId"], None)
        else:
            self.server.objects[bucket].pop(key, None)
        self.answer(204)


@contextmanager
def s3_server(bucket: str = "bucket"):
    """Serve an empty bucket; yield the server, whose ``objects[bucket]`` are the contents by key, and its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.objects, server.uploads, server.requests, server.lock = {bucket: {}}, {}, [], threading.Lock()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
