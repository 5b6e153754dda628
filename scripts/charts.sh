#!/usr/bin/env bash
# Puts the charting library of the live wall, uPlot (MIT), into a folder: build.rs runs
# `scripts/charts.sh "$OUT_DIR"`, and the program carries what it finds there. Third-party files
# have no place in git, hence a package pinned by its hash: from npm or from .tools/, and nothing
# else is accepted.
#
# Exit code 1: it could not be had. The program is then built without it, and the wall shows its
# numbers as tables only. Written for bash 3.2, which is what macOS has.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VERSION=1.6.32
SHA256=4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d
OUT=${1:?usage: scripts/charts.sh FOLDER}
KEPT=.tools/uplot-$VERSION.tgz # so that the next profile, and the next `cargo clean`, need no network

right() {
  [ -f "$1" ] || return 1
  { sha256sum "$1" 2>/dev/null || shasum -a 256 "$1"; } | grep -q "^$SHA256 "
}

fetch() {
  command -v npm >/dev/null 2>&1 || return 1
  npm pack --silent --fetch-retries=0 --fetch-timeout=15000 --pack-destination "$1" "uplot@$VERSION" >/dev/null 2>&1
}

if ! right "$KEPT"; then
  # Beside its last place, so that the move is one step: two builds may run at once.
  mkdir -p .tools
  work=$(mktemp -d .tools/uplot.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  fetch "$work" && right "$work/uplot-$VERSION.tgz" || exit 1
  mv "$work/uplot-$VERSION.tgz" "$KEPT"
fi
for file in dist/uPlot.iife.min.js dist/uPlot.min.css LICENSE; do
  tar -xzOf "$KEPT" "package/$file" >"$OUT/$(basename "$file" | sed 's/^LICENSE$/uPlot.LICENSE/')"
done
