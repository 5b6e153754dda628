#!/usr/bin/env python3
"""Counts the instructions of a purchase's pure parts with callgrind and compares with the record.

Each part (benches/instructions) runs in a process of its own, twice, with different numbers of
repetitions; the difference, divided, is the cost of one. That hardly depends on the machine and not
at all on its load, so a regression shows where a benchmark would only waver. It depends on the
compiler and its flags: after a new rustc, record again.

    instructions.py              counts, prints a table, exits 1 if a part costs more than its record allows
    instructions.py --record     writes benches/instructions/counts.json
    instructions.py --only NAME  one part
    instructions.py --profile NAME   where the instructions of a part go, by function
    instructions.py --self-test  checks the arithmetic of this script

Exits 2 if nothing could be counted: no valgrind, or the driver does not build.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "benches" / "instructions" / "counts.json"
# How much more than recorded is a regression. Layout and inlining move by a percent for no reason.
TOLERANCE = 0.03
FEW, MANY = 200, 1200
COLLECTED = re.compile(r"Collected\s*:\s*(\d+)")


def fail(words):
    print(f"\n!!! NOT COUNTED: {words}\n", file=sys.stderr)
    sys.exit(2)


def driver():
    """Builds the driver as the program is built, and answers its path. An example, because for a
    bench cargo would build every binary as well."""
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "build", "--release", "--locked", "--example", "instructions", "--message-format=json"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        fail("the driver does not build")
    for line in built.stdout.splitlines():
        message = json.loads(line)
        target = message.get("target", {})
        if message.get("executable") and target.get("name") == "instructions":
            return message["executable"]
    fail("cargo did not say where the driver is")


def collected(text):
    found = COLLECTED.search(text)
    return int(found.group(1)) if found else None


def run(program, part, times, out="/dev/null"):
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, part, str(times)]
    ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300)
    count = collected(ran.stderr)
    if ran.returncode != 0 or count is None:
        fail(f"callgrind could not run {part}:\n{ran.stderr[-2000:]}")
    return count


def each(few, many):
    return (many - few) / (MANY - FEW)


def verdict(count, recorded):
    """What a count means beside its record: '', 'more' or 'less'."""
    if recorded is None:
        return "new"
    if count > recorded * (1 + TOLERANCE):
        return "more"
    if count < recorded * (1 - TOLERANCE):
        return "less"
    return ""


def profile(program, part):
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/callgrind.out"
        run(program, part, MANY, out)
        shown = subprocess.run(
            ["callgrind_annotate", "--auto=no", "--threshold=95", out], stdout=subprocess.PIPE, text=True
        )
        print(shown.stdout)


def rustc():
    said = subprocess.run(["rustc", "--version"], stdout=subprocess.PIPE, text=True)
    return said.stdout.strip()


def self_test():
    assert collected("==1== Events    : Ir\n==1== Collected : 123456\n") == 123456
    assert collected("nothing") is None
    assert each(1000, 1000 + 7 * (MANY - FEW)) == 7
    assert [verdict(count, 100) for count in (100, 103, 104, 97, 96)] == ["", "", "more", "", "less"]
    assert verdict(5, None) == "new"
    print("instructions.py: its arithmetic is right")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--only", metavar="NAME")
    parser.add_argument("--profile", metavar="NAME")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    if shutil.which("valgrind") is None:
        fail("valgrind is not installed, so no instruction was counted. Debian: apt-get install valgrind")
    program = driver()
    if options.profile:
        return profile(program, options.profile)
    listed = subprocess.run([program, "--list"], stdout=subprocess.PIPE, text=True, check=True)
    parts = [part for part in listed.stdout.split() if options.only in (None, part)]
    if not parts:
        fail(f"there is no part {options.only}")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"rustc": None, "instructions": {}}
    if record["rustc"] not in (None, rustc()) and not options.record:
        print(f"recorded with {record['rustc']}, counted with {rustc()}: differences may be the compiler's")
    counts, regressed = {}, []
    print(f"{'part':<28}{'instructions':>14}{'recorded':>12}")
    for part in parts:
        count = each(run(program, part, FEW), run(program, part, MANY))
        recorded = record["instructions"].get(part)
        judged = verdict(count, recorded)
        counts[part] = round(count, 1)
        shown = "" if recorded is None else f"{recorded:,.0f}"
        print(f"{part:<28}{count:>14,.0f}{shown:>12}  {judged}", flush=True)
        if judged == "more":
            regressed.append(part)
    if options.record:
        record = {"rustc": rustc(), "instructions": {**record["instructions"], **counts}}
        RECORD.write_text(json.dumps(record, indent=2) + "\n")
        print(f"written: {RECORD.relative_to(ROOT)}")
    elif regressed:
        print(f"\ncosts more than recorded: {', '.join(regressed)}")
        print("If it is meant, say why in docs/performance.md and record again: scripts/instructions.py --record")
        sys.exit(1)


if __name__ == "__main__":
    main()
