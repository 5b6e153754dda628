#!/usr/bin/env python3
"""Measures the first minutes with this repository: a fresh clone, an empty registry cache.

    first_minutes.py                 all three, about twenty minutes
    first_minutes.py --only run      `make run` until the first page is answered
    first_minutes.py --only change   the same again after a changed line in src/ (runs `run` first)
    first_minutes.py --only test     `make test` until it has passed

What is committed is measured, not what lies in the working tree. Each of `run` and `test` has a
clone and a CARGO_HOME of its own, which are removed afterwards; packages of the system that `make`
installs stay installed, so only the first measurement on a machine includes them. The machine
should be idle. Exits 1 if a budget is missed, 2 if something could not be measured.
"""

import argparse
import os
import pathlib
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUDGETS = {"run": 240, "change": 30, "test": 600}
TITLES = {
    "run": "`make run`, fresh clone, to the first page",
    "change": "`make run` after a changed line in src/, to the first page",
    "test": "`make test`, fresh clone, until it has passed",
}
GIVE_UP = 3600


def fail(words):
    print(f"first_minutes: {words}", file=sys.stderr)
    sys.exit(2)


def git(*words, cwd=ROOT):
    return subprocess.run(
        ["git", *words], cwd=cwd, check=True, capture_output=True, text=True
    ).stdout.strip()


def end(process):
    """With all that it has started: it has a session of its own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


class Clone:
    """A fresh clone with an empty registry cache, and `make` in it."""

    def __init__(self, folder):
        self.folder = folder / "flash-sale"
        git("clone", "--quiet", "--no-local", str(ROOT), str(self.folder))
        cargo_home = folder / "cargo"
        cargo_home.mkdir()
        own = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
        for name in ("config.toml", "config"):
            # Where crates come from is the machine's business.
            if (own / name).exists():
                shutil.copy(own / name, cargo_home / name)
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CARGO_", "RUSTC_", "FLASH_SALE_")) and name != "RUSTFLAGS"
        }
        self.environment["CARGO_HOME"] = str(cargo_home)
        self.log = folder / "log"

    def make(self, *words, **more):
        return subprocess.Popen(
            ["make", *words],
            cwd=self.folder,
            env={**self.environment, **more},
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def fail(self, words):
        tail = self.log.read_text(errors="replace").splitlines()[-20:]
        fail(words + "\n" + "\n".join(tail))

    def first_page(self):
        """Seconds from `make run` to the first page."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % free.getsockname()[1]
        began = time.monotonic()
        running = self.make("run", LISTEN_ADDR=address)
        try:
            while True:
                try:
                    with urllib.request.urlopen(f"http://{address}/", timeout=5) as answer:
                        answer.read()
                        return time.monotonic() - began
                except (urllib.error.URLError, OSError):
                    pass
                if running.poll() is not None:
                    self.fail("`make run` has ended")
                if time.monotonic() - began > GIVE_UP:
                    self.fail("there is no page")
                time.sleep(0.1)
        finally:
            end(running)

    def tested(self):
        """Seconds of `make test`."""
        began = time.monotonic()
        testing = self.make("test")
        try:
            status = testing.wait(timeout=GIVE_UP)
        except subprocess.TimeoutExpired:
            self.fail("`make test` does not end")
        finally:
            end(testing)
        if status != 0:
            self.fail(f"`make test` failed with {status}")
        return time.monotonic() - began

    def change_a_line(self):
        """Adds a constant to src/app/mod.rs."""
        file = self.folder / "src" / "app" / "mod.rs"
        file.write_text(file.read_text() + "\nconst _: &str = \"a changed line\";\n")


def machine():
    model = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True).stdout.strip()
    return (
        f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, {platform.system()} "
        f"{platform.release()}, {rustc}, commit {git('rev-parse', '--short', 'HEAD')}, "
        f"load {os.getloadavg()[0]:.1f} at the beginning"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="\n".join(__doc__.splitlines()[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=sorted(BUDGETS), action="append")
    wanted = parser.parse_args().only or list(BUDGETS)
    # So that `make` is ended and the clone removed whatever ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(machine(), flush=True)
    print("\n| what | seconds | budget |\n|---|---|---|")
    missed = False

    def report(what, seconds):
        nonlocal missed
        missed |= seconds > BUDGETS[what]
        print(f"| {TITLES[what]} | {seconds:.0f} | {BUDGETS[what]} |", flush=True)

    if "run" in wanted or "change" in wanted:
        with tempfile.TemporaryDirectory(prefix="first-minutes-") as folder:
            clone = Clone(pathlib.Path(folder))
            report("run", clone.first_page())
            if "change" in wanted:
                clone.change_a_line()
                report("change", clone.first_page())
    if "test" in wanted:
        with tempfile.TemporaryDirectory(prefix="first-minutes-") as folder:
            report("test", Clone(pathlib.Path(folder)).tested())
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
