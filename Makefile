# Everything a visitor needs, one word each. `make` alone lists it.
# Kept to what GNU Make 3.81 understands, because that is what macOS ships.

CARGO    ?= cargo
ARGS     ?=
DATA_DIR ?= .flash-sale
TARGET   := $(or $(CARGO_TARGET_DIR),target)

.DEFAULT_GOAL := help
.PHONY: help setup run test proof chaos drill bench instructions screenshots fmt lint ci release-check clean-data

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' Makefile

setup: ## install what the program needs (asks nothing; does nothing when all is there)
	@scripts/setup.sh run

run: ## build and start a sale on http://127.0.0.1:8080 (ARGS="--help" lists the settings)
	@scripts/setup.sh run
	@echo "Building for a first look: unoptimised, without OpenTelemetry and ZooKeeper's client (for those: cargo build --release)."
	@echo "On two cores the first build takes about two minutes, later ones some seconds."
	$(CARGO) build --locked --no-default-features
	@exec $(TARGET)/debug/flash-sale serve $(ARGS)

# Most of these wait for servers, so more run at a time than there are cores.
test: export RUST_TEST_THREADS ?= $(shell expr 3 '*' $$(getconf _NPROCESSORS_ONLN))
# CI builds everything once, with all features.
FEATURES ?= --no-default-features
TESTS    = $(or $(ARGS),--lib --bins --test sandbox --test judgement --test it --test model --test chaos)

test: ## test what a change is likely to break, about seven minutes the first time (ARGS="--test it -- name" picks some)
	@scripts/setup.sh test
	python3 scripts/check_imports.py --self-test
	python3 scripts/check_imports.py
	python3 scripts/walk.py --self-test
	python3 scripts/walk.py
	python3 scripts/check_links.py --self-test
	python3 scripts/check_links.py
	python3 scripts/check_docs.py --self-test
	python3 scripts/check_docs.py
	python3 scripts/check_translations.py --self-test
	python3 scripts/check_translations.py
	python3 scripts/check_sizes.py --self-test
	python3 scripts/check_sizes.py
	python3 scripts/lab_table.py
	scripts/pages_test.sh
	$(CARGO) test --workspace --locked $(FEATURES) $(TESTS)

# While people buy, servers die, lose data, stand still or are replaced, and clocks are wrong.
PROOF_FAULTS = redis-kill,redis-empty,redis-flush,redis-backup,redis-failover,postgres-failover,postgres-stop,postgres-slow-commits,postgres-serialization,clock

# What this machine lacks fails it, unless ALLOW_MISSING=1.
proof: export PROOF := 1
proof: ## what is left to prove before a change lands: faults, clusters, proxies, the pages in Chromium
	@scripts/setup.sh proof
	$(CARGO) test --workspace --locked --test proof $(ARGS)
	$(CARGO) test --workspace --locked --bench bench
	$(CARGO) test --workspace --locked --test chaos -- --planted
	$(CARGO) test --workspace --locked --test chaos -- --only $(PROOF_FAULTS)
	FLASH_SALE_BIN=$(TARGET)/debug/flash-sale scripts/browser_test.sh
	python3 scripts/check_examples.py $(TARGET)/debug/flash-sale
	python3 scripts/check_alerts.py --self-test
	python3 scripts/check_alerts.py
	@# Last, because it goes on until 21,000 purchases were charged, however long that takes.
	$(CARGO) test --workspace --locked --test chaos -- --only payments

# An ARGS on the command line replaces these; SECONDS_PER_FAULT=20 keeps them, but shorter.
SECONDS_PER_FAULT ?= 60
MIXED_SECONDS     ?= $(shell expr 10 '*' $(SECONDS_PER_FAULT))
CHAOS_ARGS = $(or $(ARGS),--all --seconds $(SECONDS_PER_FAULT) --mixed-seconds $(MIXED_SECONDS) --report chaos-report)

chaos: ## break everything for an hour and judge what came of it (ARGS="--help"; SECONDS_PER_FAULT=20)
	@scripts/setup.sh proof
	$(CARGO) test --release --locked --test chaos -- $(CHAOS_ARGS)

drill: ## ten minutes of 1.5 times the rated load while instances are replaced and Redis fails over (ARGS="--help")
	@scripts/setup.sh ci
	$(CARGO) build --release --locked
	@PATH="$$PWD/.tools/venv/bin:$$PATH" scripts/drill.py $(ARGS) $(TARGET)/release/flash-sale

bench: ## measure the purchase path, as ratios taken in one run (ARGS="--help" lists what else; ARGS=all is all)
	@scripts/setup.sh run
	$(CARGO) bench --locked --bench bench -- $(ARGS)

instructions: ## count the instructions of the pure parts with callgrind, and compare (ARGS=--record)
	CARGO=$(CARGO) scripts/instructions.py $(ARGS)

screenshots: ## make the pictures of README and docs again, from a real server
	@scripts/setup.sh proof
	$(CARGO) build --release --locked
	FLASH_SALE_BIN=$(TARGET)/release/flash-sale scripts/screenshots.sh

fmt: ## format the Rust code
	$(CARGO) fmt --all

lint: ## what CI would complain about, without the tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --locked --all-targets -- -D warnings
	$(CARGO) clippy --workspace --locked --lib --bins -- -D warnings
	$(CARGO) check --locked --no-default-features --lib --bins
	python3 scripts/check_imports.py
	python3 scripts/walk.py
	python3 scripts/check_links.py
	python3 scripts/check_docs.py
	python3 scripts/check_translations.py
	python3 scripts/check_sizes.py

ci: ## all that CI runs, from a clean checkout
	@bash .ci/run

release-check: ## all of a release that needs no GitHub: workflows, versions; the program built, tried and packed
	@scripts/setup.sh ci
	scripts/check_manifests.sh
	scripts/release.sh check
	scripts/release.sh build

clean-data: ## forget every sale and order of the embedded servers (stop them first)
	@pid=$$(head -n 1 "$(DATA_DIR)/pg/postmaster.pid" 2>/dev/null || true); \
	if [ -n "$$pid" ] && kill -0 "$$pid" 2>/dev/null; then \
	  echo "the Postgres of $(DATA_DIR) is still running; stop flash-sale first" >&2; exit 1; \
	fi
	rm -rf "$(DATA_DIR)"
