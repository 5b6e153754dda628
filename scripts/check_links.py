#!/usr/bin/env python3
"""Checks that relative links of documents point to files that exist, and anchors to headings.

    check_links.py              checks *.md, docs/*.md, loadtest/README.md and examples/*.md;
                                exit 1 and one line for each dead link
    check_links.py --self-test  plants dead links in a temporary tree and sees each of them caught

Addresses on the web are not asked for. Code blocks and `code` are not looked into.
"""

import pathlib
import re
import sys
import tempfile
import urllib.parse

DOCUMENTS = ("*.md", "docs/*.md", "loadtest/README.md", "examples/*.md")
FENCE = re.compile(r"^ {0,3}(```+|~~~+).*?(?:^ {0,3}\1[`~]*\s*$|\Z)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINK = re.compile(r"\]\(\s*<?([^()\s<>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
WEB = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


def blank(match):
    """Spaces for everything but line ends: line numbers stay right."""
    return re.sub(r"[^\n]", " ", match.group())


def anchors(document):
    """The anchors that GitHub gives to the headings of a document, in order."""
    found = {}
    for heading in HEADING.findall(FENCE.sub(blank, document.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        if count:
            found[f"{name}-{count}"] = 1
    return list(found)


def dead_links(root):
    """(document, line, link, why) of every link that leads nowhere."""
    root = root.resolve()
    for document in sorted(path for pattern in DOCUMENTS for path in root.glob(pattern)):
        text = CODE.sub(blank, FENCE.sub(blank, document.read_text(encoding="utf-8")))
        for match in LINK.finditer(text):
            link = match.group(1)
            if WEB.match(link):
                continue
            path, _, anchor = link.partition("#")
            target = document
            if path:
                target = (document.parent / urllib.parse.unquote(path)).resolve()
            why = None
            if path.startswith("/") or not target.is_relative_to(root):
                why = "leaves the checkout"
            elif not target.exists():
                why = "no such file"
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                why = "no such heading"
            if why:
                yield document.relative_to(root), text.count("\n", 0, match.start()) + 1, link, why


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "docs").mkdir()
        (root / "docs" / "a.md").write_text("# One `two` & three\n## Same\n## Same\n[up](../README.md#top)\n", encoding="utf-8")
        (root / "README.md").write_text(
            "# Top\n[a](docs/a.md) [a](docs/a.md#one-two--three) [a](docs/a.md#same-1) [t](#top) ![i](docs/a.md \"A\")\n"
            "[w](https://example.com/x) `[c](c.md)`\n```\n[c](c.md)\n# Not a heading\n```\n"
            "[x](missing.md)\n[y](docs/a.md#nowhere) [h](#not-a-heading)\n[z](../outside.md)\n",
            encoding="utf-8",
        )
        found = [(str(document), line, link, why) for document, line, link, why in dead_links(root)]
    expected = [
        ("README.md", 8, "missing.md", "no such file"),
        ("README.md", 9, "docs/a.md#nowhere", "no such heading"),
        ("README.md", 9, "#not-a-heading", "no such heading"),
        ("README.md", 10, "../outside.md", "leaves the checkout"),
    ]
    if found != expected:
        sys.exit(f"check_links: self-test failed\n  expected {expected}\n  found    {found}")
    print("check_links: self-test passed")


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if arguments:
        sys.exit(__doc__)
    dead = list(dead_links(pathlib.Path(__file__).resolve().parent.parent))
    for document, line, link, why in dead:
        print(f"{document}:{line}: {link}: {why}")
    if dead:
        sys.exit(1)
    print("check_links: every link leads somewhere")


if __name__ == "__main__":
    main(sys.argv[1:])
