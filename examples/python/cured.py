"""A flash sale in Python, cured. `python3 cured.py` listens on 127.0.0.1:9000, or on PORT."""

import json
import os
import sqlite3
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(os.environ.get("PORT", 9000))
FILE = f"orders-{PORT}.db"
TABLES = """
    PRAGMA journal_mode = WAL;  -- reading does not wait for writing
    CREATE TABLE IF NOT EXISTS stock (remaining INTEGER);
    INSERT INTO stock SELECT 0 WHERE NOT EXISTS (SELECT * FROM stock);
    CREATE TABLE IF NOT EXISTS orders (order_id TEXT, user TEXT, key TEXT);
"""


def buy(db, user, key):
    with db:  # commits at its end
        db.execute("BEGIN IMMEDIATE")  # CURE: nobody else writes until the commit
        row = db.execute("SELECT order_id FROM orders WHERE key = ?", (key,)).fetchone()
        if row:
            return 201, {"order_id": row[0]}
        if db.execute("SELECT 1 FROM orders WHERE user = ?", (user,)).fetchone():
            return 409, {"code": "already_ordered"}
        (seen,) = db.execute("SELECT remaining FROM stock").fetchone()
        if seen < 1:
            return 409, {"code": "sold_out"}

        order_id = uuid.uuid4().hex
        db.execute("INSERT INTO orders VALUES (?, ?, ?)", (order_id, user, key))
        db.execute("UPDATE stock SET remaining = ?", (seen - 1,))
        return 201, {"order_id": order_id}


def reset(db, stock):
    with db:
        db.execute("DELETE FROM orders")
        db.execute("UPDATE stock SET remaining = ?", (stock,))
        return 204, None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body leave together

    def setup(self):  # each client has a thread, and so a database connection, of its own
        super().setup()
        self.db = sqlite3.connect(FILE, timeout=60)

    def do_GET(self):
        if self.path == "/stock":
            (remaining,) = self.db.execute("SELECT remaining FROM stock").fetchone()
            return self.answer(200, {"remaining": remaining})
        orders = self.db.execute("SELECT order_id, user FROM orders")
        self.answer(200, {"orders": [{"order_id": id, "user": user} for id, user in orders]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/reset":
            self.answer(*reset(self.db, body["stock"]))
        else:
            self.answer(*buy(self.db, body["user"], self.headers["Idempotency-Key"]))

    def answer(self, status, body):
        self.send_response_only(status)
        text = json.dumps(body).encode() if body else b""
        if body:
            self.send_header("Content-Length", len(text))
        self.end_headers()
        self.wfile.write(text)


sqlite3.connect(FILE).executescript(TABLES)
ThreadingHTTPServer.request_queue_size = 1024  # of clients that connect at the same moment
print(f"listening on http://127.0.0.1:{PORT}", flush=True)
ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
