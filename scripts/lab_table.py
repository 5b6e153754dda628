#!/usr/bin/env python3
"""The table of docs/lab.md and docs/lab.zh-CN.md, from the records in docs/lab/.

    lab_table.py            checks that both have the table that the records make; exit 1 if not
    lab_table.py --write    writes it

The records are what `flash-sale lab run --all --json …` printed, for one node and for three, with
forced interleavings and without. Each has to name exactly the registered strategies, in their
order. What a strategy does wrong is counted where the interleaving is forced; what it costs is
measured on one node where nothing is forced.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HARMS = ("oversold", "undersold", "duplicates", "lost")
COLUMNS = ("strategy", "one node", "three nodes", "attempts/s", "p99 ms", "Redis/Postgres")
RECORDS = ("nodes-1-forced", "nodes-1-free", "nodes-3-forced", "nodes-3-free")
REGISTRY = re.compile(r"^strategies! \{\n(.*?)^\}", re.M | re.S)
TABLE = re.compile(r"(?<=^```text\n)strategy .*?(?=^```$)", re.M | re.S)


def load(name):
    return json.loads((ROOT / "docs" / "lab" / f"{name}.json").read_text(encoding="utf-8"))


def registered():
    source = (ROOT / "crates/lab/src/strategies/mod.rs").read_text(encoding="utf-8")
    return [name.replace("_", "-") for name in re.findall(r"\w+", REGISTRY.search(source)[1])]


def check_records():
    for record in RECORDS:
        recorded, known = [row["strategy"] for row in load(record)], registered()
        if recorded != known:
            missing, unknown = set(known) - set(recorded), set(recorded) - set(known)
            why = f"without {sorted(missing)}, with unknown {sorted(unknown)}, or out of order"
            sys.exit(f"docs/lab/{record}.json does not name the registered strategies: {why}")


def check_speeds():
    """What the program sells by is faster than the usual design, as `make bench` finds, and by a
    factor of the same magnitude."""
    speeds = {row["strategy"]: row["throughput_per_s"] for row in load("nodes-1-free")}
    lab = speeds["lua-stream"] / speeds["lua-sync"]
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    bench = float(re.search(r"× the baseline:\D+8\D+([\d.]+)", page)[1])
    if not (speeds["row-lock"] < speeds["lua-sync"] and min(lab, bench) > 1 and 0.1 < lab / bench < 10):
        sys.exit(f"lua-stream over lua-sync: {lab:.1f} in docs/lab, {bench} in docs/performance.md")


def outcome(row):
    if not row["kept_promise"]:
        return "promise broken"
    return ", ".join(f"{row[harm]} {harm}" for harm in HARMS if row[harm]) or "held"


def short(value):
    """A duration or a rate with as many digits as it deserves."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def rows():
    free = {row["strategy"]: row for row in load("nodes-1-free")}
    three = {row["strategy"]: row for row in load("nodes-3-forced")}
    for one in load("nodes-1-forced"):
        name = one["strategy"]
        cost = free[name]
        trips = [cost["round_trips"][store] for store in ("redis", "postgres", "zookeeper")]
        shown = "/".join(f"{count:.2f}" for count in trips[: 3 if trips[2] else 2])
        rate, p99 = short(cost["throughput_per_s"]), short(cost["latency_ms"]["p99"])
        yield name, outcome(one), outcome(three[name]), rate, p99, shown


def table():
    cells = [COLUMNS, *rows()]
    widths = [max(map(len, column)) for column in zip(*cells)]
    for row in cells:
        left = [cell.ljust(width) for cell, width in zip(row[:3], widths)]
        right = [cell.rjust(width) for cell, width in zip(row[3:5], widths[3:])]
        yield "  ".join([*left, *right, row[5]])


def main(arguments):
    if arguments not in ([], ["--write"]):
        sys.exit(__doc__)
    check_records()
    check_speeds()
    right = "".join(f"{line}\n" for line in table())
    for name in ("lab.md", "lab.zh-CN.md"):
        page = ROOT / "docs" / name
        text = page.read_text(encoding="utf-8")
        written, count = TABLE.subn(lambda _: right, text)
        if count != 1:
            sys.exit(f"docs/{name} has {count} tables, not one")
        if arguments:
            page.write_text(written, encoding="utf-8")
        elif written != text:
            sys.exit(f"docs/{name} has not the table of its records: scripts/lab_table.py --write")
    print(f"lab_table: {len(right.splitlines()) - 1} strategies, as recorded")


if __name__ == "__main__":
    main(sys.argv[1:])
