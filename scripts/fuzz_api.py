#!/usr/bin/env python3
"""Asks a running server whatever its own OpenAPI document allows, and much that it does not.

Schemathesis makes the requests: boundary values, wrong types, missing and unknown members, odd
text, methods that are not there. Nobody in particular asks, then a shopper, then an operator; once
with made-up ids and once with those of a sale and an order that exist. Every answer has to be one
that the document knows: no 5xx at all (nothing is broken while this runs), no undocumented status
or content type, bodies and headers as their schemas say, bad data refused, good data taken, and
nothing secured without its token.

    BASE_URL=http://127.0.0.1:8080 ADMIN_TOKEN=... .tools/venv/bin/python scripts/fuzz_api.py [--seed N] [--examples N]

The server has to run with RATE_LIMIT=off, and what it sells is closed and changed at random: use
one of your own, as .ci/run does. Exits 0 if nothing was found, 1 if something was, 2 if it could
not ask. The same seed asks the same things.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# A stream does not end, so reading it to its end would wait for ever; tests/it/contract/events.rs
# reads them.
STREAMS = "/events$"
# What it asks to be judged would be stormed, whatever listens there: a good URL is replaced by one
# where nobody does.
HOOKS = """\
import re, schemathesis

@schemathesis.hook
def before_call(context, case, kwargs):
    body = case.body if case.operation.path.endswith("/judgements") else None
    if isinstance(body, dict) and re.match(r"http://(localhost|127|\\[)", str(body.get("url"))):
        body["url"] = "http://127.0.0.1:{port}"
"""
# A whole run takes a fraction of this; one that hangs must not hang CI.
LONGEST_RUN_SECONDS = 120

CONFIG = """\
hooks = "{hooks}"

# A body that is too long in every respect is refused as too large before it is looked at.
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]

{parameters}
# Whether these accept a well-formed body depends on more than a schema can say: a sale has to close
# after it opens, stock must not fall below what is sold, an ended sale stays ended, a text must not
# be blank; a strategy has to exist, its options are its own, as those of a lesson are, and an arena
# has only so many nodes; an address may be closed to the judge. (To a schema 7.0 is an integer,
# here it is not.)
[[operations]]
include-operation-id = ["create_sale", "change_sale", "add_stock", "open_session", "create_arena", "buy_in_arena", "storm_arena", "judge_server", "play_lesson"]
checks.positive_data_acceptance.enabled = false
"""

PARAMETERS = """\
[[operations]]
include-path-regex = "/sales/"
parameters = {{ "path.id" = "{sale}" }}

[[operations]]
include-path-regex = "/v1/orders/"
parameters = {{ "path.id" = "{order}" }}
"""


class Unusable(Exception):
    """The server cannot be asked."""


def call(base, method, path, token=None, body=None):
    headers = {"accept": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    if body is not None:
        headers["content-type"] = "application/json"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=15) as response:
            return json.load(response)
    except (OSError, ValueError) as error:
        raise Unusable(f"{method} {path}: {error}") from error


def something_to_ask_about(base, admin):
    """A shopper's token, and the ids of a sale and of that shopper's order, to be fuzzed."""
    sale = call(base, "POST", "/api/v1/admin/sales", admin, {"title": "fuzzed", "price_cents": 100, "stock": 1_000, "per_user_limit": 100})
    token = call(base, "POST", "/api/v1/session")["token"]
    order = call(base, "POST", f"/api/v1/sales/{sale['id']}/orders", token)["order_id"]
    for _ in range(100):
        if call(base, "GET", f"/api/v1/orders/{order}", token)["status"] == "pending_payment":
            return token, sale["id"], order
        time.sleep(0.1)
    raise Unusable("an order did not become payable within 10 s")


def schemathesis(base, folder, arguments, config, token, operations):
    file = folder / "schemathesis.toml"
    file.write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "schemathesis.cli", f"--config-file={file}", "run", f"{base}/openapi.json"]
    command += [f"--exclude-path-regex={STREAMS}", "--phases=examples,coverage,fuzzing", "--continue-on-failure"]
    # One worker: with several, the order of requests, and so what they find, differs from run to
    # run.
    command += ["--workers=1", f"--seed={arguments.seed}", f"--max-examples={arguments.examples}"]
    command += ["--request-timeout=20", "--warnings=off", "--no-color", "--output-sanitize=true", *operations]
    if token:
        command.append(f"--header=Authorization: Bearer {token}")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONGEST_RUN_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False, f"still running after {LONGEST_RUN_SECONDS} s"
    return done.returncode == 0, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20_261_120)
    parser.add_argument("--examples", type=int, default=15, help="requests for each operation and run, besides the fixed ones")
    arguments = parser.parse_args()
    base, admin = os.environ.get("BASE_URL", "http://127.0.0.1:8080"), os.environ.get("ADMIN_TOKEN", "")
    if not admin:
        print("fuzz_api: ADMIN_TOKEN is not set", file=sys.stderr)
        return 2
    try:
        token, sale, order = something_to_ask_about(base, admin)
    except Unusable as error:
        print(f"fuzz_api: {error}", file=sys.stderr)
        return 2

    known = PARAMETERS.format(sale=sale, order=order)
    # Who asks, their token, what they ask for, the ids. The operator comes last: an operator can
    # end the sale.
    runs = [
        ("nobody, made-up ids", None, [], ""),
        ("a shopper, made-up ids", token, ["--include-tag=shopping"], ""),
        ("a shopper, their own order", token, ["--include-tag=shopping"], known),
        ("an operator, made-up ids", admin, ["--include-tag=operating"], ""),
        ("an operator, an existing sale", admin, ["--include-tag=operating"], known),
    ]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-api-") as folder, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        hooks = pathlib.Path(folder) / "hooks.py"
        hooks.write_text(HOOKS.format(port=nobody.getsockname()[1]), encoding="utf-8")
        for who, bearer, operations, parameters in runs:
            began = time.monotonic()
            config = CONFIG.format(parameters=parameters, hooks=hooks)
            good, text = schemathesis(base, pathlib.Path(folder), arguments, config, bearer, operations)
            counts = [line.strip() for line in text.splitlines() if "generated" in line]
            took = time.monotonic() - began
            print(f"{'ok    ' if good else 'FAILED'} {who}: {' '.join(counts) or 'no requests counted'}, {took:.0f} s", flush=True)
            if not good:
                failed += 1
                # From the first failure on; what comes before is progress.
                start = min((at for at in (text.find("= ERRORS ="), text.find("= FAILURES =")) if at >= 0), default=0)
                print(text[start : start + 20_000])
    try:
        call(base, "GET", "/readyz")
    except Unusable as error:
        print(f"fuzz_api: afterwards the server is not well: {error}")
        failed += 1
    print(f"seed {arguments.seed}: {'nothing found' if not failed else f'{failed} run(s) found something'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
