#!/usr/bin/env python3
"""Holds Rust and Lua to their sizes: functions of 70 lines, files of 500, lines of 100 columns; the
lab's strategies to 80 lines of code, 60 in the median, its lessons to 150.

    check_sizes.py              checks this checkout; exit 1 and one line for each fault
    check_sizes.py --self-test  plants each fault in a temporary tree and sees it caught

Comments of pages, scripts, YAML and settings have 100 columns too, as have Python's docstrings;
indented examples may be longer.
Everything counts: comments, tests, blank lines; of strategies and lessons only code. A function
reaches from the line with its name to the brace (Lua: `end`) in the same column, as rustfmt lays it
out. EXCEPTIONS names what may be larger, and why; one that is not needed any more is a fault, too.
"""

import ast
import pathlib
import re
import statistics
import sys
import tempfile

FUNCTION_LINES, FILE_LINES, COLUMNS = 70, 500, 100
# Files, the most lines of code in one of them, and in the median.
SHORT = (("crates/lab/src/strategies/*.rs", 80, 60), ("crates/lab/src/lessons/b[01]*.rs", 150, 150))
FOLDERS = ("benches", "crates", "src", "tests")

# A folder with its slash, a file, or "file function": the reason.
EXCEPTIONS = {}

COMMENT = re.compile(r"\s*(?:#|//|/?\*\*?|--) \S")
COMMENTED = (
    "static/**/*.js", "static/css/*.css", "loadtest/**/*.js", "tests/**/*.mjs", "examples/*/*.*",
    "scripts/*.py", "scripts/*.sh", "scripts/*.mjs", "deploy/*", "deploy/k8s/*.yaml",
    ".github/**/*.yml", "crates/*/Cargo.toml", "crates/lab/templates/*.css", "*.yml",
    ".env.example", ".ci/run", "Makefile", "Dockerfile", "*.toml",
)

BEGIN = {
    ".rs": re.compile(r"(\s*)(?:pub(?:\([^)]*\))? )?(?:(?:const|async|unsafe) )*fn (\w+)"),
    ".lua": re.compile(r"(\s*)(?:local )?(?:function |register\(')(\w+)"),
}
END = {".rs": ("}",), ".lua": ("end", "end)")}


def functions(kind, lines):
    """(name, first line, lines) of every function that ends in the column where it begins."""
    begun = {}
    for number, line in enumerate(lines, 1):
        indent = re.match(r"\s*", line)[0]
        if match := BEGIN[kind].match(line):
            begun[indent] = (match[2], number)
        if line.strip() in END[kind] and indent in begun:
            name, first = begun.pop(indent)
            yield name, first, number - first + 1
        elif line.endswith((";", "}", "end")):
            begun.pop(indent, None)  # on one line, or without a body


def oversized(root):
    """(what may be excepted, where, fault) of everything that is too large."""
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.*"))]
    for path in [*paths, *root.glob("build.rs")]:
        if path.suffix not in BEGIN:
            continue
        name = path.relative_to(root).as_posix()
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > FILE_LINES:
            yield name, name, f"{len(lines)} lines, at most {FILE_LINES}"
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS:
                yield name, f"{name}:{number}", f"{len(line)} columns, at most {COLUMNS}"
        for function, first, count in functions(path.suffix, lines):
            if count > FUNCTION_LINES:
                fault = f"{function} has {count} lines, at most {FUNCTION_LINES}"
                yield f"{name} {function}", f"{name}:{first}", fault


def lines_of_code(path):
    lines = path.read_text(encoding="utf-8").split("#[cfg(test)]")[0].splitlines()
    return sum(bool(line.strip()) and not line.strip().startswith("//") for line in lines)


def long_lab_files(root):
    for pattern, most, median in SHORT:
        sizes = {path.relative_to(root).as_posix(): lines_of_code(path)
                 for path in sorted(root.glob(pattern)) if path.name != "mod.rs"}
        for name, size in sizes.items():
            if size > most:
                yield f"{name}: {size} lines of code, at most {most}"
        if sizes and statistics.median(sizes.values()) > median:
            yield f"{pattern}: {statistics.median(sizes.values())} lines of code in the median"


