"""A server with the parts of the interfaces of OpenAI, Gemini, Voyage and Cohere that encode texts, and with faults.

It refuses what those services document as wrong. Gemini is asked by its own interface of OpenAI's kind; its official
library uses another.
"""

import base64
import json
import struct
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "sk-secret-0123456789"


def vector(text, dim=4):
    """Return the unit vector that the server gives for a text."""
    raw = [sum(text.encode()) % 97 + 1, len(text) + 1, text.count("a") + 1, *range(2, dim - 1)]
    norm = sum(x * x for x in raw) ** 0.5
    return [x / norm for x in raw]


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.faults, self.change, self.lock = [], [], None, threading.Lock()
        self.service, self.headers, self.fails_at = "openai", [], None


#: What a service allows: most texts, the allowed fields besides the model and texts, and those that are needed.
RULES = {
    "openai": (2048, {"input", "encoding_format", "dimensions", "user"}, set()),
    "gemini": (100, {"input", "encoding_format", "dimensions"}, set()),
    "voyage": (
        1000,
        {"input", "input_type", "truncation", "output_dimension", "output_dtype", "encoding_format"},
        set(),
    ),
    "cohere": (96, {"texts", "input_type", "embedding_types", "truncate", "max_tokens"}, {"input_type"}),
}


def wrong(service, path, body):
    """Return what the service would refuse, if anything."""
    most, allowed, needed = RULES[service]
    texts = body.get("texts" if service == "cohere" else "input")
    if path != ("/v2/embed" if service == "cohere" else "/v1/embeddings"):
        return f"no such path: {path}"
    if not isinstance(texts, list) or len(texts) > most or set(body) - allowed - {"model"} or not needed <= set(body):
        return f"invalid request: {sorted(body)}, {len(texts or [])} texts"
    if service == "voyage" and body.get("input_type") not in (None, "query", "document"):
        return "invalid input_type"
    return ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second of two waits for an acknowledgment

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        service = self.server.service
        texts = body.get("texts" if service == "cohere" else "input", [])
        with self.server.lock:
            self.server.requests.append(body)
            self.server.headers.append({**self.headers, "path": self.path})
            fault = self.server.faults.pop(0) if self.server.faults else None
            if self.server.fails_at in texts:
                fault = 500
        if fault == "drop":
            self.close_connection = True
            self.connection.close()
        elif fault is not None:
            status, *after = fault if isinstance(fault, tuple) else (fault,)
            self.refuse(status, f"fault {status}; you sent {self.headers['Authorization']}", *after)
        elif self.path.endswith(":batchEmbedContents") and self.headers["x-goog-api-key"] == KEY:
            given = ["".join(part["text"] for part in one["content"]["parts"]) for one in body["requests"]]
            self.answer(200, {"embeddings": [{"values": vector(text)} for text in given]})
        elif self.headers["Authorization"] != f"Bearer {KEY}":
            status, sent = (400 if service == "gemini" else 401), self.headers["Authorization"][7:]
            self.refuse(status, f"API key not valid: {sent}")
        elif problem := wrong(service, self.path, body):
            self.refuse(422, problem)
        elif any(text == "too long" for text in texts):
            self.refuse(400, "This model's maximum context length is 8192 tokens.")
        else:
            data = [{"object": "embedding", "index": k, "embedding": vector(t)} for k, t in enumerate(texts)]
            if service == "voyage" and body.get("encoding_format") == "base64":
                for one in data:
                    one["embedding"] = base64.b64encode(struct.pack("<4f", *one["embedding"])).decode()
            tokens = sum(len(text.split()) for text in texts)
            data = data if self.server.change is None else self.server.change(data)
            usage = {"total_tokens": tokens} | ({"prompt_tokens": tokens} if service == "openai" else {})
            if service == "cohere":
                rows = data if data is None else [one["embedding"] for one in data]
                billed = {"billed_units": {"input_tokens": tokens}}
                self.answer(200, {"id": "1", "embeddings": {"float": rows}, "texts": texts, "meta": billed})
            else:
                self.answer(200, {"object": "list", "data": data, "model": body["model"], "usage": usage})

    def refuse(self, status, message, after=None):
        """Answer with an error in the service's own form."""
        forms = {"cohere": {"message": message}, "voyage": {"detail": message}}
        self.answer(status, forms.get(self.server.service, {"error": {"message": message}}), after)

    def answer(self, status, content, after=None):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header(*(("Retry-After", after) if after else ("retry-after-ms", "1")))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
