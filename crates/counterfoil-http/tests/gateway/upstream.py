"""A service for tests: it counts its calls and effects, and does what the request tells it to do.

    python3 upstream.py PORT FILE

Effects are lines in FILE, so that they outlive the process. Prints its port, then serves.
"""

import hashlib
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

FILE = sys.argv[2]
LOCK = threading.Condition()
STATE = {"calls": 0, "connections": 0, "waiting": 0, "go": 0, "aborted": 0, "bytes": 0, "statuses": 0, "sources": 0,
         "probes": 0, "served": 0, "failing": 0}


def effects():
    with open(FILE, "a+") as file:
        file.seek(0)
        return [json.loads(line) for line in file]


def take_effect(key, order):
    with LOCK, open(FILE, "a") as file:
        file.write(json.dumps({"key": key, "order": order}) + "\n")
        file.flush()
        os.fsync(file.fileno())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        with LOCK:
            STATE["connections"] += 1

    def log_message(self, *_):
        pass

    def line(self):
        line = self.rfile.readline()
        if not line:
            raise ConnectionResetError("in the middle of a body")
        return line

    def body(self):
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            whole, self.trailers = b"", {}
            while size := int(self.line().split(b";")[0], 16):
                whole += self.rfile.read(size)
                self.line()
            while (line := self.line()) != b"\r\n":
                name, value = line.decode().split(":", 1)
                self.trailers[name.lower()] = value.strip()
            return whole
        self.trailers = {}
        return self.rfile.read(int(self.headers.get("content-length", "0")))

    def answer(self, status, document, more=()):
        whole = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(whole)))
        for name, value in more:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(whole)

    def chunks(self, pieces, kind="application/json", trailers=()):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        if trailers:
            self.send_header("trailer", ", ".join(name for name, _ in trailers))
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n")
        for name, value in trailers:
            self.wfile.write(f"{name}: {value}\r\n".encode())
        self.wfile.write(b"\r\n")

    def vanish(self):
        self.close_connection = True
        self.connection.close()

    def hold(self):
        with LOCK:
            STATE["waiting"] += 1
            LOCK.notify_all()
            LOCK.wait_for(lambda: STATE["go"] > 0)
            STATE["go"] -= 1
            STATE["waiting"] -= 1

    def do_GET(self):
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if url.path == "/control/state":
            with LOCK:
                return self.answer(200, {**STATE, "effects": effects()})
        if url.path == "/control/go":
            with LOCK:
                STATE["go"] += 1
                LOCK.notify_all()
            return self.answer(200, {})
        if url.path == "/control/fail":
            with LOCK:
                STATE["failing"] = int(query["by"][0])
            return self.answer(200, {})
        if url.path == "/page":
            with LOCK:
                STATE["served"] += 1
                served, status = STATE["served"], STATE["failing"] or int(query.get("is", ["200"])[0])
            said = [line.split(":", 1) for line in query.get("say", [])]
            return self.answer(status, {"served": served}, said)
        if url.path == "/orders":
            key = query.get("ref", [""])[0]
            with LOCK:
                STATE["probes"] += 1
            # Strangers are told that there is nothing.
            known = (self.headers["host"], self.headers["authorization"]) == ("shop.example", "Bearer probe")
            if key.startswith("private") and not known:
                return self.answer(404, {})
            found = [e["order"] for e in effects() if e["key"].strip('"') == key]
            if key.startswith("sick"):
                return self.answer(503, {})
            return self.answer(200, {"order": found[0]}) if found else self.answer(404, {})
        if url.path == "/source":
            size = int(query["bytes"][0])
            with LOCK:
                STATE["sources"] += 1
            self.send_response(200)
            self.send_header("content-length", str(size))
            self.end_headers()
            piece = b"x" * 65536
            while size > 0:
                self.wfile.write(piece[:size])
                size -= len(piece)
            return None
        if url.path == "/status":
            with LOCK:
                STATE["statuses"] += 1
            status, size = int(query["is"][0]), int(query.get("size", ["0"])[0])
            self.send_response(status)
            if status not in (204, 304):
                self.send_header("content-length", str(size))
            self.end_headers()
            self.wfile.write(b"x" * size)
            return None
        return self.echo(b"")

    do_HEAD = do_GET

    def echo(self, whole):
        with LOCK:
            STATE["calls"] += 1
        document = {
            "method": self.command, "path": self.path, "size": len(whole),
            "sha": hashlib.sha256(whole).hexdigest(), "trailers": getattr(self, "trailers", {}),
            "headers": [[n.lower(), v] for n, v in self.headers.items()],
        }
        self.answer(200, document)

    def do_POST(self):
        path = urlsplit(self.path).path
        if path == "/sink":
            left = int(self.headers["content-length"])
            while left > 0:
                piece = self.rfile.read(min(left, 65536))
                if not piece:
                    with LOCK:
                        STATE["aborted"] += 1
                    return self.vanish()
                left -= len(piece)
                with LOCK:
                    STATE["bytes"] += len(piece)
            return self.answer(200, {"read": int(self.headers["content-length"])})
        if path == "/refuse-early":
            self.close_connection = True
            return self.answer(413, {"refused": True}, [("connection", "close")])
        whole = self.body()
        if path != "/orders":
            return self.echo(whole)
        with LOCK:
            STATE["calls"] += 1
            order = STATE["calls"]
        do = json.loads(whole or b"{}").get("do", "")
        key = self.headers.get("idempotency-key", "")
        document = {
            "order": order, "salt": os.urandom(8).hex(), "fence": self.headers.get("counterfoil-fence"),
            "attempt": self.headers.get("counterfoil-attempt"), "key": key,
        }
        if do == "vanish-before":
            return self.vanish()
        if do == "hold-before":
            self.hold()
        if do.isdigit():
            return self.answer(int(do), {"error": do})
        if do == "busy-once" and order == 1:
            return self.answer(429, {"error": do}, [("retry-after", "1")])
        if do == "fail-once" and order == 1:
            self.hold()
            return self.answer(503, {"error": do})
        take_effect(key, order)
        if do == "vanish-after":
            return self.vanish()
        if do == "hold-after":
            self.hold()
        if do == "hang":
            time.sleep(5)
        if do == "broken-answer":
            self.send_response(200)
            self.send_header("content-length", "100")
            self.end_headers()
            self.wfile.write(b"only this")
            return self.vanish()
        if do == "stuck-answer":
            whole = json.dumps(document).encode()
            self.send_response(201)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole[:7])
            self.hold()
            self.wfile.write(whole[7:])
            return None
        if do == "large":
            self.send_response(200)
            self.send_header("content-length", str(32 << 20))
            self.end_headers()
            return self.wfile.write(b"x" * (32 << 20))
        if do == "big":
            return self.answer(200, {"order": order, "filler": "x" * (3 << 20)})
        if do == "chunked":
            text = json.dumps(document).encode()
            return self.chunks([text[:7], text[7:]], trailers=[("x-sum", "42")])
        if do == "events":
            def events():
                yield b"data: 1\n\n"
                self.hold()
                yield b"data: 2\n\n"
            return self.chunks(events(), "text/event-stream")
        if do == "stream":
            def pieces():
                yield b"first,"
                self.hold()
                yield b"second"
            return self.chunks(pieces(), "text/plain")
        return self.answer(201, document, [
            ("location", f"/orders/{order}"), ("etag", '"v1"'), ("set-cookie", "session=secret"),
            ("x-line", "one"), ("x-line", "two"), ("connection", "x-hop"), ("x-hop", "1"),
            ("cache-control", "max-age=60"),
        ])

    do_PUT = do_PATCH = do_DELETE = do_POST


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, *_):
        """Callers that go away are part of the tests."""


server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
