#!/usr/bin/env python3
"""Holds the documents to their budgets.

    check_docs.py              checks this checkout; exit 1 and one line for each fault
    check_docs.py --self-test  plants each fault in a temporary tree and sees it caught

README.md has at most 1,300 words and docs/ at most 20,000, counted as `wc -w` does: tables and code
count. Interview, judge, exercises and what is in Chinese are not among those 20,000. The interview
answers: both files have the same 36 questions, in English with a link each, and an answer has
at most 120 words, or in Chinese 220 characters (a number or a word in Latin letters is one);
figures in English, unless they are round, stand in another document as well. The exercises: both
files have the same eight tasks, each with a hint and a solution, with the code of docs/exercises/.
Lines have at most 100 columns outside tables, code blocks and the targets of links. Every file of
docs/ is linked from docs/README.md.
"""

import pathlib
import re
import sys
import tempfile

README_WORDS, DOCS_WORDS, COLUMNS = 1_300, 20_000, 100
QUESTIONS, ANSWER_WORDS, ANSWER_CHARACTERS = 36, 120, 220
EXERCISES = 8
LEARNERS = ("interview", "judge", "exercises")
INTERVIEW, INTERVIEW_ZH = "docs/interview.md", "docs/interview.zh-CN.md"
SHEET, SHEET_ZH = "docs/exercises.md", "docs/exercises.zh-CN.md"
FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
FIGURE = re.compile(r"\d+(?:,\d{3})*,\d(?!00)\d\d|\d+\.\d+")
LINK_TARGET = re.compile(r"\]\([^)\s]*\)|<https?://[^>]*>|https?://\S+")
QUESTION = re.compile(r"^### (\d+)\. .+\n((?:(?!#).*\n?)*)", re.MULTILINE)
TASK = re.compile(r"^## (\d+)\. .+\n((?:(?!## ).*\n?)*)", re.MULTILINE)
SHOWN = re.compile(r"/(strategies|lessons|tests)/")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CHARACTER = re.compile(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+")


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


def interview_faults(root):
    languages = ((INTERVIEW, ANSWER_WORDS, "words", str.split),
                 (INTERVIEW_ZH, ANSWER_CHARACTERS, "characters", CHARACTER.findall))
    for name, most, unit, split in languages:
        answers = QUESTION.findall((root / name).read_text(encoding="utf-8"))
        if [int(number) for number, _ in answers] != list(range(1, QUESTIONS + 1)):
            yield f"{name}: the questions are not numbered 1 to {QUESTIONS}"
        for number, answer in answers:
            count = len(split(LINK_TARGET.sub("", answer)))
            if count > most:
                yield f"{name}: answer {number} has {count} {unit}, at most {most} are allowed"
        if name == INTERVIEW:
            links = [re.findall(r"\]\(([^)\s]+)\)", answer) for _, answer in answers]
    for number, english in enumerate(links, 1):
        if not english:
            yield f"{INTERVIEW}: answer {number} has no link"
        elif not any(SHOWN.search(link) for link in english):
            yield f"{INTERVIEW}: answer {number} links to no strategy, lesson or test"
    others = set((root / "docs").rglob("*.md")) - {root / INTERVIEW, root / INTERVIEW_ZH}
    known = " ".join(path.read_text(encoding="utf-8") for path in others)
    text = LINK_TARGET.sub("", (root / INTERVIEW).read_text(encoding="utf-8"))
    for figure in sorted(set(FIGURE.findall(text)) - set(FIGURE.findall(known))):
        yield f"{INTERVIEW}: {figure} stands in no other document"


def exercise_faults(root):
    texts = [(root / name).read_text(encoding="utf-8") for name in (SHEET, SHEET_ZH)]
    for name, text in zip((SHEET, SHEET_ZH), texts):
        tasks = TASK.findall(text)
        if [int(number) for number, _ in tasks] != list(range(1, EXERCISES + 1)):
            yield f"{name}: the tasks are not numbered 1 to {EXERCISES}"
        for number, task in tasks:
            if task.count("<details>") != 2 or task.count("\n</details>") != 2:
                yield f"{name}: task {number} has no hint and solution behind a fold"
    english, chinese = (CODE.findall(text.partition("## 1.")[2]) for text in texts)
    if english != chinese:
        yield f"{SHEET_ZH}: other code than in English"
    solutions = sorted((root / "docs" / "exercises").glob("solution_*.rs"))
    if english != [f"```rust\n{path.read_text(encoding='utf-8')}```" for path in solutions]:
        yield f"{SHEET}: other code than in docs/exercises/, which is what the tests grade"


def test_faults(root):
    """Every test is named in the table of proofs, by a link to its file or into its folder."""
    table = root / "docs" / "tests.md"
    text = table.read_text(encoding="utf-8") if table.exists() else ""
    for folder in ("tests", "tests/it", "tests/proof"):
        names = {path.stem for path in (root / folder).glob("*")}
        for name in sorted(names - {"main", "support"}):
            if not re.search(rf"\]\(\.\./{folder}/{name}[/.]", text):
                yield f"docs/tests.md: {folder}/{name} is not named"


def counted_docs(root):
    apart = {root / "docs" / f"{name}.md" for name in LEARNERS}
    apart.update((root / "docs").rglob("*.zh-CN.md"))
    return [path for path in sorted((root / "docs").rglob("*.md")) if path not in apart]


def faults(root):
    readme, index = root / "README.md", root / "docs" / "README.md"
    docs = sorted((root / "docs").rglob("*.md"))
    budgets = (("README.md", [readme], README_WORDS), ("docs/", counted_docs(root), DOCS_WORDS))
    yield from interview_faults(root)
    yield from exercise_faults(root)
    yield from test_faults(root)
    for name, paths, most in budgets:
        count = words(paths)
        if count > most:
            yield f"{name}: {count:,} words, at most {most:,} are allowed"
    others = [root.glob(place) for place in ("*.md", "loadtest/*.md", "examples/*.md")]
    for path in [*docs, *sorted(path for paths in others for path in paths)]:
        for number, columns in long_lines(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(root)}:{number}: {columns} columns, at most {COLUMNS}"
    links = re.findall(r"\]\(([^)#\s]+)", index.read_text(encoding="utf-8"))
    linked = {(index.parent / link).resolve() for link in links}
    for path in docs:
        if path != index and path.resolve() not in linked:
            yield f"{path.relative_to(root)}: not linked from docs/README.md"


def self_test():
    questions = [f"### {number}. Why?\n\nSo. [a](../tests/a.rs#{number})\n" for number in range(1, QUESTIONS + 1)]
    interview, chinese = "\n".join(questions), "\n".join(questions).replace("So", "因为 Redis 快")
    folded = "<details>hint\n</details>\n<details>\n```rust\nsold\n```\n</details>\n"
    sheet = "".join(f"## {number}. Sell\n\n{folded}" for number in range(1, 9))
    index = "[b](interview.md) [c](interview.zh-CN.md) [d](exercises.md) [e](exercises.zh-CN.md)\n"
    sound = {
        "README.md": "# Top\n",
        "docs/README.md": f"[a](a.md) {index}",
        SHEET: sheet,
        SHEET_ZH: sheet,
        **{f"docs/exercises/solution_{number}.rs": "sold\n" for number in range(1, 9)},
        INTERVIEW: interview,
        INTERVIEW_ZH: chinese,
        "docs/a.md": f"| {'x' * 200} |\n```\n{'x' * 200}\n```\n[a](https://{'x' * 200})\n",
        "loadtest/README.md": "# Load\n",
    }
    planted = [
        ({"README.md": "word " * 1_301}, ["README.md: 1,301 words, at most 1,300 are allowed",
                                          "README.md:1: 6505 columns, at most 100"]),
        ({"docs/judge.md": "word\n" * 20_000}, ["docs/judge.md: not linked from docs/README.md"]),
        ({"docs/a.zh-CN.md": "word\n" * 20_000},
         ["docs/a.zh-CN.md: not linked from docs/README.md"]),
        ({"docs/a.md": "word\n" * 20_000}, ["docs/: 20,005 words, at most 20,000 are allowed"]),
        ({"docs/a.md": "```\n```\n" + "x" * 101}, ["docs/a.md:3: 101 columns, at most 100"]),
        ({"loadtest/README.md": "x" * 101}, ["loadtest/README.md:1: 101 columns, at most 100"]),
        ({"examples/README.md": "x" * 101}, ["examples/README.md:1: 101 columns, at most 100"]),
        ({"docs/deep/b.md": "b\n"}, ["docs/deep/b.md: not linked from docs/README.md"]),
        ({"docs/README.md": f"a.md {index}"},
         ["docs/a.md: not linked from docs/README.md"]),
        ({INTERVIEW: interview.replace("So", "word\n" * 120, 1)},
         [f"{INTERVIEW}: answer 1 has 122 words, at most 120 are allowed"]),
        ({INTERVIEW_ZH: chinese.replace("Redis", "快" * 219, 1)},
         [f"{INTERVIEW_ZH}: answer 1 has 223 characters, at most 220 are allowed",
          f"{INTERVIEW_ZH}:3: 228 columns, at most 100"]),
        ({INTERVIEW: interview.replace("[a](../tests/a.rs#7)", "")},
         [f"{INTERVIEW}: answer 7 has no link"]),
        ({INTERVIEW: interview.replace("../tests/a.rs#7", "a.md")},
         [f"{INTERVIEW}: answer 7 links to no strategy, lesson or test"]),
        ({INTERVIEW: interview.replace("So.", "1,234 0.5 1,230,045 7,000", 1),
          "docs/a.md": "21,234 0.55 1,230,045"},
         [f"{INTERVIEW}: {figure} stands in no other document" for figure in ("0.5", "1,234")]),
        ({INTERVIEW: interview.replace("### 30.", "### 31.")},
         [f"{INTERVIEW}: the questions are not numbered 1 to {QUESTIONS}"]),
        ({SHEET: sheet.replace("## 8", "## 9")}, [f"{SHEET}: the tasks are not numbered 1 to 8"]),
        ({SHEET_ZH: sheet.replace("<details>hint", "hint", 1)},
         [f"{SHEET_ZH}: task 1 has no hint and solution behind a fold"]),
        ({SHEET_ZH: sheet.replace("sold", "bought", 1)},
         [f"{SHEET_ZH}: other code than in English"]),
        ({"docs/exercises/solution_3.rs": "lost\n"},
         [f"{SHEET}: other code than in docs/exercises/, which is what the tests grade"]),
        ({"tests/it/buying.rs": "x"}, ["docs/tests.md: tests/it is not named",
                                      "docs/tests.md: tests/it/buying is not named"]),
        ({"tests/it/buying.rs": "x", "docs/tests.md": "[a](../tests/it/buying.rs)",
          "docs/README.md": f"[a](a.md) [t](tests.md) {index}"}, []),
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
    readme, docs = words([root / "README.md"]), words(counted_docs(root))
    apart = words([root / "docs" / f"{name}.md" for name in LEARNERS])
    print(f"check_docs: README {readme:,} words, docs {docs:,} and, counted apart, {apart:,} for "
          "learners; no line too long, every file linked")


if __name__ == "__main__":
    main(sys.argv[1:])
