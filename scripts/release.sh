#!/usr/bin/env bash
# What a release is made with: .github/workflows/release.yml on GitHub, `make release-check` here.
#
#   scripts/release.sh check [vX.Y.Z]   one version everywhere; for a tag, a dated section in the changelog
#   scripts/release.sh notes            that section
#   scripts/release.sh build            builds for this machine, with the Rust of the Dockerfile; packs
#   scripts/release.sh pack BINARY      tries the program and packs it into dist/, with a checksum
#
# Written for bash 3.2, which is what macOS has.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

OLDEST_GLIBC=2.35 # Ubuntu 22.04, Debian 12, and later
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
die() { printf 'release: %s\n' "$*" >&2; exit 1; }

check() {
  grep -qx "version: $version" CITATION.cff || die "CITATION.cff has another version than Cargo.toml, $version"
  grep -A 1 '^name = "flash-sale"$' Cargo.lock | grep -qx "version = \"$version\"" ||
    die "Cargo.lock has another version than Cargo.toml, $version"
  grep -qx '## \[Unreleased\]' CHANGELOG.md || die "CHANGELOG.md has no section [Unreleased]"
  if [ -n "${1:-}" ]; then
    [ "$1" = "v$version" ] || die "the tag is $1, and the version in Cargo.toml is $version"
    grep -qxE "## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}" CHANGELOG.md ||
      die "CHANGELOG.md has no section: ## [$version] - YEAR-MONTH-DAY"
  fi
  echo "release: $version in Cargo.toml, Cargo.lock and CITATION.cff; CHANGELOG.md is ready for it"
}

notes() {
  awk -v heading="## [$version]" '/^## / {on = index($0, heading) == 1; next} on' CHANGELOG.md
}

build() {
  local rust
  rust=$(sed -n 's/^FROM rust:\([0-9.]*\)-.*/\1/p' Dockerfile)
  if [ "$(rustc --version | cut -d ' ' -f 2)" != "$rust" ]; then
    rustup toolchain install "$rust" --profile minimal
    export RUSTUP_TOOLCHAIN=$rust
  fi
  cargo build --release --locked
  pack "${CARGO_TARGET_DIR:-target}/release/flash-sale"
}

# The program of the archive sells: it starts on its own servers, passes its audit, and ends.
try_it() {
  local program=$1 folder=$2 line="" status=0
  [ "$("$program" --version)" = "flash-sale $version" ] || die "$program says that it is $("$program" --version)"
  LISTEN_ADDR=127.0.0.1:0 DATA_DIR=$folder/data "$program" serve >"$folder/stdout" 2>"$folder/stderr" &
  server=$!
  for _ in $(seq 600); do
    line=$(grep '^flash-sale ready on ' "$folder/stdout" || true)
    if [ -n "$line" ] || ! kill -0 $server 2>/dev/null; then break; fi
    sleep 0.1
  done
  if [ -n "$line" ]; then DATA_DIR=$folder/data "$program" audit --wait 30 || status=$?; else status=1; fi
  kill -TERM $server 2>/dev/null || true
  wait $server || status=$?
  server=""
  if [ $status -ne 0 ]; then tail -n 40 "$folder/stdout" "$folder/stderr" >&2; fi
  return $status
}

# The server goes before its data.
tidy_up() {
  trap '' INT TERM
  if [ -n "$server" ]; then
    kill -TERM "$server" 2>/dev/null || true
    wait "$server" || true
  fi
  rm -rf "$work"
}

pack() {
  local name newest
  name=flash-sale-$version-$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m)
  if [ "$(uname -s)" = Linux ]; then
    newest=$(objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d _ -f 2)
    [ "$(printf '%s\n' "$newest" $OLDEST_GLIBC | sort -V | tail -n 1)" = $OLDEST_GLIBC ] ||
      die "the program needs glibc $newest; $OLDEST_GLIBC is promised"
  fi
  work=$(mktemp -d "${TMPDIR:-/tmp}/flash-sale-release.XXXXXX")
  # Run as root, the server starts Postgres as another user, who has to be able to walk in here.
  chmod 711 "$work"
  server=""
  trap tidy_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  mkdir -p dist "$work/$name"
  # What README leads to, but for the source.
  git archive HEAD README.md README.zh-CN.md CHANGELOG.md LICENSE docs examples loadtest |
    tar -x -C "$work/$name"
  cp "$1" "$work/$name/flash-sale"
  strip -S "$work/$name/flash-sale"
  try_it "$work/$name/flash-sale" "$work" || die "the program that was packed does not work"
  tar -czf "dist/$name.tar.gz" -C "$work" "$name"
  (cd dist && { sha256sum "$name.tar.gz" 2>/dev/null || shasum -a 256 "$name.tar.gz"; } >"$name.tar.gz.sha256")
  ls -l "dist/$name.tar.gz"
}

case ${1:-} in
  check) check "${2:-}" ;;
  notes) notes ;;
  build) build ;;
  pack) pack "${2:?usage: scripts/release.sh pack BINARY}" ;;
  *) die "usage: scripts/release.sh check [TAG] | notes | build | pack BINARY" ;;
esac
