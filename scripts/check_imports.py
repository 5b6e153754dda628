#!/usr/bin/env python3
"""Checks that imports point one way only, in src/ and in every crate of crates/.

1. `src/lib.rs` is the map: it lists the modules in reading order, and a module may use only those
   that stand below it. `src/main.rs` and `src/lib.rs` may use everything.
2. No two files import each other, directly or through others, inside folders either; a crate's
   lib.rs is one of them.

What counts is any path that starts at `crate`, `super`, `self` or a child module, in a `use` or in
the middle of an expression. Comments, strings and test modules at the end of a file do not count
for the second rule.

    check_imports.py [FOLDER]      checks FOLDER/src and FOLDER/crates/*/src (default: this checkout);
                                   exit 1 and one line for each violation
    check_imports.py --self-test   plants violations in a temporary tree and sees each of them caught
"""

import pathlib
import re
import sys
import tempfile

# What has to be skipped, in the order in which it has to be tried. A lifetime such as 'a is no
# character literal: that one always closes, so it is looked for with its closing quote.
NOT_CODE = re.compile(
    r"""
      //[^\n]*
    | (?P<block>/\*)
    | \b(?:b|c)?r(?P<hashes>\#*)".*?"(?P=hashes)
    | (?:\b[bc])?"(?:\\.|[^"\\])*"
    | \bb?'(?:\\(?:u\{[0-9a-fA-F_]+\}|x[0-9a-fA-F]{2}|.)|[^'\\\n])'
    | (?<![\w])'(?:\\(?:u\{[0-9a-fA-F_]+\}|x[0-9a-fA-F]{2}|.)|[^'\\\n])'
    """,
    re.VERBOSE | re.DOTALL,
)
TOKEN = re.compile(r"r\#\w+|[A-Za-z_]\w*|::|\S")


def blank(text):
    """The same text with a space for every other character: line numbers stay right."""
    return re.sub(r"[^\n]", " ", text)


def only_code(source):
    """The source without comments and literals. Rust's block comments nest, so they are counted."""
    parts, at = [], 0
    while found := NOT_CODE.search(source, at):
        end = found.end()
        if found.group("block"):
            depth = 1
            while depth and (mark := re.compile(r"/\*|\*/").search(source, end)):
                depth += 1 if mark.group() == "/*" else -1
                end = mark.end()
            if depth:
                end = len(source)
        parts += [source[at : found.start()], blank(source[found.start() : end])]
        at = end
    return "".join(parts) + source[at:]


def tokens(source):
    """(text, line) of every token of the code."""
    code, line, at = only_code(source), 1, 0
    result = []
    for match in TOKEN.finditer(code):
        line += code.count("\n", at, match.start())
        at = match.start()
        result.append((match.group().removeprefix("r#"), line))
    return result


def map_of(lib):
    """The modules that lib.rs declares, top first."""
    words = [word for word, _ in tokens(lib)]
    return [words[i + 1] for i in range(len(words) - 2) if words[i] == "mod" and words[i + 2] == ";"]


def names_after(words, i):
    """The first segment of every path on from token i, after `crate ::`: a name, `*` or a group."""
    if i >= len(words):
        return
    word, line = words[i]
    if word != "{":
        yield word, line
        return
    depth, expects_name = 0, False
    for word, line in words[i:]:
        if word == "{":
            depth += 1
            expects_name = depth == 1
        elif word == "}":
            depth -= 1
            if depth == 0:
                return
        elif depth == 1 and word == ",":
            expects_name = True
        elif depth == 1 and expects_name:
            yield word, line
            expects_name = False


def uses(source, depth):
    """(name, line) for every name that the source takes from the crate's root. `depth` is how many
    modules deep the file stands: 1 for src/a.rs and src/a/mod.rs, 2 for src/a/b.rs. Inline modules
    add to it while they last."""
    words = tokens(source)
    braces = []  # for each open brace: whether it opened an inline module
    i = 0
    while i < len(words):
        word = words[i][0]
        if word == "{":
            braces.append(i >= 2 and words[i - 2][0] == "mod")
        elif word == "}" and braces:
            braces.pop()
        elif word in ("crate", "super") and i + 1 < len(words) and words[i + 1][0] == "::":
            climbs = 0
            while i + 1 < len(words) and words[i][0] == "super" and words[i + 1][0] == "::":
                climbs += 1
                i += 2
            if word == "crate":
                i += 2
            if word == "crate" or climbs == depth + sum(braces):
                yield from names_after(words, i)
            continue
        i += 1


TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*mod \w+ \{")
USE = re.compile(r"\buse\s+([^;]+);")
PATH = re.compile(r"(?<![\w:.])[A-Za-z_]\w*(?:::\w+)+")


def leaves(tree, before=()):
    """The paths of a `use` tree: `a::{b, c::d}` has a::b and a::c::d."""
    depth, item, items = 0, "", []
    for letter in tree + ",":
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            items.append(item.strip())
            item = ""
        else:
            item += letter
    for item in filter(None, items):
        start, brace, group = item.partition("{")
        path = before + tuple(re.findall(r"\w+|\*", re.sub(r"\bas\s+\w+", "", start)))
        if brace:
            yield from leaves(group.rstrip()[:-1], path)
        else:
            yield path


def modules_of(src):
    """The files of a crate by the module that each is; the crate's root is ()."""
    modules = {}
    for file in sorted(src.rglob("*.rs")):
        parts = file.relative_to(src).with_suffix("").parts
        if parts[0] != "bin" and parts != ("main",):
            modules[parts[:-1] if parts[-1] in ("mod", "lib") else parts] = file
    return modules


def imported(module, source, modules):
    """The modules whose files a file imports from."""
    code = only_code(source)
    if tests := TEST_MODULE.search(code):
        code = code[: tests.start()]
    paths = [path for use in USE.finditer(code) for path in leaves(use[1])]
    paths += [tuple(path[0].split("::")) for path in PATH.finditer(USE.sub("", code))]
    for path in paths:
        base = list(module)
        if path[0] == "crate":
            base = []
        elif path[0] not in ("self", "super") and (*module, path[0]) not in modules:
            continue
        while path and path[0] in ("crate", "self", "super"):
            base = base[:-1] if path[0] == "super" else base
            path = path[1:]
        target = (*base, *path)
        while target and target not in modules:
            target = target[:-1]
        if target != module:
            yield target


def circles(src):
    """Files that import each other, as a way around: a, b, …, a. A tangle shows one way; the next
    run, another."""
    modules = modules_of(src)
    arrows = {
        module: sorted(set(imported(module, file.read_text(encoding="utf-8"), modules)))
        for module, file in modules.items()
    }
    seen, found = set(), []

    def walk(module, path):
        if module in path:
            found.append([modules[step] for step in (*path[path.index(module) :], module)])
        elif module not in seen:
            for target in arrows[module]:
                walk(target, (*path, module))
            seen.add(module)

    for module in arrows:
        walk(module, ())
    return found


def check(root):
    """One line of text for each violation under root/src."""
    src = root / "src"
    order = map_of((src / "lib.rs").read_text(encoding="utf-8"))
    violations = []
    for file in sorted(src.rglob("*.rs")):
        parts = list(file.relative_to(src).with_suffix("").parts)
        if parts in (["main"], ["lib"]) or parts[0] == "bin":
            continue
        if parts[-1] == "mod":
            parts.pop()
        shown = file.relative_to(root)
        module = parts[0]
        if module not in order:
            violations.append(f"{shown}:1: module `{module}` is not on the map; declare it in src/lib.rs")
            continue
        for name, line in uses(file.read_text(encoding="utf-8"), len(parts)):
            if name in order:
                if order.index(name) < order.index(module):
                    violations.append(
                        f"{shown}:{line}: `{module}` uses `{name}`, which stands above it in src/lib.rs; "
                        "move what is shared down, or pass it in"
                    )
            elif name != "self":
                violations.append(
                    f"{shown}:{line}: `{module}` uses `{name}` of the crate's root, which stands above everything; "
                    "name the module that defines it"
                )
    return violations


def check_circles(root):
    """One line of text for each circle of files, in every crate under root."""
    lines = []
    for src in [root / "src", *sorted(root.glob("crates/*/src"))]:
        for circle in circles(src):
            around = " → ".join(str(file.relative_to(root)) for file in circle)
            lines.append(f"{around}: these files import each other; move what they share into one that imports neither")
    return lines


def self_test():
    lib = "//! The map.\npub mod top; // first\n/// pub mod ghost;\npub(crate) mod middle;\nmod bottom;\n"
    # (file, source, the lines on which a violation must be seen)
    cases = [
        ("top.rs", "use crate::middle::x;\nuse crate::{bottom, middle};\n", []),
        ("middle.rs", "use crate::bottom;\nuse crate::middle::own;\nuse crate::{self, bottom::{a, top}};\n", []),
        ("middle.rs", "use crate::top;\n", [1]),
        ("middle.rs", "use crate::{\n    bottom::{a, b},\n    top::{c},\n};\n", [3]),
        ("middle.rs", "fn f() {\n    let x = crate::top::f();\n}\n", [2]),
        ("middle.rs", "use crate\n    ::top;\n", [2]),
        ("middle.rs", "use super::top;\n", [1]),
        ("middle.rs", "use crate::*;\n", [1]),
        ("middle.rs", "use crate::Thing;\n", [1]),
        ("middle.rs", "macro_rules! m { () => { $crate::top::f() } }\n", [1]),
        ("middle/deep.rs", "use super::other;\nuse super::super::bottom;\nuse super::super::top;\n", [3]),
        ("middle/mod.rs", "pub mod deep;\nmod tests {\n    use super::top;\n    use super::super::top;\n}\n", [4]),
        ("middle/mod.rs", "mod tests {\n    use super::*;\n}\nuse super::top;\n", [4]),
        ("bottom.rs", "pub(crate) fn f() {}\npub(in crate::bottom) fn g() {}\n", []),
        ("bottom.rs", "// crate::top\n/* /* crate::top */ crate::top */\n/// [`crate::top`]\nfn f() {}\n", []),
        ("bottom.rs", 'const A: &str = "crate::top \\" crate::top";\nconst B: &str = r#"a " crate::top"#;\n', []),
        ("bottom.rs", "fn f<'a>(c: &'a u8) -> bool { *c == b'\"' }\nuse crate::top;\n", [2]),
        ("bottom.rs", "fn f(c: char) -> bool { c == '\\'' || c == '\"' || c == '{' }\nuse crate::middle;\n", [2]),
        ("bottom.rs", 'const A: &[u8] = br"\\";\nuse crate::r#top;\n', [2]),
        ("stray.rs", "fn f() {}\n", [1]),
        ("main.rs", "use crate::top;\n", []),
        ("bin/tool.rs", "use crate::top;\n", []),
    ]
    failed = 0
    for name, source, expected in cases:
        with tempfile.TemporaryDirectory(prefix="check-imports-") as folder:
            root = pathlib.Path(folder)
            file = root / "src" / name
            file.parent.mkdir(parents=True)
            (root / "src" / "lib.rs").write_text(lib, encoding="utf-8")
            file.write_text(source, encoding="utf-8")
            seen = [int(line.split(":")[1]) for line in check(root)]
        if seen != expected:
            failed += 1
            print(f"self-test: {name}: expected violations on lines {expected}, saw {seen}, in:\n{source}")
    # (files of a folder, how many circles must be seen)
    rounds = [
        ({"x.rs": "use super::y::f;\n", "y.rs": "use super::z::g;\n", "z.rs": "fn g() {}\n"}, 0),
        ({"x.rs": "use super::y::f;\n", "y.rs": "use crate::a::x::g;\n"}, 1),
        ({"x.rs": "use super::{y::{f, h}, z};\n", "y.rs": "fn f() { super::z::g() }\n", "z.rs": "use super::x;\n"}, 1),
        ({"mod.rs": "pub use x::f;\n", "x.rs": "use super::Shared;\n"}, 1),
        ({"mod.rs": "mod x;\n", "x.rs": "use super::Shared;\n"}, 0),
        ({"x.rs": "use super::y;\n", "y.rs": "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::x;\n}\n"}, 0),
        ({"../lib.rs": "mod a;\npub use a::f;\n", "mod.rs": "use crate::Shared;\n"}, 1),
        ({"../lib.rs": "mod a;\npub use a::f;\n", "x.rs": "fn f() { super::super::shared() }\n",
          "mod.rs": "use self::x::f;\n"}, 1),
        ({"../lib.rs": "mod a;\npub use a::f;\n", "mod.rs": "use other::Shared;\nuse crate::a::x;\n"}, 0),
        ({"x.rs": "use super::y as other;\n", "y.rs": "// super::x\nfn f() -> self::x::G {}\n"}, 0),
    ]
    for files, expected in rounds:
        with tempfile.TemporaryDirectory(prefix="check-imports-") as folder:
            root = pathlib.Path(folder)
            (root / "crates/one/src/a").mkdir(parents=True)
            (root / "src").mkdir()
            for name, source in {"mod.rs": "", **files}.items():
                (root / "crates/one/src/a" / name).write_text(source, encoding="utf-8")
            seen = check_circles(root)
        if len(seen) != expected:
            failed += 1
            print(f"self-test: expected {expected} circle(s), saw {seen}, in:\n{files}")
    if failed:
        return 1
    print(f"check_imports self-test: {len(cases) + len(rounds)} planted cases, all judged rightly")
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) > 2 or sys.argv[1:2] and sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else pathlib.Path(__file__).resolve().parent.parent
    violations = check(root) + check_circles(root)
    for line in violations:
        print(line)
    if violations:
        print(f"{len(violations)} import(s) point the wrong way")
        return 1
    print("imports point downwards only, and no files import each other")
    return 0


if __name__ == "__main__":
    sys.exit(main())
