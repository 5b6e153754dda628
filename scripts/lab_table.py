#!/usr/bin/env python3
"""Turns what `flash-sale lab run --all --json` printed into the Markdown table of docs/lab.md.

    flash-sale lab list --json > list.json
    flash-sale lab run --all --json … > forced.json
    flash-sale lab run --all --json --option interleave=off … > free.json
    scripts/lab_table.py list.json forced.json free.json

What a strategy does wrong is counted where the interleaving is forced, because there it happens every time; what it costs is
measured where nobody waits for a meeting.
"""

import json
import sys


def promised(harms):
    words = {
        "oversells": ("oversells", "may oversell"),
        "undersells": ("undersells", "may undersell"),
        "duplicates": ("sells twice", "may sell twice"),
    }
    said = [
        words[harm][0 if harms[harm] == "expected" else 1] for harm in words if harms[harm] != "never"
    ]
    return ", ".join(said) or "holds"


def verdict(row):
    if not row["kept_promise"]:
        return "**promise broken**"
    harmed = row["oversold"] + row["undersold"] + row["duplicates"] + row["lost"]
    return "failed, as it says" if harmed else "held"


def short(value):
    """A duration or a rate with as many digits as it deserves."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def load(name):
    with open(name, encoding="utf-8") as file:
        return json.load(file)


def main(list_file, forced_file, free_file):
    strategies = {strategy["id"]: strategy for strategy in load(list_file)}
    unforced = {row["strategy"]: row for row in load(free_file)}
    print(
        "| # | strategy | promise | sold | oversold | undersold | duplicates | verdict "
        "| by chance | attempts/s | p99 ms | contended | Redis / Postgres |"
    )
    print("|--:|---|---|--:|--:|--:|--:|---|---|--:|--:|--:|---|")
    for row in load(forced_file):
        strategy, free = strategies[row["strategy"]], unforced[row["strategy"]]
        head = f"| {strategy['number']} | `{row['strategy']}`"
        if "not_run" in row or "not_run" in free:
            print(f"{head} | not run: {row.get('not_run') or free.get('not_run')} |||||||||||")
            continue
        promise = strategy["promise"]["one_node" if row["nodes"] == 1 else "across_nodes"]
        harms = [f"{name} {free[name]}" for name in ("oversold", "undersold", "duplicates", "lost") if free[name]]
        trips = free["round_trips"]
        keeper = f" / ZooKeeper {trips['zookeeper']:.2f}" if trips["zookeeper"] else ""
        failed = f" ({free['failed']} failed)" if free["failed"] else ""
        print(
            f"{head} | {promised(promise)} | {row['sold']} | {row['oversold'] or '·'} | {row['undersold'] or '·'} "
            f"| {row['duplicates'] or '·'} | {verdict(row)} | {', '.join(harms) or 'nothing'} "
            f"| {short(free['throughput_per_s'])} | {short(free['latency_ms']['p99'])} | {free['contended'] or '·'}{failed} "
            f"| {trips['redis']:.2f} / {trips['postgres']:.2f}{keeper} |"
        )


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
