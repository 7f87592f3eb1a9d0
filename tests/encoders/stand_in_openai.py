"""A server with the part of OpenAI's interface that encodes texts, and with faults to order."""

import json
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


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(body)
            fault = self.server.faults.pop(0) if self.server.faults else None
        if fault == "drop":
            self.close_connection = True
            self.connection.close()
        elif fault is not None:
            self.answer(fault, {"error": {"message": f"fault {fault}; you sent {self.headers['Authorization']}"}})
        elif self.headers["Authorization"] != f"Bearer {KEY}":
            self.answer(401, {"error": {"message": f"Incorrect API key provided: {self.headers['Authorization'][7:]}"}})
        elif any(text == "too long" for text in body["input"]):
            self.answer(400, {"error": {"message": "This model's maximum context length is 8192 tokens."}})
        else:
            data = [{"object": "embedding", "index": k, "embedding": vector(t)} for k, t in enumerate(body["input"])]
            usage = {"prompt_tokens": sum(len(text.split()) for text in body["input"]), "total_tokens": 1}
            data = data if self.server.change is None else self.server.change(data)
            self.answer(200, {"object": "list", "data": data, "model": body["model"], "usage": usage})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("retry-after-ms", "1")
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
