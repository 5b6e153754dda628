#!/usr/bin/env python3
"""The way of a purchase in README.md: its files, in order, with their code lines.

    walk.py            checks that every file and function is there, that the counts are right, and
                       that it is a short way: at most 12 files and 2,000 code lines
    walk.py --write    writes the counts

Code lines are neither blank nor comment nor test.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_FILES, MOST_LINES = 12, 2_000
STEP = re.compile(r"^\| \d+ \| \[(?P<file>[^\]]+)\]\((?P=file)\) \| `(?P<name>\w+)` \| (?P<lines>\d+) \|", re.M)
TOTAL = re.compile(r"^\| \| \*\*(?P<files>\d+) files\*\* \| \| \*\*(?P<lines>[\d,]+)\*\* \|", re.M)


def code_lines(source):
    lines = source.split("#[cfg(test)]")[0].splitlines()
    return sum(1 for line in map(str.strip, lines) if line and not line.startswith(("//", "--")))


def main():
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    wrong, lines, steps = [], 0, list(STEP.finditer(text))
    for step in steps:
        source = (ROOT / step["file"]).read_text(encoding="utf-8")
        count = code_lines(source)
        lines += count
        if not re.search(rf"\b(?:fn {step['name']}\b|register\('{step['name']}')", source):
            wrong.append(f"{step['file']} has no function {step['name']}")
        if int(step["lines"]) != count:
            wrong.append(f"{step['file']} has {count} lines, README says {step['lines']}: scripts/walk.py --write")
            row = step[0].removesuffix(f"| {step['lines']} |") + f"| {count} |"
            text = text.replace(step[0], row)
    total = TOTAL.search(text)
    if not total or (int(total["files"]), total["lines"]) != (len(steps), f"{lines:,}"):
        wrong.append(f"the sum is {len(steps)} files, {lines:,} lines: scripts/walk.py --write")
        text = TOTAL.sub(f"| | **{len(steps)} files** | | **{lines:,}** |", text)
    if sys.argv[1:] == ["--write"]:
        readme.write_text(text, encoding="utf-8")
        wrong = []
    if len(steps) > MOST_FILES or lines > MOST_LINES or not steps:
        wrong.append(f"a purchase goes through {len(steps)} files and {lines:,} lines; {MOST_FILES} and {MOST_LINES:,} are meant")
    print("\n".join(wrong) or f"walk: {len(steps)} files, {lines:,} lines")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
