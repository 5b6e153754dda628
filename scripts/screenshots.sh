#!/usr/bin/env bash
# Makes the pictures of README and docs, docs/img/*.webp, from a real server with real orders:
#
#   cargo build --release && FLASH_SALE_BIN=target/release/flash-sale scripts/screenshots.sh [folder]
#
# A release build, because the live wall is photographed under load. Needs what
# scripts/browser_test.sh needs.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/browser_test.sh" screenshots "$@"
