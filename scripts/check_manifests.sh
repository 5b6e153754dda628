#!/usr/bin/env bash
# Checks what only GitHub and editors read: workflows, issue forms, the citation.
# Needs what `scripts/setup.sh ci` installs, and no network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=.tools/venv/bin

# fits SCHEMA FILE…: one of the schemas that check-jsonschema carries.
fits() { "$tools/check-jsonschema" --quiet --builtin-schema "vendor.$1" "${@:2}"; }

fits github-workflows .github/workflows/*.yml
fits github-issue-forms .github/ISSUE_TEMPLATE/*.yml
fits citation-file-format CITATION.cff
python3 -m json.tool .devcontainer/devcontainer.json >/dev/null

# Actions pinned by hash, least permissions, nothing of a caller's in a shell line.
lint() { "$tools/zizmor" --offline --quiet --strict-collection "$@"; }
lint .github
printf 'on: push\njobs: {a: {runs-on: ubuntu-24.04, steps: [{uses: actions/checkout@v4}]}}\n' |
  lint - >/dev/null 2>&1 && { echo "zizmor let an action pass that is not pinned"; exit 1; }
echo "workflows, issue forms and the citation fit their schemas; zizmor finds nothing"
