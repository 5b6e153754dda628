#!/usr/bin/env python3
"""Holds deploy/alerts.yml, docs/operations.md and the program's metrics together.

Every alert has a section of its name in the runbook and the other way round, and every metric that an alert or the
Grafana dashboard names is one that the program really exports. `--self-test` shows that each kind of drift is found.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
METRIC = re.compile(r"\bflash_sale_[a-z_]+\b")
# What the exporter adds to a histogram's name.
SUFFIXES = ("_bucket", "_sum", "_count")


def problems(alerts, runbook, exported, shown):
    found = []
    named = re.findall(r"^\s*- alert: (\w+)$", alerts, re.M)
    explained = re.findall(r"^### (\w+)$", runbook, re.M)
    if not named:
        found.append("no alerts at all")
    for name in sorted(set(named) - set(explained)):
        found.append(f"alert {name} has no section in the runbook")
    for name in sorted(set(explained) - set(named)):
        found.append(f"the runbook explains {name}, which is no alert")
    for where, text in (("alerts", alerts), ("runbook", runbook), ("dashboard", shown)):
        for metric in sorted(set(METRIC.findall(text))):
            plain = metric
            for suffix in SUFFIXES:
                plain = plain.removesuffix(suffix)
            if metric not in exported and plain not in exported:
                found.append(f"{where}: {metric} is not exported by the program")
    return found


def exported_metrics():
    sources = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.rs")))
    return set(re.findall(r'(?:counter|gauge|histogram)!\(\s*"(flash_sale_[a-z_]+)"', sources))


def self_test():
    exported = {"flash_sale_orders_total", "flash_sale_writer_seconds"}
    alerts = "- alert: A\n  expr: flash_sale_orders_total > 0\n"
    sound = problems(alerts, "### A\n", exported, "flash_sale_writer_seconds_bucket")
    assert sound == [], sound
    assert problems("", "", exported, "")
    assert problems(alerts, "", exported, "")
    assert problems(alerts, "### A\n### B\n", exported, "")
    assert problems(alerts + "flash_sale_gone", "### A\n", exported, "")
    assert problems(alerts, "### A\nflash_sale_gone\n", exported, "")
    assert problems(alerts, "### A\n", exported, "flash_sale_gone_total")
    print("each kind of drift is found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    dashboards = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
    found = problems(
        (ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8"),
        (ROOT / "docs" / "operations.md").read_text(encoding="utf-8"),
        exported_metrics(),
        "\n".join(path.read_text(encoding="utf-8") for path in dashboards),
    )
    if found:
        sys.exit("\n".join(found))
    print("alerts, runbook, dashboard and metrics agree")


main()