def docstring_lines(text):
    """The numbers of the lines of docstrings that are not indented within them."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            words = node.body[0].value
            for number in range(words.lineno, words.end_lineno + 1):
                if not lines[number - 1].startswith(" " * (words.col_offset + 1)):
                    yield number


def long_comments(root):
    for path in sorted({path for pattern in COMMENTED for path in root.glob(pattern)}):
        if not path.is_file():
            continue
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        prose = set(docstring_lines(text)) if path.suffix == ".py" else ()
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > COLUMNS and (number in prose or COMMENT.match(line)):
                yield f"{name}:{number}: {len(line)} columns, at most {COLUMNS}"


def faults(root, exceptions):
    yield from long_comments(root)
    yield from long_lab_files(root)
    needed = set()
    for what, where, fault in oversized(root):
        path = what.split(" ")[0]
        named = [key for key in exceptions
                 if key == what or key == path or key.endswith("/") and path.startswith(key)]
        if not named:
            yield f"{where}: {fault}"
        needed.update(named)
    for key in exceptions:
        if key not in needed:
            yield f"{key}: nothing there is too large any more; remove it from EXCEPTIONS"


def self_test():
    def function(lines):
        return "    pub async fn long() {\n" + "        x;\n" * (lines - 2) + "    }\n"

    def lua(lines):
        return "register('long', function(keys)\n" + "  x()\n" * (lines - 2) + "end)\n"

    nested = "fn outer() {\n    fn inner() {}\n    fn declared();\n" + "    x;\n" * 67 + "}\n"
    cases = [
        ({"src/a.rs": function(70) + "x\n" * 430, "src/a.lua": lua(70)}, {}, []),
        ({"src/a.rs": function(71)}, {}, ["src/a.rs:1: long has 71 lines, at most 70"]),
        ({"src/a.rs": nested}, {}, ["src/a.rs:1: outer has 71 lines, at most 70"]),
        ({"src/deep/a.lua": lua(71)}, {}, ["src/deep/a.lua:1: long has 71 lines, at most 70"]),
        ({"tests/a.rs": "x\n" * 501}, {}, ["tests/a.rs: 501 lines, at most 500"]),
        ({"build.rs": "// " + "x" * 98}, {}, ["build.rs:1: 101 columns, at most 100"]),
        ({"static/js/a.js": f"// {'x' * 98}\n//   {'x' * 98}\n{'x' * 101}"}, {},
         ["static/js/a.js:1: 101 columns, at most 100"]),
        ({"static/css/a.css": f"/* {'x' * 98}\n * {'x' * 98}"}, {},
         ["static/css/a.css:1: 101 columns, at most 100", "static/css/a.css:2: 101 columns, at most 100"]),
        ({"scripts/a.py": f'"""a\n\n    {"x" * 99}\n{"x" * 101}\n"""\nb = "{"x" * 99}"\n\n\n'
                          f'def c():\n    """{"x" * 97}\n        {"x" * 99}"""\n'}, {},
         ["scripts/a.py:4: 101 columns, at most 100", "scripts/a.py:10: 104 columns, at most 100"]),
        ({".env.example": f"# {'x' * 99}"}, {}, [".env.example:1: 101 columns, at most 100"]),
        ({"crates/lab/src/strategies/a.rs": "x;\n" * 81 + "// y\n"}, {},
         ["crates/lab/src/strategies/a.rs: 81 lines of code, at most 80",
          "crates/lab/src/strategies/*.rs: 81 lines of code in the median"]),
        ({"crates/lab/src/lessons/b01_a.rs": "x;\n" * 151}, {},
         ["crates/lab/src/lessons/b01_a.rs: 151 lines of code, at most 150",
          "crates/lab/src/lessons/b[01]*.rs: 151 lines of code in the median"]),
        ({"src/a.rs": function(71)}, {"src/a.rs long": "why"}, []),
        ({"crates/a/src/a.rs": function(501)}, {"crates/a/": "why"}, []),
        ({"crates/ab/a.rs": function(71)}, {"crates/a/": "why"},
         ["crates/ab/a.rs:1: long has 71 lines, at most 70",
          "crates/a/: nothing there is too large any more; remove it from EXCEPTIONS"]),
    ]
    for files, exceptions, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            found = list(faults(root, exceptions))
        if found != expected:
            sys.exit(f"check_sizes: self-test failed\n  expected {expected}\n  found    {found}")
    print("check_sizes: self-test passed")


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if arguments:
        sys.exit(__doc__)
    found = list(faults(pathlib.Path(__file__).resolve().parent.parent, EXCEPTIONS))
    if found:
        sys.exit("\n".join(found))
    print(f"check_sizes: Rust and Lua keep to their sizes; exceptions: {len(EXCEPTIONS)}")


if __name__ == "__main__":
    main(sys.argv[1:])
