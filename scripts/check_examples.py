#!/usr/bin/env python3
"""Judges the servers of examples/: the naive ones must be caught, the cured ones must hold.

    check_examples.py [PROGRAM]    PROGRAM is flash-sale (default: the debug build)

The cured ones are killed and started again while people buy. Each server runs in a folder of its
own, which is removed with all that it wrote. A language that is not installed is said, not run.
Where k6 is installed, it storms the first server of each kind, too, and its history is judged.
"""

import json
import os
import pathlib
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
MOST_LINES = 80
# What shows that it is installed, what starts a server, and its two files.
LANGUAGES = {
    "node": (["node", "--version"], "node", "naive.mjs", "cured.mjs"),
    "python": (["python3", "--version"], "python3", "naive.py", "cured.py"),
    # There may be a javac that only says where to get Java.
    "java": (["javac", "-version"], "java", "Naive.java", "Cured.java"),
}
STORM = ["--stock", "100", "--buyers", "1000", "--concurrency", "100", "--duplicates", "0.2"]
START_SECONDS = 120  # javac on a busy machine
IS_FREE = "import socket, sys; sys.exit(socket.socket().connect_ex(('127.0.0.1', {})) == 0)"


def runs(command):
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


class Server:
    """A server in an empty folder; its process id is written there at each start."""

    def __init__(self, folder, command, source):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.pid_file = folder / "pid"
        self.url = f"http://127.0.0.1:{port}"
        # The judge starts it again in the same way; the one before may still hold the port.
        self.start = (f"cd '{folder}' && echo $$ >pid && "
                      f"until python3 -c \"{IS_FREE.format(port)}\"; do sleep 0.1; done && "
                      f"PORT={port} exec {command} '{source}' >>said 2>&1")
        self.kill = f"kill -KILL $(cat '{self.pid_file}')"
        self.process = subprocess.Popen(["sh", "-c", self.start], start_new_session=True)

    def wait(self):
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            try:
                return urllib.request.urlopen(f"{self.url}/orders", timeout=5).close()
            except urllib.error.HTTPError:
                return None
            except OSError:
                time.sleep(0.1)
        sys.exit(f"check_examples: no answer at {self.url}: {self.process.args}")

    def end(self):
        try:
            os.kill(int(self.pid_file.read_text()), signal.SIGKILL)
        except (OSError, ValueError):
            pass
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def judge(program, server, arguments):
    ran = subprocess.run([program, "judge", server.url, "--json", *STORM, *arguments],
                         stdout=subprocess.PIPE, text=True, check=False)
    findings = json.loads(ran.stdout)["findings"] if ran.stdout.strip() else []
    return ran.returncode, {finding["kind"] for finding in findings}


def not_run(why):
    """What is missing fails `make proof`, unless ALLOW_MISSING is set."""
    if os.environ.get("PROOF") and not os.environ.get("ALLOW_MISSING"):
        sys.exit(f"check_examples: {why}; ALLOW_MISSING=1 goes on without it")
    print(f"!!! NOT RUN: {why}")


def k6_judge(program, server, folder):
    """The exit code of the judge on what k6 has recorded; None without k6."""
    k6 = shutil.which("k6", path=f"{ROOT}/.tools/venv/bin:{os.environ['PATH']}")
    if not k6:
        print("!!! NOT RUN: loadtest/judge.js needs k6, which .ci/run brings")
        return None
    settings = {"BASE_URL": server.url, "OUT_DIR": str(folder), "BUYERS": "300", "SETTLE": "2",
                "ADAPTER": str(ROOT / "crates/judge/adapters/contract.json"),
                "K6_NO_USAGE_REPORT": "true"}
    subprocess.run([k6, "run", "--quiet", str(ROOT / "loadtest/judge.js")], check=True,
                   env=os.environ | settings, stdout=subprocess.DEVNULL)
    history = [program, "judge", "--history", str(folder / "judge.jsonl")]
    return subprocess.run(history, stdout=subprocess.DEVNULL, check=False).returncode


def faults(program, language, command, naive, cured, by_k6):
    for name, expected in ((naive, 1), (cured, 0)):
        source = ROOT / "examples" / language / name
        lines = len(source.read_text(encoding="utf-8").splitlines())
        if lines > MOST_LINES:
            yield f"{source}: {lines} lines, at most {MOST_LINES}"
        # Beside the program, on a disk: where writing costs nothing, the naive ones hardly fail.
        folder = pathlib.Path(tempfile.mkdtemp(prefix="fs-example.", dir=program.parent))
        server = Server(folder, command, source)
        try:
            server.wait()
            restart = ["--kill", server.kill, "--start", server.start] if expected == 0 else []
            code, found = judge(program, server, restart)
            by_k6_too = k6_judge(program, server, folder) if by_k6 else None
        finally:
            server.end()
            shutil.rmtree(folder, ignore_errors=True)
        said = f"{language}/{name}: exit code {code}, found {', '.join(sorted(found)) or 'nothing'}"
        print(said, flush=True)
        if code != expected or ("oversold" in found) != (expected == 1):
            yield said
        if by_k6_too is not None:
            said = f"{language}/{name}, stormed by k6: exit code {by_k6_too}"
            print(said, flush=True)
            if by_k6_too != expected:
                yield said


def main(arguments):
    if len(arguments) > 1 or arguments[:1] == ["--help"]:
        sys.exit(__doc__)
    # The servers have sessions of their own, so they have to be ended whatever ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = pathlib.Path(*arguments or [target / "debug" / "flash-sale"]).resolve()
    found, by_k6 = [], True
    for language, (installed, *how) in LANGUAGES.items():
        if runs(installed):
            found += faults(program, language, *how, by_k6)
            by_k6 = False
        else:
            not_run(f"examples/{language} needs {installed[0]}, which is not here")
    if found:
        sys.exit("\n".join(["check_examples: not as expected:", *found]))
    print("check_examples: what ran is as expected")


if __name__ == "__main__":
    main(sys.argv[1:])
