#!/usr/bin/env python3
"""What a sale of so many purchases a second needs, from what one purchase costs (docs/scale.md).

    scale.py [--rate 1000000] [--redis-us 4.0] ...    the machines, the network, the money

Every figure that is not the reader's own is an argument with a default; docs/scale.md says where
each comes from. Nothing here is measured by running it.
"""

import argparse
import math


def machines(rate, microseconds, cores, busy):
    """How many machines of so many cores bear this rate, each core busy for at most this share."""
    return math.ceil(rate * microseconds / 1e6 / busy / cores)


def plan(a):
    rows = []

    def row(what, count, why):
        rows.append((what, count, why))

    instances = machines(a.rate, a.app_us, a.app_cores, a.busy)
    row("instances", instances, f"{a.app_us} µs a purchase, {a.app_cores} cores each, {a.busy:.0%} busy")
    # One process is one thread: more cores only help to write files and sockets. More of them make
    # smaller calls, whose own cost then needs more of them: up to where it comes to rest.
    primaries, last = 1, 0
    while primaries != last:
        last = primaries
        in_call = max(1, a.rate / primaries / instances * a.round_trip_ms / 1e3)
        redis_us = a.redis_us + a.call_us / in_call
        primaries = max(last, machines(a.rate, redis_us, 1, a.busy))
    row("Redis primaries", primaries, f"{redis_us:.1f} µs a purchase on one thread, {a.busy:.0%} busy")
    row("Redis replicas", primaries, "one each, on another machine")
    row("buyers in a call", round(in_call), f"one primary's share at one instance, in {a.round_trip_ms} ms; longer waits make larger calls")

    sold = a.rate * a.sold_share
    row("rows a second", round(sold), f"{a.sold_share:.0%} of the purchases get a unit; the others leave no row")
    postgres = max(1, math.ceil(sold / a.rows_per_server))
    row("Postgres servers", postgres, f"{a.rows_per_server:,} rows/s each, partitioned by a hash of the user")
    partitions = postgres * a.writers_per_server
    row("partitions, each with a writer", partitions, f"{a.writers_per_server} writers are what one server keeps busy")
    backlog = a.rate * a.sold_share * a.seconds
    row("orders in one rush", round(backlog), f"{a.seconds} s at this rate")
    row("Redis memory, GiB", round(backlog * (a.buyer_bytes + a.log_bytes) / 2**30, 1),
        f"{a.buyer_bytes} bytes a buyer and {a.log_bytes} in the log, if Postgres writes nothing meanwhile")

    wire = a.rate * (a.request_bytes + a.answer_bytes) * 8 / 1e9
    row("clients' network, Gbit/s", round(wire, 1), f"{a.request_bytes} bytes in and {a.answer_bytes} out, TLS and TCP not counted")
    inner = a.rate * (a.script_bytes * 2) * 8 / 1e9
    row("Redis network, Gbit/s", round(inner, 1), f"{a.script_bytes} bytes a buyer to Redis, and as much to its replica")
    row("TLS, cores", math.ceil(a.rate * a.tls_us / 1e6 / a.busy), f"{a.tls_us} µs a request on kept-alive connections")

    an_hour = instances * a.app_price + 2 * primaries * a.redis_price + 2 * postgres * a.postgres_price
    row("price of an hour", f"{an_hour:,.0f} USD", "assumed prices, see --help; without network and load balancers")
    width = max(len(what) for what, *_ in rows)
    for what, count, why in rows:
        count = f"{count:,}" if isinstance(count, int) else str(count)
        print(f"{what:<{width}}  {count:>14}  {why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, what in [
        ("rate", 1_000_000, "purchases a second"),
        ("seconds", 10, "how long the rush lasts"),
        ("busy", 0.6, "share of a core that may be busy, so that queues stay short and one machine may fail"),
        ("redis-us", 6.3, "Redis CPU for a buyer, acknowledgement included"),
        ("call-us", 65.0, "Redis CPU for a call and its acknowledgement, however few buyers it carries"),
        ("app-us", 30.5, "CPU of an instance for a purchase, writer included"),
        ("app-cores", 8, "usable cores of an instance's machine"),
        ("round-trip-ms", 2.0, "from the call of the script to its answer, under load"),
        ("sold-share", 1.0, "share of the purchases that get a unit"),
        ("rows-per-server", 150_000, "rows a second that one Postgres server takes"),
        ("writers-per-server", 4, "writers that keep one server busy"),
        ("buyer-bytes", 107, "Redis memory of a buyer"),
        ("log-bytes", 40, "Redis memory of an order in the log"),
        ("request-bytes", 450, "a purchase as HTTP"),
        ("answer-bytes", 350, "its answer"),
        ("script-bytes", 110, "a buyer in the arguments of the script"),
        ("tls-us", 10.0, "CPU of TLS for a small request"),
        ("app-price", 0.40, "USD an hour for an instance's machine (8 cores)"),
        ("redis-price", 0.20, "USD an hour for a Redis machine (2 fast cores, 16 GiB)"),
        ("postgres-price", 2.00, "USD an hour for a Postgres machine (16 cores, local NVMe)"),
    ]:
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{what} [{default}]")
    arguments = parser.parse_args()
    plan(arguments)


if __name__ == "__main__":
    main()
