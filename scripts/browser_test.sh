#!/usr/bin/env bash
# Runs tests/browser/: the pages in real Chromium, against a private embedded server of their own.
#
#   scripts/browser_test.sh [node --test arguments]        e.g. --test-name-pattern="double click"
#   scripts/browser_test.sh screenshots [folder]           makes the pictures of docs/img instead
#
# FLASH_SALE_BIN is the program (default: the debug build), CHROMIUM_BIN the browser, SHOTS where
# pictures for review go. What it needs besides goes into .tools/browser, pinned by
# tests/browser/package-lock.json. Of the run itself nothing is left but the pictures. Where there
# is no Node 20 or no Chromium, it says so; in `make proof` (PROOF=1) it then fails, unless
# ALLOW_MISSING is set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

not_run() {
  echo "!!! NOT RUN: tests/browser/ need $*, and there is none on this machine"
  [ -z "${PROOF:-}" ] || [ -n "${ALLOW_MISSING:-}" ] || exit 1
  exit 0
}

node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 20 ? 0 : 1)' 2>/dev/null || not_run "Node 20 or newer"
command -v npm >/dev/null 2>&1 || not_run "npm"
if [ -z "${CHROMIUM_BIN:-}" ]; then
  for name in chromium chromium-browser google-chrome "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" \
    /Applications/Chromium.app/Contents/MacOS/Chromium; do
    if CHROMIUM_BIN=$(command -v "$name"); then break; fi
  done
fi
[ -n "${CHROMIUM_BIN:-}" ] || not_run "Chromium (scripts/setup.sh proof installs it where it can)"
FLASH_SALE_BIN=${FLASH_SALE_BIN:-${CARGO_TARGET_DIR:-target}/debug/flash-sale}
if [ ! -x "$FLASH_SALE_BIN" ]; then
  echo "there is no $FLASH_SALE_BIN; build it first: cargo build" >&2
  exit 1
fi

# The mark is a copy of what was asked for, so a changed version is installed again.
if ! cmp -s tests/browser/package-lock.json .tools/browser/installed.json; then
  echo "installing playwright-core and axe-core into .tools/browser"
  rm -rf .tools/browser
  mkdir -p .tools/browser
  cp tests/browser/package.json tests/browser/package-lock.json tests/browser/.npmrc .tools/browser/
  (cd .tools/browser && npm ci --silent --ignore-scripts --no-audit --no-fund)
  cp tests/browser/package-lock.json .tools/browser/installed.json
fi

# Everything of this run, the servers' data and the browser's profile, is below one folder.
work=$(mktemp -d "${TMPDIR:-/tmp}/fs-browser.XXXXXX")
chmod 711 "$work" # run as root, the server starts Postgres as another user, who has to be able to walk in here
node_pid=""

# The processes that work inside this run's own folder: servers that a killed run could not stop,
# and nobody else.
left_behind() {
  local process
  for process in /proc/[0-9]*; do
    case "$(readlink "$process/cwd" 2>/dev/null)" in
      "$work"/*) echo "${process#/proc/}" ;;
    esac
  done
}

tidy_up() {
  local status=$? process
  trap '' INT TERM
  if [ -n "$node_pid" ]; then kill -TERM "$node_pid" 2>/dev/null || true; wait "$node_pid" 2>/dev/null || true; fi
  for process in $(left_behind); do kill -TERM "$process" 2>/dev/null || true; done
  for _ in $(seq 50); do
    [ -n "$(left_behind)" ] || break
    sleep 0.1
  done
  for process in $(left_behind); do kill -KILL "$process" 2>/dev/null || true; done
  rm -rf "$work"
  exit $status
}
trap tidy_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

export FLASH_SALE_BIN CHROMIUM_BIN TMPDIR=$work
if [ "${1:-}" = screenshots ]; then
  shift
  node tests/browser/screenshots.mjs "$@" &
else
  node --test --test-reporter="${REPORTER:-spec}" "$@" tests/browser/main.test.mjs &
fi
node_pid=$!
status=0
wait $node_pid || status=$?
node_pid=""
exit $status
