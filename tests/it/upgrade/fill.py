"""Makes the fixture beside this file: what commit 70f243a leaves in Postgres and Redis.

    cargo build                                 # at commit 70f243a
    python3 fill.py path/to/that/flash-sale     # DATABASE_URL and REDIS_URL name empty servers

Writes 70f243a.sql (data only: migrations 1 to 14 make its schema), 70f243a.redis (one command a
line, words apart by tabs, bytes in hex) and 70f243a.json (what shoppers were told). Needs pg_dump.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path

HERE = Path(__file__).parent
PROGRAM = sys.argv[1]
DATABASE, REDIS = os.environ["DATABASE_URL"], os.environ["REDIS_URL"]
ADMIN = "admin-token-of-a-test"
SETTINGS = {
    "LISTEN_ADDR": "127.0.0.1:0",
    "TOKEN_SECRET": "a secret of at least thirty-two bytes",
    "ADMIN_TOKEN": ADMIN,
    "RATE_LIMIT": "off",
}
answers = []


def sql(statement):
    subprocess.run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", "-c", statement, DATABASE], check=True)


def redis(*words):
    """One command, one reply, of a connection of its own."""
    where = urllib.parse.urlparse(REDIS)
    with socket.create_connection((where.hostname, where.port)) as connection:
        request = b"*%d\r\n" % len(words)
        for word in (word.encode() if isinstance(word, str) else word for word in words):
            request += b"$%d\r\n%s\r\n" % (len(word), word)
        connection.sendall(request)
        return reply(connection.makefile("rb"))


def reply(stream):
    kind, rest = (line := stream.readline())[:1], line[1:-2]
    if kind == b"*":
        return [reply(stream) for _ in range(int(rest))]
    return stream.read(int(rest) + 2)[:-2] if kind == b"$" else rest


class Program:
    """A server of the old version, which may kill itself at a fail point."""

    def __init__(self, *arguments, fail_points=""):
        settings = SETTINGS | {"FAIL_POINTS": fail_points}
        self.process = subprocess.Popen([PROGRAM, "serve", *arguments], env=os.environ | settings,
                                        stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.base = found[0]
                break
        until(lambda: self.call("GET", "/readyz")[0] == 200)

    def call(self, method, path, token="", body=None, key=None):
        headers = {"Authorization": f"Bearer {token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key:
            headers["Idempotency-Key"] = key
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, headers, method=method)
        try:
            reply = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            reply = error
        return reply.status, json.loads(reply.read() or "null")

    def admin(self, method, path, body=None):
        status, reply = self.call(method, "/api/v1/admin/sales" + path, ADMIN, body)
        assert status in (200, 201), reply
        return reply

    def sale(self, title, stock, **more):
        more = {"price_cents": 100, "payment_timeout_secs": 86_400} | more
        return self.admin("POST", "", {"title": title, "stock": stock} | more)["id"]

    def shopper(self):
        return self.call("POST", "/api/v1/session", body={})[1]

    def buy(self, sale, becomes, key=None, shopper=None):
        """Notes the answer, and what is to become of it. Returns the shopper, and a way to act."""
        shopper = shopper or self.shopper()
        path = f"/api/v1/sales/{sale}/orders"
        status, reply = self.call("POST", path, shopper["token"], key=key)
        assert status == 202, reply
        order = reply["order_id"]
        note(shopper, sale, order, key, becomes)

        def act(verb):
            path = f"/api/v1/orders/{order}/{verb}"
            until(lambda: self.call("POST", path, shopper["token"])[0] == 200)

        return shopper, order, act

    def has_status(self, shopper, order, status):
        path = f"/api/v1/orders/{order}"
        until(lambda: self.call("GET", path, shopper["token"])[1].get("status") == status)

    def last_call(self, path, token, key=None):
        """It dies of this, before or after it has answered."""
        with contextlib.suppress(OSError):
            self.call("POST", path, token, key=key)
        self.process.wait()


def note(shopper, sale, order, key, becomes):
    answers.append({"user": shopper["user_id"], "sale": sale, "order": order, "key": key,
                    "status": becomes})


def until(holds):
    for _ in range(2_000):
        if holds():
            return
        time.sleep(0.05)
    raise TimeoutError


def ago(hours):
    return (datetime.now(timezone.utc) - timedelta(hours=hours)).isoformat()


# Everything ordinary, and an end in order.
program = Program()
running = program.sale("running", 64)
two_each = program.sale("two each", 32, per_user_limit=2)
paused = program.sale("paused", 16)
over = program.sale("over", 16, opens_at=ago(72), closes_at=ago(-1))
divided = program.sale("divided", 32, buckets=2)
for _ in range(2):
    program.buy(running, "paid")[2]("pay")
    shopper, order, _ = program.buy(running, "pending_payment")
    program.has_status(shopper, order, "pending_payment")
program.buy(running, "cancelled")[2]("cancel")
program.buy(running, "cancelled", key="of a cancelled order")[2]("cancel")
shopper, order, _ = program.buy(running, "expired")
program.has_status(shopper, order, "pending_payment")
sql(f"UPDATE orders SET pay_by = now() WHERE id = {order}")
program.has_status(shopper, order, "expired")
# Postgres has a live order that Redis never heard of, so the next one is rejected.
victim = program.shopper()
sql(f"""INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by)
        VALUES (1, {running}, '{victim['user_id']}', 0, 'pending_payment', 100, now(), now());
        UPDATE orders SET pay_by = now() + interval '1 hour' WHERE id = 1;
        UPDATE sales SET taken = taken + 1 WHERE id = {running}""")
_, order, _ = program.buy(running, "rejected", shopper=victim)
program.has_status(victim, order, "rejected")
sql(f"DELETE FROM orders WHERE id = 1; UPDATE sales SET taken = taken - 1 WHERE id = {running}")
of_two = program.buy(two_each, "paid")
of_two[2]("pay")
program.buy(two_each, "pending_payment", key="a second one", shopper=of_two[0])
of_one, order, _ = program.buy(two_each, "pending_payment")
program.has_status(of_one, order, "pending_payment")
program.buy(paused, "paid")[2]("pay")
program.admin("POST", f"/{paused}/pause")
program.buy(over, "paid")[2]("pay")
program.buy(over, "cancelled", key="of an old order")[2]("cancel")
damaged = program.sale("damaged", 32)
for _ in range(2):
    program.buy(divided, "paid")[2]("pay")
    program.buy(damaged, "paid")[2]("pay")
until(lambda: all(program.admin("GET", f"/{sale}/audit")["quiescent"] for sale in "123456"))
program.admin("PATCH", f"/{over}", {"closes_at": ago(26)})
leaver = program.buy(running, "cancelled")
program.has_status(*leaver[:2], "pending_payment")
program.process.terminate()
program.process.wait()

# A row, and still in the log: killed between the commit and the acknowledgement.
program = Program(fail_points="writer.committed=exit")
archive = [PROGRAM, "archive", "--older-than", "25h", "--sale", over]
until(lambda: "2 orders moved" in subprocess.run(archive, capture_output=True, text=True).stdout)
shopper = program.shopper()
program.last_call(f"/api/v1/sales/{running}/orders", shopper["token"], key="written twice")

# Nobody writes: accepted orders stay in the log. Killed with a unit on its way back in the outbox.
program = Program("--no-writer", fail_points="release.found=exit")
path = f"/api/v1/sales/{running}/orders"
order = program.call("POST", path, shopper["token"], key="written twice")[1]["order_id"]
note(shopper, running, order, "written twice", "pending_payment")
program.buy(running, "pending_payment")
program.buy(running, "pending_payment", key="not written")
program.buy(running, "pending_payment")
program.buy(two_each, "pending_payment", shopper=of_one)
program.last_call(f"/api/v1/orders/{leaver[1]}/cancel", leaver[0]["token"])

# Killed in the middle of a rebuild: sealed, and the buyers of two epochs are there.
program = Program("--no-writer", fail_points="rebuild.buyers_written=exit")
redis("HSET", f"{{sale:{damaged}}}", "remaining", "?")
program.last_call(f"/api/v1/sales/{damaged}/orders", program.shopper()["token"])

# Postgres: its data without the settings of pg_dump.
dump = ["pg_dump", "--data-only", "--column-inserts", "--rows-per-insert=100", DATABASE]
dump = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
lines = [line for line in dump.splitlines() if not re.match(r"$|--|SET |\\|.*set_config", line)]
(HERE / "70f243a.sql").write_text("\n".join(lines) + "\n")


def word(data):
    return data.decode() if re.fullmatch(rb"[ -~]*", data) else "0x" + data.hex()


def commands():
    for key in sorted(redis("KEYS", "*")):
        match redis("TYPE", key):
            case b"hash":
                yield [b"HSET", key, *redis("HGETALL", key)]
            case b"stream":
                for entry, fields in redis("XRANGE", key, "-", "+"):
                    yield [b"XADD", key, entry, *fields]
            case b"string":
                yield [b"SET", key, redis("GET", key)]


text = "\n".join("\t".join(map(word, command)) for command in commands())
(HERE / "70f243a.redis").write_text(text + "\n")
text = ",\n".join(map(json.dumps, answers))
(HERE / "70f243a.json").write_text(f"[\n{text}\n]\n")
