#!/usr/bin/env python3
"""Holds deploy/alerts.yml, docs/operations.md, docs/runbook.md and the program's metrics together.

Every alert has a section of its name in docs/operations.md and the other way round, and every
metric that an alert or the Grafana dashboard names is one that the program's source names.
(tests/it/watching.rs compares them, their labels and the labels' values with what a running process
exports.) `--self-test` shows that each kind of drift is found.

With Prometheus' own tool: the rules, the configuration and every query of the dashboard are
well-formed, and each alert fires and is silent as deploy/alerts_test.yml says. To see that those
tests look at every alert, each one's rule is replaced by one that never fires, which must make them
fail; and each alert has a case in which it is silent. `scripts/setup.sh proof` installs promtool;
where it cannot be had, `--without-promtool` leaves this out and says so.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
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
    paths = [*(ROOT / "src").rglob("*.rs"), *(ROOT / "crates").rglob("*.rs")]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in sorted(paths))
    return set(re.findall(r'(?:counter|gauge|histogram)!\(\s*"(flash_sale_[a-z_]+)"', sources))


def promtool(*arguments, folder):
    """What it said if it found fault, else None."""
    run = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    return None if run.returncode == 0 else run.stdout + run.stderr


def queries(dashboard):
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def as_rules(dashboard):
    """The queries of a dashboard as recording rules, which promtool can read. JSON is YAML."""
    rules = [{"record": f"query_{n}", "expr": query} for n, (_, query) in enumerate(queries(dashboard))]
    return json.dumps({"groups": [{"name": "queries", "rules": rules}]})


def replaced(alerts, name, expression):
    """The rules with another one for this alert, and without a `for`."""
    head, rest = re.split(rf"(?<=- alert: {name}\n)", alerts, maxsplit=1)
    rule, *others = re.split(r"(?=^\s*- alert: )", rest, maxsplit=1, flags=re.M)
    rule = re.sub(r"^(\s*expr: ).*$", lambda line: line.group(1) + expression, rule, flags=re.M)
    rule = re.sub(r"^\s*for: .*\n", "", rule, flags=re.M)
    return head + rule + "".join(others)


def problems_of_rules(alerts, tests, config, dashboards):
    """What promtool finds, and what its tests do not find."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        write = lambda name, text: Path(folder, name).write_text(text, encoding="utf-8")
        write("alerts.yml", alerts)
        write("alerts_test.yml", tests)
        write("prometheus.yml", config)
        found.append(promtool("check", "config", "prometheus.yml", folder=folder))
        for dashboard in dashboards:
            write("queries.yml", as_rules(dashboard))
            found.append(promtool("check", "rules", "queries.yml", folder=folder))
        found.append(promtool("test", "rules", "alerts_test.yml", folder=folder))
        found = [fault for fault in found if fault]
        if found:
            return found
        for name in re.findall(r"^\s*- alert: (\w+)$", alerts, re.M):
            write("alerts.yml", replaced(alerts, name, "vector(0) > 1"))
            if not promtool("test", "rules", "alerts_test.yml", folder=folder):
                found.append(f"alerts_test.yml does not notice if {name} never fires")
            if not re.search(rf"alertname: {name}\b[^a-z]*eval_time: \w+[^a-z]*exp_alerts: \[\]", tests):
                found.append(f"alerts_test.yml has no case in which {name} is silent")
    return found


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
    if shutil.which("promtool"):
        self_test_of_rules()
    print("each kind of drift is found")


def self_test_of_rules():
    rules = "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: up == 0\n  - alert: B\n    expr: up == 2\n"
    expected = "exp_alerts: [{exp_labels: {i: a}}]"
    case = "- interval: 1s\n  input_series: [{series: 'up{i=\"a\"}', values: '1 0 2'}]\n  alert_rule_test:\n"
    for name, when in (("A", "1s"), ("B", "2s")):
        case += f"  - {{alertname: {name}, eval_time: {when}, {expected}}}\n"
        case += f"  - {{alertname: {name}, eval_time: 0s, exp_alerts: []}}\n"
    tests = "rule_files: [alerts.yml]\nevaluation_interval: 1s\ntests:\n" + case
    config = "rule_files: [alerts.yml]\n"
    dashboard = {"panels": [{"title": "t", "targets": [{"expr": "sum(up)"}]}]}
    sound = problems_of_rules(rules, tests, config, [dashboard])
    assert sound == [], sound
    assert problems_of_rules(rules.replace("== 0", "== 3"), tests, config, [dashboard])
    assert problems_of_rules(rules.replace("== 0", "="), tests, config, [dashboard])
    assert problems_of_rules(rules, tests, "rule_files: alerts.yml\n", [dashboard])
    assert problems_of_rules(rules, tests, config, [{"panels": [{"title": "t", "targets": [{"expr": "sum(up"}]}]}])
    blind = "\n".join(line for line in tests.split("\n") if "B, eval_time: 2s" not in line)
    said = problems_of_rules(rules, blind, config, [])
    assert said == ["alerts_test.yml does not notice if B never fires"], said
    lax = "\n".join(line for line in tests.split("\n") if "B, eval_time: 0s" not in line)
    said = problems_of_rules(rules, lax, config, [])
    assert said == ["alerts_test.yml has no case in which B is silent"], said


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    without_promtool = sys.argv[1:] == ["--without-promtool"]
    if os.environ.get("ALLOW_MISSING") and not shutil.which("promtool"):
        without_promtool = True
    if not without_promtool and not shutil.which("promtool"):
        sys.exit("promtool is missing: scripts/setup.sh proof installs it (or --without-promtool)")
    dashboards = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
    read = lambda name: (ROOT / name).read_text(encoding="utf-8")
    shown = [path.read_text(encoding="utf-8") for path in dashboards]
    alerts = read("deploy/alerts.yml")
    runbooks = read("docs/operations.md") + read("docs/runbook.md")
    found = problems(alerts, runbooks, exported_metrics(), "\n".join(shown))
    if without_promtool:
        print("!!! NOT CHECKED: promtool was left out, so nobody has run the rules and their tests")
    else:
        tests, config = read("deploy/alerts_test.yml"), read("deploy/prometheus.yml")
        found += problems_of_rules(alerts, tests, config, [json.loads(text) for text in shown])
    if found:
        sys.exit("\n".join(found))
    print("alerts, their tests, runbook, dashboard and metrics agree")


main()
