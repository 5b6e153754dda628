#!/usr/bin/env bash
# Puts what the pages have from others into a folder: uPlot (MIT), which draws the live wall's
# charts, and Archivo Narrow (OFL), the face of large headings and numerals. build.rs runs
# `scripts/page_files.sh "$OUT_DIR"`, and the program carries what it finds there. Third-party files
# have no place in git, hence packages pinned by their hash: from npm or from .tools/, and nothing
# else is accepted.
#
# Exit code 1: something could not be had. The program is then built without it: the wall shows
# tables only, headings the system's condensed face. Written for bash 3.2, which is what macOS has.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

OUT=${1:?usage: scripts/page_files.sh FOLDER}

right() { # FILE SHA256
  [ -f "$1" ] || return 1
  { sha256sum "$1" 2>/dev/null || shasum -a 256 "$1"; } | grep -q "^$2 "
}

# kept PACKAGE VERSION FILE SHA256: its archive lies in .tools/, so that the next profile, and the
# next `cargo clean`, need no network.
kept() {
  local file=.tools/$3
  right "$file" "$4" && return
  command -v npm >/dev/null 2>&1 || return 1
  # Beside its last place, so that the move is one step: two builds may run at once.
  mkdir -p .tools
  work=$(mktemp -d .tools/npm.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  npm pack --silent --fetch-retries=0 --fetch-timeout=15000 --pack-destination "$work" "$1@$2" >/dev/null 2>&1 || true
  if right "$work/$3" "$4"; then mv "$work/$3" "$file"; fi
  rm -rf "$work"
  right "$file" "$4"
}

# unpack ARCHIVE FILE NAME
unpack() { tar -xzOf ".tools/$1" "package/$2" >"$OUT/$3.part" && mv "$OUT/$3.part" "$OUT/$3"; }

missing=0
charts=uplot-1.6.32.tgz
if kept uplot 1.6.32 $charts 4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d; then
  unpack $charts dist/uPlot.iife.min.js uPlot.iife.min.js
  unpack $charts dist/uPlot.min.css uPlot.min.css
  unpack $charts LICENSE uPlot.LICENSE
else
  missing=1
fi
face=fontsource-variable-archivo-narrow-5.3.0.tgz
if kept @fontsource-variable/archivo-narrow 5.3.0 $face 1ab38d10179dfde0a2f67077dcde1e0f36ff214aea319600d88d8928a87ade3c; then
  unpack $face files/archivo-narrow-latin-wght-normal.woff2 archivo-narrow-5.3.0.woff2
  unpack $face LICENSE archivo-narrow.LICENSE
else
  missing=1
fi
exit $missing
