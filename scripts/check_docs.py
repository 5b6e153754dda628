#!/usr/bin/env python3
"""Holds the documents to their budgets.

    check_docs.py              checks this checkout; exit 1 and one line for each fault
    check_docs.py --self-test  plants each fault in a temporary tree and sees it caught

README.md has at most 1,300 words and docs/ at most 20,000, counted as `wc -w` does: tables and code
count. Lines have at most 100 columns outside tables, code blocks and the targets of links. Every
file of docs/ is linked from docs/README.md.
"""

import pathlib
import re
import sys
import tempfile

README_WORDS, DOCS_WORDS, COLUMNS = 1_300, 20_000, 100
FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
LINK_TARGET = re.compile(r"\]\([^)\s]*\)|<https?://[^>]*>|https?://\S+")


def words(paths):
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def long_lines(text):
    """(number, columns) of every line that is too long."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if mark and fence is None:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = None
        elif fence is None and not line.startswith("|"):
            columns = len(LINK_TARGET.sub("", line))
            if columns > COLUMNS:
                yield number, columns


def faults(root):
    readme, index = root / "README.md", root / "docs" / "README.md"
    docs = sorted((root / "docs").rglob("*.md"))
    for name, paths, most in (("README.md", [readme], README_WORDS), ("docs/", docs, DOCS_WORDS)):
        count = words(paths)
        if count > most:
            yield f"{name}: {count:,} words, at most {most:,} are allowed"
    for path in [readme, *docs, *root.glob("loadtest/README.md")]:
        for number, columns in long_lines(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(root)}:{number}: {columns} columns, at most {COLUMNS}"
    links = re.findall(r"\]\(([^)#\s]+)", index.read_text(encoding="utf-8"))
    linked = {(index.parent / link).resolve() for link in links}
    for path in docs:
        if path != index and path.resolve() not in linked:
            yield f"{path.relative_to(root)}: not linked from docs/README.md"


def self_test():
    sound = {
        "README.md": "# Top\n",
        "docs/README.md": "[a](a.md)\n",
        "docs/a.md": f"| {'x' * 200} |\n```\n{'x' * 200}\n```\n[a](https://{'x' * 200})\n",
        "loadtest/README.md": "# Load\n",
    }
    planted = [
        ({"README.md": "word " * 1_301}, ["README.md: 1,301 words, at most 1,300 are allowed",
                                          "README.md:1: 6505 columns, at most 100"]),
        ({"docs/a.md": "word\n" * 20_000}, ["docs/: 20,001 words, at most 20,000 are allowed"]),
        ({"docs/a.md": "```\n```\n" + "x" * 101}, ["docs/a.md:3: 101 columns, at most 100"]),
        ({"loadtest/README.md": "x" * 101}, ["loadtest/README.md:1: 101 columns, at most 100"]),
        ({"docs/deep/b.md": "b\n"}, ["docs/deep/b.md: not linked from docs/README.md"]),
        ({"docs/README.md": "a.md\n"}, ["docs/a.md: not linked from docs/README.md"]),
        ({}, []),
    ]
    for change, expected in planted:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in (sound | change).items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            found = list(faults(root))
        if found != expected:
            sys.exit(f"check_docs: self-test failed\n  expected {expected}\n  found    {found}")
    print("check_docs: self-test passed")


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if arguments:
        sys.exit(__doc__)
    root = pathlib.Path(__file__).resolve().parent.parent
    found = list(faults(root))
    if found:
        sys.exit("\n".join(found))
    readme, docs = words([root / "README.md"]), words((root / "docs").rglob("*.md"))
    print(f"check_docs: README {readme:,} words, docs {docs:,}, no line too long, every file linked")


if __name__ == "__main__":
    main(sys.argv[1:])
