#!/usr/bin/env python3
"""A drill on this machine: more load than rated while instances are replaced and Redis fails over.

    scripts/drill.py target/release/flash-sale                 ten minutes; the rated load is measured first
    scripts/drill.py --rate 400 --seconds 120 target/release/flash-sale

Three instances behind nginx (deploy/nginx.conf), a Redis with a replica under three Sentinels, a
Postgres; all on loopback, in a folder that is removed in the end. The rated load is 60 % of what
loadtest/breakpoint.js finds, as in docs/scale.md. The load is loadtest/soak.js: orders expire and
units come back, so that everything is at work, and an auditor looks all the while. Meanwhile an
instance is replaced every tenth of the time; Sentinel is told to fail over at two fifths, and the
primary is killed at seven tenths. The report says what was done, what buyers saw of it, and what
was checked. Exit code 0: all of it held.
"""

import argparse
import html
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
RATED, OVERLOAD = 0.6, 1.5  # of what the machine takes; of the rated load
SERVES_WITHIN, STOPS_WITHIN = 60, 10  # seconds
SAMPLE = 0.5  # seconds between two looks at the metrics
MASTER = "shop"


def say(words):
    print(f"{time.strftime('%H:%M:%S')}  {words}", flush=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url, timeout=2):
    """The status and the body of an answer; status 0 if there is none."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return 0, ""


def wait(what, holds, seconds=SERVES_WITHIN):
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds:
            raise SystemExit(f"drill: {what}: not within {seconds} s")
        time.sleep(0.1)
    return time.monotonic() - began


class Deployment:
    """Servers and instances in one folder."""

    def __init__(self, program, folder):
        self.program, self.folder, self.children = program, folder, []
        self.redis_ports = [free_port(), free_port()]
        self.sentinel_ports = [free_port() for _ in range(3)]
        self.ports = [free_port() for _ in range(3)]
        self.postgres_port, self.front_port = free_port(), free_port()
        sentinels = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        self.settings = {
            "PATH": os.environ["PATH"],
            "DATABASE_URL": f"postgres://flash_sale@127.0.0.1:{self.postgres_port}/postgres?sslmode=disable",
            "REDIS_URL": f"redis-sentinel://{sentinels}/{MASTER}",
            "TOKEN_SECRET": os.urandom(32).hex(),
            "ADMIN_TOKEN": os.urandom(32).hex(),
            "RATE_LIMIT": "off",
            "TRUST_PROXY": "127.0.0.1",
            "DRAIN_NOTICE": "3",
            "NO_COLOR": "1",
        }
        self.base = f"http://127.0.0.1:{self.front_port}"

    def spawn(self, name, command, **more):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        with (folder / "log").open("a") as log:
            child = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **more
            )
        self.children.append(child)
        return child

    def start(self):
        self.start_postgres()
        for number in range(2):
            self.start_redis(number, follows=None if number == 0 else self.redis_ports[0])
        for number, port in enumerate(self.sentinel_ports):
            conf = self.folder / f"sentinel-{number}.conf"
            conf.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {self.folder}\nsentinel monitor {MASTER} 127.0.0.1 {self.redis_ports[0]} 2\n"
                f"sentinel down-after-milliseconds {MASTER} 2000\nsentinel failover-timeout {MASTER} 5000\n"
            )
            self.spawn(f"sentinel-{number}", ["redis-server", str(conf), "--sentinel"])
        for port in self.sentinel_ports:
            wait("the Sentinels know each other", lambda port=port: "slaves=1,sentinels=3" in redis(port, "INFO", "sentinel"))
        self.instances = [self.start_instance(number) for number in range(3)]
        lines, ports = [], iter(self.ports)
        for line in (ROOT / "deploy/nginx.conf").read_text().splitlines():
            line = re.sub(r"server app-\d:8080", lambda _: f"server 127.0.0.1:{next(ports)}", line)
            lines.append(line.replace("listen 8080;", f"listen 127.0.0.1:{self.front_port};"))
        (self.folder / "nginx").mkdir()
        (self.folder / "nginx/nginx.conf").write_text("\n".join(lines))
        self.spawn("nginx", ["nginx", "-e", "stderr", "-g", "daemon off;", "-p", str(self.folder / "nginx"), "-c", "nginx.conf"])
        wait("nginx serves", lambda: get(f"{self.base}/readyz")[0] == 200)

    def start_postgres(self):
        folders = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda one: int(one.parent.name))
        binaries = pathlib.Path(shutil.which("initdb") or folders[-1] / "initdb").parent
        data, as_user = self.folder / "postgres-data", {}
        if os.geteuid() == 0:  # which Postgres refuses to be
            user = pwd.getpwnam("postgres")
            as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            data.mkdir()
            os.chown(data, user.pw_uid, user.pw_gid)
        command = [binaries / "initdb", "--auth=trust", "--username=flash_sale", "--encoding=UTF8", "--pgdata", data]
        subprocess.run(command, cwd="/", check=True, capture_output=True, **as_user)
        flags = ["-p", str(self.postgres_port), "-h", "127.0.0.1", "-k", "", "-c", "max_connections=200"]
        self.spawn("postgres", [binaries / "postgres", "-D", data, *flags], **as_user)
        wait("Postgres listens", lambda: socket.socket().connect_ex(("127.0.0.1", self.postgres_port)) == 0)

    def start_redis(self, number, follows=None):
        (self.folder / f"redis-{number}").mkdir(exist_ok=True)
        port = self.redis_ports[number]
        flags = ["--port", str(port), "--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always"]
        flags += ["--maxmemory-policy", "noeviction", "--save", "", "--repl-diskless-sync-delay", "0"]
        if follows:
            flags += ["--replicaof", "127.0.0.1", str(follows)]
        self.redis = getattr(self, "redis", {})
        self.redis[number] = self.spawn(f"redis-{number}", ["redis-server", *flags])
        wait(f"Redis {number} answers", lambda: "PONG" in redis(port, "PING"))

    def start_instance(self, number):
        settings = {**self.settings, "LISTEN_ADDR": f"127.0.0.1:{self.ports[number]}"}
        child = self.spawn(f"app-{number}", [self.program, "serve"], env=settings)
        wait(f"instance {number} is ready", lambda: get(f"http://127.0.0.1:{self.ports[number]}/readyz")[0] == 200)
        return child

    def primary(self):
        """Which of the two Redis servers the Sentinels name; they may not agree at once."""
        for port in self.sentinel_ports:
            found = re.findall(r"\d{4,5}", redis(port, "SENTINEL", "get-master-addr-by-name", MASTER))
            if found and int(found[-1]) in self.redis_ports:
                return self.redis_ports.index(int(found[-1]))
        return None

    def command(self, *words, **more):
        return subprocess.run([self.program, *words], env=self.settings, text=True, capture_output=True, **more)

    def k6(self, script, **settings):
        environment = {**self.settings, "BASE_URL": self.base, "OUT_DIR": str(self.folder), **settings}
        child = subprocess.Popen(
            ["k6", "run", "--quiet", str(ROOT / "loadtest" / script)],
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        self.children.append(child)
        return child

    def stop(self):
        for child in reversed(self.children):
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
                try:
                    child.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()


def redis(port, *words):
    """What a Redis or Sentinel answers; nothing if it does not."""
    answer = b""
    request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(request.encode())
            connection.settimeout(0.2)
            while piece := connection.recv(65536):
                answer += piece
    except TimeoutError:
        pass
    except OSError:
        return ""
    return answer.decode(errors="replace")


class Watch(threading.Thread):
    """Reads what the instances count, until told to stop: rows of (seconds, accepted, other
    answers, 503)."""

    def __init__(self, ports):
        super().__init__(daemon=True)
        self.ports, self.rows, self.last, self.over = ports, [], {}, threading.Event()
        self.began = time.monotonic()

    def now(self):
        return time.monotonic() - self.began

    def run(self):
        while not self.over.wait(SAMPLE):
            seen = {"accepted": 0, "unavailable": 0, "other": 0}
            for port in self.ports:
                for verdict, count in re.findall(r'flash_sale_admissions_total{verdict="(\w+)"} (\d+)', get(f"http://127.0.0.1:{port}/metrics")[1]):
                    count, key = int(count), (port, verdict)
                    before = self.last.get(key, count)
                    # A process that has been replaced counts from 0.
                    seen[verdict if verdict in seen else "other"] += count - before if count >= before else count
                    self.last[key] = count
            self.rows.append((self.now(), seen["accepted"], seen["other"], seen["unavailable"]))

    def pause(self, second, until):
        """The longest time without a sale between these seconds, in steps of a sample."""
        longest, since = 0.0, second
        for at, accepted, *_ in self.rows:
            if second < at <= until:
                if accepted:
                    longest, since = max(longest, at - since - SAMPLE), at
        return max(0.0, longest)


class Drill:
    def __init__(self, deployment, seconds):
        self.deployment, self.seconds = deployment, seconds
        self.events, self.checks = [], []

    def check(self, holds, words):
        self.checks.append((bool(holds), words))
        say(("ok      " if holds else "BROKEN  ") + words)

    def event(self, words, began=None):
        self.events.append((began or self.watch.now(), words))
        say(words)

    def rows(self):
        """What was done: when, what, and the longest time without a sale in the 20 s after, or
        until the next."""
        ends = [at for at, _ in self.events[1:]] + [self.watch.rows[-1][0]]
        return [(at, words, self.watch.pause(at, min(at + 20, end))) for (at, words), end in zip(self.events, ends)]

    def rate(self):
        say("measuring what this machine takes (loadtest/breakpoint.js, about a minute)")
        run = self.deployment.k6("breakpoint.js", TOKENS_FILE=self.tokens(100_000), MAX_RATE="1500")
        said, _ = run.communicate()
        held = re.search(r"(\d+) purchases a second held", said)
        if not held:
            raise SystemExit(f"drill: no rate was held:\n{said}")
        return int(int(held[1]) * RATED)

    def tokens(self, users):
        file = self.deployment.folder / f"tokens-{users}.json"
        self.deployment.command("tokens", "--users", str(users), "--out", str(file), check=True)
        return str(file)

    def replace(self, number):
        instance = self.deployment.instances[number]
        began = self.watch.now()
        instance.send_signal(signal.SIGTERM)
        try:
            status = instance.wait(timeout=60)
        except subprocess.TimeoutExpired:
            instance.kill()
            status = instance.wait()
        took = self.watch.now() - began
        self.event(f"instance {number} is told to stop, ends with {status} after {took:.1f} s, and is started again", began)
        self.check(status == 0 and took <= STOPS_WITHIN, f"instance {number} stopped by itself, with 0, within {STOPS_WITHIN} s")
        self.deployment.instances[number] = self.deployment.start_instance(number)

    def known_primary(self):
        wait("the Sentinels name a primary", lambda: self.deployment.primary() is not None)
        return self.deployment.primary()

    def fail_over(self):
        before = self.known_primary()
        self.event(f"Sentinel is told to fail over from Redis {before}")
        redis(self.deployment.sentinel_ports[0], "SENTINEL", "FAILOVER", MASTER)
        wait("the other Redis is the primary", lambda: self.deployment.primary() == 1 - before)

    def kill_primary(self):
        before = self.known_primary()
        self.event(f"kill -9 of Redis {before}, the primary")
        self.deployment.redis[before].kill()
        self.deployment.redis[before].wait()
        wait("the other Redis is the primary", lambda: self.deployment.primary() == 1 - before)
        self.deployment.start_redis(before, follows=self.deployment.redis_ports[1 - before])
        self.event(f"Redis {before} is back, as a replica")

    def run(self, rate):
        tokens = self.tokens(rate * 20)
        self.watch = Watch(self.deployment.ports)
        self.watch.start()
        load = self.deployment.k6("soak.js", TOKENS_FILE=tokens, RATE=str(rate), DURATION=f"{self.seconds}s", OUTAGES="1")
        # A tenth of the time for each step; k6 takes some seconds of its own to begin.
        steps = {4: self.fail_over, 7: self.kill_primary}
        said = []
        reader = threading.Thread(target=lambda: said.extend(load.stdout), daemon=True)
        reader.start()
        for step in range(1, 10):
            while self.watch.now() < self.seconds * step / 10 and load.poll() is None:
                time.sleep(0.2)
            if load.poll() is not None:
                break
            steps.get(step, lambda step=step: self.replace(step % 3))()
        say("waiting for the load to end, and for its audit")
        status = load.wait()
        reader.join()
        self.watch.over.set()
        self.watch.join()
        print("".join(said))
        self.judge(status, rate)

    def judge(self, status, rate):
        record = json.loads((self.deployment.folder / "soak.json").read_text())
        count = lambda name: int(record["metrics"].get(name, {}).get("values", {}).get("count", 0))
        asked, sent = rate * self.seconds, count("iterations")
        self.check(status == 0, "each purchase that was answered 202 has its row, no unit was sold twice, every audit held, no answer was unexpected")
        audit = self.deployment.command("audit", "--wait", "60")
        self.check(audit.returncode == 0, "flash-sale audit: invariants hold")
        self.check(sent >= asked * 0.95, f"the load was sent: {sent:,} of {asked:,} purchases")
        done = [sum(word in words for _, words in self.events) for word in ("told to stop", "told to fail over", "kill -9")]
        self.check(done == [7, 1, 1], "seven instances were replaced, Redis failed over and was killed")
        self.ended = {name: count(f"flash_{name}") for name in ("won", "sold_out", "already_ordered", "unavailable", "unexpected")}
        self.times = {key: record["metrics"]["flash_won_ms"]["values"][key] for key in ("med", "p(95)", "p(99)", "max")}
        for _, words, pause in self.rows():
            say(f"{pause:.1f} s without a sale: {words}")


def picture(watch, events, seconds):
    """Purchases a second over time, as SVG: accepted, refused, 503, and numbered lines for what was
    done."""
    width, height, most = 960, 220, max([1, *(max(sum(row[1:]), 1) for row in watch.rows)]) / SAMPLE
    x = lambda second: f"{second / max(seconds, watch.rows[-1][0]) * width:.1f}"
    y = lambda count: f"{height - count / SAMPLE / most * height:.1f}"
    curve = lambda column: " ".join(f"{x(row[0])},{y(row[column])}" for row in watch.rows)
    colours = [(1, "#1a7f37"), (2, "#8c959f"), (3, "#cf222e")]
    lines = [f'<polyline fill="none" stroke="{colour}" points="{curve(column)}"/>' for column, colour in colours]
    for number, (at, _) in enumerate(events, 1):
        lines.append(f'<line x1="{x(at)}" x2="{x(at)}" y1="0" y2="{height}" stroke="#0969da" stroke-dasharray="3"/>')
        lines.append(f'<text x="{x(at)}" y="-4" font-size="11" text-anchor="middle">{number}</text>')
    return f'<svg viewBox="0 -20 {width} {height + 24}" role="img" aria-label="purchases a second">{"".join(lines)}</svg><p>Up to {most:,.0f} a second: <b style="color:#1a7f37">accepted</b>, <b style="color:#57606a">refused</b>, <b style="color:#cf222e">503</b>; the numbers are the events below.</p>'


def report(drill, rate, file, version):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True, capture_output=True).stdout.strip()
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    held = all(holds for holds, _ in drill.checks)
    rows = []
    for number, (at, words, pause) in enumerate(drill.rows(), 1):
        rows.append(f"<tr><td>{number}<td>{at:.0f}&nbsp;s<td>{html.escape(words)}<td>{pause:.1f} s</tr>")
    checks = "".join(f"<li>{'✓' if holds else '✗ <b>broken</b>:'} {html.escape(words)}" for holds, words in drill.checks)
    ended = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in drill.ended.items())
    times = ", ".join(f"{name} {value:.1f} ms" for name, value in drill.times.items())
    text = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>flash-sale drill</title>
<style>body{{font:16px/1.5 system-ui;max-width:960px;margin:2rem auto;padding:0 1rem}}td,th{{padding:.2rem .8rem;text-align:left;border-bottom:1px solid #ddd}}svg{{width:100%}}</style>
<h1>Drill: {'held' if held else 'NOT held'}</h1>
<p>{time.strftime('%Y-%m-%d %H:%M %Z')}, {html.escape(version)} ({commit}), {os.cpu_count()} × {html.escape(cpu[1] if cpu else 'CPU')}; the load was made on the same machine.</p>
<p>Rated load {round(rate / OVERLOAD):,} purchases a second; drilled with <b>{rate:,}</b> for {drill.seconds} s. Ended: {ended}. Winners: {times}.</p>
{picture(drill.watch, drill.events, drill.seconds)}
<table><tr><th>#<th>at<th>what was done<th>longest time without a sale in the 20 s after, or until the next</tr>{''.join(rows)}</table>
<h2>Checked</h2><ul>{checks}</ul>
<p>Operator: ______________________ Date: ____________ Signature: ______________________</p></html>
"""
    pathlib.Path(file).write_text(text)
    say(f"report: {file}")
    return held


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the program, built with --release")
    parser.add_argument("--rate", type=int, help="the rated load in purchases a second [measured]")
    parser.add_argument("--seconds", type=int, default=600, help="how long, at least 100 [600]")
    parser.add_argument("--report", default="drill-report.html", help="where the report goes [drill-report.html]")
    arguments = parser.parse_args()
    if arguments.seconds < 100 or (arguments.rate is not None and arguments.rate < 1):
        parser.error("--seconds is at least 100, --rate at least 1")
    os.environ["PATH"] += ":/usr/sbin"  # where Debian keeps nginx
    for needed in ("k6", "nginx", "redis-server"):
        if not shutil.which(needed):
            raise SystemExit(f"drill: {needed} is missing; scripts/setup.sh ci installs it")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fs-drill-"))
    folder.chmod(0o755)  # Postgres is another user
    deployment = Deployment(str(pathlib.Path(arguments.program).resolve()), folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        say("starting Postgres, two Redis servers, three Sentinels, three instances and nginx")
        deployment.start()
        drill = Drill(deployment, arguments.seconds)
        rate = round((arguments.rate or drill.rate()) * OVERLOAD)
        say(f"{rate:,} purchases a second for {arguments.seconds} s")
        drill.run(rate)
        version = deployment.command("--version").stdout.strip()
        held = report(drill, rate, arguments.report, version)
    finally:
        deployment.stop()
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
