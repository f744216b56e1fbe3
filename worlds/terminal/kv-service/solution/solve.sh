#!/bin/bash
set -euo pipefail
cat > /app/kv.py <<'PY'
"""A key-value store over HTTP in one SQLite file."""
import json
import re
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)
LIMIT = 1 << 20
lock = threading.Lock()
db = sqlite3.connect("/var/lib/kv/kv.db", check_same_thread=False, isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.execute("PRAGMA synchronous = FULL")
db.execute("CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
METHODS = {"kv": {"GET", "PUT", "DELETE"}, "incr": {"POST"}}


def fetch(key):
    row = db.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchone()
    return None if row is None else bytes(row[0])


def store(key, value):
    db.execute("INSERT INTO kv VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b"", kind="text/plain", close=False):
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        if close:
            self.send_header("Connection", "close")
        self.end_headers()
        if status != 204 and self.command != "HEAD":
            self.wfile.write(body)

    def handle_any(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > LIMIT:
            # Read and dropped, so that the client gets to read the answer.
            for _ in range(min(length, 64 << 20) // 65536 + 1):
                self.rfile.read(min(65536, length))
                length -= min(65536, length)
            return self.answer(413, close=True)
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        path = self.path.split("?", 1)[0]
        if path in ("/healthz", "/kv"):
            if self.command != "GET":
                return self.answer(405)
            if path == "/healthz":
                return self.answer(200, b"ok")
            with lock:
                keys = sorted(row[0] for row in db.execute("SELECT key FROM kv"))
            return self.answer(200, json.dumps(keys).encode(), "application/json")
        match = re.fullmatch(r"/(kv|incr)/(.*)", path, re.DOTALL)
        if match is None:
            return self.answer(404)
        kind, key = match.groups()
        if self.command not in METHODS[kind]:
            return self.answer(405)
        if KEY.fullmatch(key) is None:
            return self.answer(400)
        with lock:
            result = self.apply(kind, key, body)
        self.answer(*result)

    def apply(self, kind, key, body):
        value = fetch(key)
        if kind == "incr":
            if value is not None and re.fullmatch(rb"-?[0-9]{1,15}", value) is None:
                return (409,)
            number = b"%d" % (int(value or b"0") + 1)
            store(key, number)
            return 200, number
        if self.command == "PUT":
            store(key, body)
            return (201 if value is None else 204,)
        if value is None:
            return (404,)
        if self.command == "GET":
            return 200, value, "application/octet-stream"
        db.execute("DELETE FROM kv WHERE key = ?", (key,))
        return (204,)

    do_GET = do_PUT = do_DELETE = do_POST = do_HEAD = do_PATCH = do_OPTIONS = handle_any

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


Server(("127.0.0.1", 8080), Handler).serve_forever()
PY
cat > /app/start.sh <<'SH'
#!/bin/sh
exec /usr/bin/python3 -I -B /app/kv.py
SH
chmod 755 /app/start.sh
setsid runuser -u kv -- /app/start.sh > /dev/null 2>&1 < /dev/null &
for _ in $(seq 50); do
  if /usr/bin/python3 -I -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:8080/healthz", timeout=1).read())' 2> /dev/null; then exit 0; fi
  sleep 0.1
done
exit 1
