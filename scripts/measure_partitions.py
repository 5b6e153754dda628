#!/usr/bin/env python3
"""What partitioning `orders` by sale costs and gives, on a private Postgres of its own.

    measure_partitions.py [--orders N] [--sales N] [--layouts plain,hash8,...] [--json FILE]

Each layout gets the table of migrations/0001 with all its indexes, the same orders, and the same
questions:
- load: COPY in the writer's batches, each in a transaction of its own that also counts against the
  sale's row
- by id / by id and sale / of a user: one client, prepared statements (pgbench), microseconds each
- pay: the update that a payment makes, by id alone, microseconds each
- a sale: all live orders of a sale, as a rebuild reads them, milliseconds
- vacuum: after a fifth of the orders was updated, seconds
- remove: an ended sale's orders go: DELETE, and where a sale is a partition of its own DROP,
  milliseconds
Figures of one run are compared with each other, not with those of another machine. docs/postgres.md
has some.
"""

import argparse
import glob
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCH = 2_000  # the most orders of one transaction of the writer
LAYOUTS = ["plain", "hash8", "hash64", "list"]


def binaries():
    for folder in sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True) + os.environ["PATH"].split(":"):
        if all(os.access(f"{folder}/{name}", os.X_OK) for name in ("initdb", "postgres", "psql", "pgbench")):
            return folder
    raise SystemExit("no folder with initdb, postgres, psql and pgbench: scripts/setup.sh run")


