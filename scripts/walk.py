#!/usr/bin/env python3
"""The path of a purchase in both READMEs: its files, in order, with their code lines.

    walk.py              checks that every file and function is there, that the counts are right,
                         that the path is short (at most 12 files and 2,000 code lines), and that
                         nothing is left out: every file that the path imports is on it, or in the
                         table of files beside it, with the reason
    walk.py --write      writes the counts into both
    walk.py --self-test  leaves things out in memory, and sees that noticed

Imports count below FOLDERS; a call of `functions::NAME` counts as its wrapper and its Lua. Code
lines are neither blank nor comment nor test.
"""

import pathlib
import re
import sys

sys.dont_write_bytecode = True  # nothing is left in the checkout
from check_imports import imported, modules_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src/admission/", "src/catalog/", "src/http/", "src/orders/", "src/redis/")
LIBRARY, WRAPPERS = "src/redis/library/", "src/redis/functions/"
MOST_FILES, MOST_LINES = 12, 2_000
STEP = re.compile(r"^\| \d+ \| \[(?P<file>[^\]]+)\]\((?P=file)\) \| `(?P<name>\w+)` \| (?P<lines>\d+) \|", re.M)
TOTAL = re.compile(r"^\| \| \*\*(?P<files>\d+) (?P<unit>[^*]+)\*\* \| \| \*\*(?P<lines>[\d,]+)\*\* \|", re.M)
BESIDE = re.compile(r"^\| beside the path \| .*\n\|.*\n((?:\|.*\n)+)", re.M)
LINK = re.compile(r"\]\((src/[^)]+)\)")


def code_lines(source):
    lines = source.split("#[cfg(test)]")[0].splitlines()
    return sum(1 for line in map(str.strip, lines) if line and not line.startswith(("//", "--")))


def defines(name):
    return re.compile(rf"\b(?:fn|struct|enum) {name}\b|register\('{name}'")


def needs(path):
    """The files below FOLDERS that these files of the path import or call."""
    modules = modules_of(ROOT / "src")
    names = {str(file.relative_to(ROOT)): module for module, file in modules.items()}
    found = {LIBRARY + "prelude.lua"} if any(file.endswith(".lua") for file in path) else set()
    for file in path:
        source = (ROOT / file).read_text(encoding="utf-8")
        if file in names:
            targets = imported(names[file], source, modules)
            found |= {str(modules[target].relative_to(ROOT)) for target in targets}
        for called in re.findall(r"\bfunctions::(\w+)\(", source):
            for other in [*(ROOT / WRAPPERS).glob("*.rs"), *(ROOT / LIBRARY).glob("*.lua")]:
                if re.search(rf"\bfn {called}\b|register\('{called}'", other.read_text(encoding="utf-8")):
                    found.add(str(other.relative_to(ROOT)))
    return {file for file in found if file.startswith(FOLDERS)} - set(path)


def left_out(text):
    """Faults of the table of files beside the path."""
    path = [step["file"] for step in STEP.finditer(text)]
    table = BESIDE.search(text)
    rows = table[1].splitlines() if table else []
    beside = {file: row for row in rows for file in LINK.findall(row)}
    needed = needs(path)
    for file in sorted(needed - set(beside)):
        yield f"{file} is imported on the path: a step of it, or beside it for a reason?"
    for file in sorted(set(beside) - needed):
        yield f"{file} is not imported on the path, and need not be named beside it"
    for row in rows:
        if not row.split("|")[2].strip():
            yield f"without a reason: {row}"


def check(text):
    """The faults, the text with the right counts, and a summary."""
    wrong, lines, steps = [], 0, list(STEP.finditer(text))
    for step in steps:
        source = (ROOT / step["file"]).read_text(encoding="utf-8")
        count = code_lines(source)
        lines += count
        if not defines(step["name"]).search(source):
            wrong.append(f"{step['file']} has no {step['name']}")
        if int(step["lines"]) != count:
            wrong.append(f"{step['file']} has {count} lines, the table says {step['lines']}: scripts/walk.py --write")
            row = step[0].removesuffix(f"| {step['lines']} |") + f"| {count} |"
            text = text.replace(step[0], row)
    total = TOTAL.search(text)
    if not total or (int(total["files"]), total["lines"]) != (len(steps), f"{lines:,}"):
        wrong.append(f"the sum is {len(steps)} files, {lines:,} lines: scripts/walk.py --write")
        text = TOTAL.sub(rf"| | **{len(steps)} \g<unit>** | | **{lines:,}** |", text)
    if len(steps) > MOST_FILES or lines > MOST_LINES or not steps:
        wrong.append(f"a purchase goes through {len(steps)} files and {lines:,} lines; {MOST_FILES} and {MOST_LINES:,} are meant")
    return wrong, text, f"walk: {len(steps)} files, {lines:,} lines; {len(needs([s['file'] for s in steps]))} beside the path"


def self_test(text):
    for old, new, fault in [
        ("[orders.lua](src/redis/library/orders.lua)", "", "src/redis/library/orders.lua is imported"),
        ("[extract.rs](src/http/extract.rs)", "", "src/http/extract.rs is imported"),
        ("[extract.rs](src/http/extract.rs)", "[extract.rs](src/http/pages.rs)", "src/http/pages.rs is not imported"),
        ("`join_queue`", "`leave_queue`", "src/admission/queue.rs has no leave_queue"),
    ]:
        changed = text.replace(old, new)
        found = [*left_out(changed), *check(changed)[0]]
        if old not in text or not any(line.startswith(fault) for line in found):
            sys.exit(f"walk: self-test failed: {old} → {new!r}: {found}")
    print("walk: self-test passed")


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test((ROOT / "README.md").read_text(encoding="utf-8"))
    wrong = list(left_out((ROOT / "README.md").read_text(encoding="utf-8")))
    for name in ("README.md", "README.zh-CN.md"):
        faults, text, summary = check((ROOT / name).read_text(encoding="utf-8"))
        if arguments == ["--write"]:
            (ROOT / name).write_text(text, encoding="utf-8")
            faults, _, summary = check(text)
        wrong += [f"{name}: {fault}" for fault in faults]
    print("\n".join(wrong) or summary)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
