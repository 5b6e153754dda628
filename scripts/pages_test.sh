#!/usr/bin/env bash
# Runs the tests of the pages' modules (tests/pages/) in Node 20 or newer. They need no browser and
# no server. Where there is no such Node, it says so loudly instead of failing: Rust and the two
# servers are all that the program itself needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 20 ? 0 : 1)' 2>/dev/null; then
  exec node --test tests/pages/
fi
echo "!!! NOT RUN: tests/pages/ need Node 20 or newer, and there is none on this machine"