class Server:
    """Postgres refuses to run as root, so root runs it as `postgres` or `nobody`."""

    def __init__(self):
        self.bin = binaries()
        self.dir = tempfile.mkdtemp(prefix="fs-parts-")
        self.user = self.process = None

    def start(self):
        if os.getuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            self.user = "postgres" if "postgres" in names else "nobody"
            shutil.chown(self.dir, self.user)
        self.run("initdb", "-D", f"{self.dir}/pg", "--auth=trust", "-U", "bench", "--no-sync", quiet=True)
        settings = {
            "listen_addresses": "", "unix_socket_directories": self.dir, "shared_buffers": "256MB", "max_wal_size": "8GB",
            "checkpoint_timeout": "1h", "autovacuum": "off", "max_locks_per_transaction": "256",
        }
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.process = subprocess.Popen(
            [f"{self.bin}/postgres", "-D", f"{self.dir}/pg", *arguments], user=self.user, cwd="/",
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while subprocess.run([f"{self.bin}/pg_isready", "-h", self.dir], stdout=subprocess.DEVNULL).returncode:
            if time.monotonic() > deadline:
                raise SystemExit("postgres does not start")
            time.sleep(0.05)

    def run(self, program, *arguments, quiet=False):
        done = subprocess.run([f"{self.bin}/{program}", *arguments], user=self.user, cwd="/", text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode:
            raise SystemExit(f"{program}: {done.stderr[-2_000:]}")
        return "" if quiet else done.stdout

    def sql(self, text):
        file = pathlib.Path(self.dir, "statements.sql")
        file.write_text(text)
        return self.run("psql", "-h", self.dir, "-U", "bench", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-qAt",
                        "-f", str(file)).strip()

    def seconds(self, text):
        began = time.monotonic()
        self.sql(text)
        return time.monotonic() - began

    def microseconds(self, script, seconds=2):
        """The mean of one statement by one client."""
        file = pathlib.Path(self.dir, "bench.sql")
        file.write_text(script)
        said = self.run("pgbench", "-h", self.dir, "-U", "bench", "-n", "-M", "prepared", "-c", "1", "-T", str(seconds),
                        "-f", str(file), "postgres")
        found = re.search(r"latency average = ([0-9.]+) ms", said)
        if not found or "0 (0.000%)" not in said and "failed" in said and not re.search(r"failed transactions: 0 ", said):
            raise SystemExit(said)
        return float(found.group(1)) * 1_000

    def close(self):
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


def schema(layout, sales):
    """The table of the migration, partitioned or not: nothing is written down twice."""
    text = (ROOT / "migrations/0001_sales_and_orders.sql").read_text()
    if layout == "plain":
        return text
    # The key of a partitioned table must hold what it is partitioned by.
    text = text.replace("CONSTRAINT orders_pkey PRIMARY KEY (id)", "CONSTRAINT orders_pkey PRIMARY KEY (id, sale_id)")
    kind = "LIST" if layout == "list" else "HASH"
    end = "CHECK ((closed_at IS NOT NULL) = (status IN ('cancelled', 'expired', 'rejected')))\n);"
    assert end in text
    text = text.replace(end, f"{end[:-1]} PARTITION BY {kind} (sale_id);")
    if layout == "list":
        parts = [f"CREATE TABLE orders_{n} PARTITION OF orders FOR VALUES IN ({n});" for n in range(1, sales + 1)]
    else:
        count = int(layout.removeprefix("hash"))
        parts = [f"CREATE TABLE orders_{n} PARTITION OF orders FOR VALUES WITH (MODULUS {count}, REMAINDER {n});"
                 for n in range(count)]
    return text + "\n".join(parts)


def source(server, orders, sales):
    """The same orders for all, as files of one batch each. One sale after the other is hot, twenty
    batches at a time."""
    server.sql(f"""
        CREATE TABLE source AS
        SELECT ((n::bigint / 5000 + 50000000) << 32) | n AS id, 1 + (n - 1) / {BATCH * 20} % {sales} AS sale_id,
               md5((n::bigint * 7919 % {max(orders // 2, 1)})::text || 'u')::uuid AS user_id, 0::smallint AS slot
        FROM generate_series(1, {orders}) AS n;
        ALTER TABLE source ADD COLUMN number serial;
        DELETE FROM source a USING source b WHERE a.user_id = b.user_id AND a.sale_id = b.sale_id AND a.number > b.number;
        DO $$ BEGIN FOR batch IN 0..({orders} - 1) / {BATCH} LOOP
            EXECUTE format('COPY (SELECT id, sale_id::bigint, user_id, slot, ''pending_payment'', 100::bigint, NULL::bigint,
                now(), now() + interval ''1 day'' FROM source WHERE number > %s AND number <= %s ORDER BY id) TO %L',
                batch * {BATCH}, (batch + 1) * {BATCH}, '{server.dir}/batch-' || batch);
        END LOOP; END $$;""" .replace("CREATE TABLE source", "CREATE UNLOGGED TABLE source")
        .replace("DELETE FROM source a", "CREATE INDEX ON source (user_id, sale_id); CREATE UNIQUE INDEX ON source (number);\nANALYZE source;\nDELETE FROM source a"))


def measure(server, layout, orders, sales):
    server.sql("DROP TABLE IF EXISTS orders, sales CASCADE; DROP TYPE IF EXISTS order_status CASCADE;")
    server.sql(schema(layout, sales))
    server.sql(f"""INSERT INTO sales (title, price_cents, stock, opens_at, closes_at, buyer_shards)
        SELECT 's', 1, 10000000, now(), now() + interval '1 day', 1 FROM generate_series(1, {sales});
        CREATE OR REPLACE PROCEDURE load() LANGUAGE plpgsql AS $$ BEGIN
        FOR batch IN 0..({orders} - 1) / {BATCH} LOOP
            EXECUTE format('COPY orders (id, sale_id, user_id, slot, status, price_cents, idempotency_hash, created_at, pay_by)
                FROM %L', '{server.dir}/batch-' || batch);
            UPDATE sales SET taken = taken + 1 WHERE id = 1 + batch / 20 % {sales};
            COMMIT;
        END LOOP; END $$; CHECKPOINT;""")
    figures = {"load_rows_per_s": orders / server.seconds("CALL load()")}
    server.sql("ANALYZE orders; CHECKPOINT;")
    figures["size_mb"] = float(server.sql(
        "SELECT round(sum(pg_total_relation_size(oid)) / 1e6) FROM pg_class WHERE relname ~ '^orders(_[0-9]+)?$' AND relkind = 'r'"))
    ask = f"\\set n random(1, {orders})\nSELECT coalesce(max(id), 1) AS id, coalesce(max(sale_id), 1) AS sale, coalesce(max(user_id::text), '00000000-0000-0000-0000-000000000000') AS who FROM source WHERE number = :n \\gset\n"
    idle = server.microseconds(ask)
    per = {
        "by_id_us": "SELECT * FROM orders WHERE id = :id;",
        "by_id_and_sale_us": "SELECT * FROM orders WHERE id = :id AND sale_id = :sale;",
        "of_user_us": "SELECT * FROM orders WHERE user_id = CAST(:who AS uuid) AND id < 9223372036854775807 ORDER BY id DESC LIMIT 50;",
        "pay_us": "UPDATE orders SET status = 'paid', paid_at = now() WHERE id = :id AND status = 'pending_payment' AND pay_by > now();",
    }
    for name, statement in per.items():
        figures[name] = server.microseconds(ask + statement + "\n") - idle
    read = "SELECT count(*), max(user_id::text) FROM orders WHERE sale_id = 3 AND status IN ('pending_payment', 'paid');"
    server.sql(read)
    figures["a_sale_ms"] = server.seconds(read) * 1_000
    server.sql("UPDATE orders SET status = 'expired', slot = NULL, closed_at = now(), paid_at = NULL WHERE id % 5 = 0")
    figures["vacuum_s"] = server.seconds("VACUUM orders")
    figures["delete_sale_ms"] = server.seconds("DELETE FROM orders WHERE sale_id = 2") * 1_000
    if layout == "list":
        figures["drop_sale_ms"] = server.seconds("DROP TABLE orders_4") * 1_000
    return {name: round(value, 1) for name, value in figures.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=2_000_000)
    parser.add_argument("--sales", type=int, default=50)
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--json")
    settings = parser.parse_args()
    # So that the server is stopped whatever ends this.
    signal.signal(signal.SIGTERM, lambda *_: exit(1))
    server = Server()
    try:
        server.start()
        source(server, settings.orders, settings.sales)
        found = {}
        for layout in settings.layouts.split(","):
            found[layout] = measure(server, layout, settings.orders, settings.sales)
            print(layout, json.dumps(found[layout]), flush=True)
        if settings.json:
            text = {"orders": settings.orders, "sales": settings.sales, "batch": BATCH, "layouts": found,
                    "postgres": server.sql("SHOW server_version"), "cores": os.cpu_count()}
            pathlib.Path(settings.json).write_text(json.dumps(text, indent=1) + "\n")
    finally:
        server.close()


if __name__ == "__main__":
    main()
