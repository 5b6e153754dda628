#!/usr/bin/env python3
"""Checks that a document in Chinese says what the one in English says, as far as that can be seen.

    check_translations.py              checks this checkout; exit 1 and one line for each difference
    check_translations.py --self-test  plants each difference in a temporary tree and sees it caught

X.zh-CN.md stands beside X.md, and each links to the other. Both have the same headings by level,
the same code blocks (comments of shell commands and blocks without a language may differ), the same
links in the same sections, in any order, and tables of the same size with the same code and
numbers. A link to a document that is translated leads to the translation. README and what learners
read are translated; other documents may be.
"""

import collections
import pathlib
import re
import sys
import tempfile

sys.dont_write_bytecode = True
from check_links import CODE, FENCE, HEADING, WEB, anchors, blank

TRANSLATED = ("README", "docs/exercises", "docs/interview", "docs/judge", "docs/lab", "docs/lessons",
              "examples/README")
PLACES = ("*.zh-CN.md", "docs/*.zh-CN.md", "examples/*.zh-CN.md")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)|<(https?://[^>]+)>")
ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
LEVEL = re.compile(r"^(#{1,6}) ", re.MULTILINE)
EXACT = re.compile(r"`[^`]+`|\d[\d,.]*\d|\d")


def chinese(english):
    return english.with_name(english.name.replace(".md", ".zh-CN.md"))


def place(link, document):
    """Where a link leads, alike for both languages: the English file and the heading's number."""
    if WEB.match(link):
        return link
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    english = target.with_name(target.name.replace(".zh-CN.md", ".md"))
    if anchor and chinese(english).exists():
        headings = anchors(target)
        anchor = headings.index(anchor) if anchor in headings else anchor
    return f"{english.name}#{anchor}" if anchor != "" else english.name


def blocks(text):
    """(language, lines to compare) of each code block."""
    for language, code in BLOCK.findall(text):
        code = re.sub(r"(?:^|\s+)#.*", "", code) if language == "sh" else code
        yield language, [line for line in code.splitlines() if line.strip()] if language else None


def links(document, text):
    """For each section, how often it links to each place."""
    for section in LEVEL.split(CODE.sub(blank, text))[::2]:
        found = LINK.findall(section)
        yield collections.Counter(place(link or web, document) for link, web in found)


def cells(row):
    """The code and the numbers of each cell: the words around them may be in another order."""
    return [sorted(EXACT.findall(LINK.sub("]", cell))) for cell in row.split("|")[1:-1]]


def untranslated(document, text):
    """Links of a Chinese document, but the one to its own original, that could lead to Chinese."""
    for link, _ in LINK.findall(text):
        path = link.partition("#")[0]
        target = (document.parent / path).resolve()
        own = chinese(target) == document
        if path.endswith(".md") and not WEB.match(link) and not own and chinese(target).exists():
            yield f"links to {link}, which has a translation"


def differences(english):
    documents = (english, chinese(english))
    whole = [document.read_text(encoding="utf-8") for document in documents]
    texts = [FENCE.sub(blank, text) for text in whole]
    if LEVEL.findall(texts[0]) != LEVEL.findall(texts[1]):
        yield "other headings"
    if documents[1].name not in texts[0] or f"]({english.name})" not in texts[1]:
        yield "the two do not link to each other"
    yield from untranslated(documents[1], texts[1])
    found = [list(blocks(text)) for text in whole]
    if len(found[0]) != len(found[1]):
        yield "another number of code blocks"
    for number, (first, second) in enumerate(zip(*found), 1):
        if first != second:
            yield f"code block {number} differs"
    for number, (first, second) in enumerate(zip(*map(links, documents, texts))):
        for target in (first - second) + (second - first):
            yield f"section {number}: {target} is linked in only one, or oftener"
    rows = [ROW.findall(text) for text in texts]
    if len(rows[0]) != len(rows[1]):
        yield f"{len(rows[1])} rows in tables, in English {len(rows[0])}"
    for first, second in zip(*rows):
        if cells(first) != cells(second):
            yield f"other cells, code or numbers than in English: {second[:80]}"


def faults(root):
    root = root.resolve()
    for name in TRANSLATED:
        if not chinese(root / f"{name}.md").exists():
            yield f"{name}.zh-CN.md is missing"
    for path in sorted(path for place in PLACES for path in root.glob(place)):
        english = path.with_name(path.name.replace(".zh-CN.md", ".md"))
        for difference in differences(english):
            yield f"{path.relative_to(root)}: {difference}"


def self_test():
    english = "# A\n[zh]({zh})\n## B\n```sh\nmake x # now\n```\n| a | `b` 7 |\n|---|---|\n[b](#b) <http://x.y>\n"
    sound = {f"{name}.md": english.format(zh=chinese(pathlib.Path(name + ".md")).name) for name in TRANSLATED}
    sound |= {f"{name}.zh-CN.md": f"# 甲\n[en]({pathlib.Path(name).name}.md)\n## 乙\n```sh\nmake x # 现在\n```\n"
              "| 子 | 7 个 `b` |\n|---|---|\n<http://x.y> [乙](#乙)\n" for name in TRANSLATED}
    chinese_readme = sound["README.zh-CN.md"]
    planted = [
        ("", "", []),
        ("## 乙", "乙", ["other headings", "section 1: http://x.y is linked in only one, or oftener",
                         "section 1: README.md#乙 is linked in only one, or oftener"]),
        ("[en](README.md)", "", ["the two do not link to each other",
                                 "section 1: README.md is linked in only one, or oftener"]),
        ("make x", "make y", ["code block 1 differs"]),
        ("```sh\nmake x # 现在\n```", "", ["another number of code blocks"]),
        ("7 个", "8 个", ["other cells, code or numbers than in English: | 子 | 8 个 `b` |"]),
        ("| 子 |", "| 子 | 丑 |", ["other cells, code or numbers than in English: | 子 | 丑 | 7 个 `b` |"]),
        ("<http://x.y>", "[a](docs/lab.md)", ["links to docs/lab.md, which has a translation",
                                             "section 2: http://x.y is linked in only one, or oftener",
                                             "section 2: lab.md is linked in only one, or oftener"]),
    ]
    for old, new, expected in planted:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in (sound | {"README.zh-CN.md": chinese_readme.replace(old, new)}).items():
                (root / name).parent.mkdir(exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            found = list(faults(root))
        if found != [f"README.zh-CN.md: {difference}" for difference in expected]:
            sys.exit(f"check_translations: self-test failed\n  expected {expected}\n  found    {found}")
    print("check_translations: self-test passed")


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if arguments:
        sys.exit(__doc__)
    found = list(faults(pathlib.Path(__file__).resolve().parent.parent))
    if found:
        sys.exit("\n".join(found))
    print("check_translations: the documents in Chinese have what those in English have")


if __name__ == "__main__":
    main(sys.argv[1:])
