# The contributor's verbs. Needs GNU make and Python 3.11 or newer with its venv module.
# Everything is made inside the checkout: .venv, .cache and dist; `make clean` removes all of it.

PYTHON ?= python3
LOCKFLAGS ?=

CACHE := $(CURDIR)/.cache
BIN := .venv/bin

export PIP_CACHE_DIR := $(CACHE)/pip
export UV_CACHE_DIR := $(CACHE)/uv
export RUFF_CACHE_DIR := $(CACHE)/ruff
export MYPY_CACHE_DIR := $(CACHE)/mypy
export PYTHONPYCACHEPREFIX := $(CACHE)/pycache
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHE)/hypothesis
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
# pip asks rustc for its version; where rustc is a rustup shim, that alone would write into HOME.
ifeq ($(wildcard $(HOME)/.rustup),)
RUSTUP_HOME ?= $(CACHE)/rustup
export RUSTUP_HOME
endif

# Looked up only by the verbs that need it, so that `make clean` works without any Python.
python = $(shell tools/python '$(PYTHON)')
no-python = '$(PYTHON)' is no Python that runs here: name one, as in 'PYTHON=python3.13 make test'
obstacle = $(if $(python),$(shell '$(python)' tools/check_python.py),$(no-python))
environment = $(if $(obstacle),$(error $(obstacle)))'$(python)' tools/environment.py

STEP := @printf '== %s\n'
FIXED := --numprocesses=auto --maxprocesses=4 --dist=worksteal --hypothesis-seed=0
LABS := FLOWFABRIC_TEST_SIZE=long $(BIN)/python -m pytest -v -rfEP -m lab
QUICK := -m pytest -q $(FIXED) -m 'not lab and not package'
LOCK := $(BIN)/uv pip compile --quiet --no-config --system-certs --universal --generate-hashes \
	--no-emit-index-url --no-header --python-version 3.11 $(LOCKFLAGS)

.PHONY: help setup dev-environment demo test test-all check quick long mutants cases statements reference wheel pythons bench lock clean
# Two verbs at once would make one environment twice.
.NOTPARALLEL:

help:
	@echo 'make demo      the main job on the embedded store, with the base package only'
	@echo 'make test      lint, types, import contracts, tidy; the suite on memory and SQLite,'
	@echo '               and the contract of stores on real servers'
	@echo 'make test-all  the same with every test on every store, and the package'
	@echo 'make setup     the base environment in .venv'
	@echo 'make quick     the suite without labs and packaging, under 30 s'
	@echo 'make long      the labs at full size, under an hour; prints what they did'
	@echo 'make mutants   plants SAMPLE=100 small faults by SEED=1, and names those that no test sees'
	@echo 'make cases     coverage of the behaviour catalogue by area'
	@echo 'make statements  account of the source documents, statement by statement'
	@echo 'make reference the page of signatures, from the code'
	@echo 'make wheel     wheel and sdist in dist, built twice and compared'
	@echo 'make pythons   the quick suite on every Python 3.11 to 3.14 found'
	@echo 'make bench     machine, versions and measurements as JSON'
	@echo 'make lock      the locked requirements; LOCKFLAGS=--upgrade for newer versions'
	@echo 'make clean     removes everything that these verbs made'

setup:
	@$(environment) base

dev-environment:
	@$(environment) dev

demo: setup
	@$(BIN)/ff demo

check: dev-environment
	$(STEP) 'ruff: lint'
	@$(BIN)/ruff check --quiet .
	$(STEP) 'ruff: format'
	@$(BIN)/ruff format --check --quiet .
	$(STEP) 'mypy: strict types'
	@$(BIN)/mypy
	$(STEP) 'import-linter: who may import whom'
	@report=$$($(BIN)/lint-imports --no-logo --cache-dir '$(CACHE)/import-linter') || \
		{ echo "$$report"; exit 1; }; echo "$$report" | grep '^Contracts:'

test: check
	$(STEP) 'pytest: everything on memory and SQLite, the contract on every store'
	@$(BIN)/python -m pytest $(FIXED) -m 'not wide'

test-all: check
	$(STEP) 'pytest: every test on every store, and the package'
	@$(BIN)/python -m pytest $(FIXED)

quick: dev-environment
	@$(BIN)/python $(QUICK)

long: dev-environment
	$(STEP) 'the storms: all durable stores side by side, each on servers of its own'
	@$(LABS) --numprocesses=4 --dist=load tests/chaos
	$(STEP) 'the other labs'
	@$(LABS) --numprocesses=2 --dist=worksteal --ignore=tests/chaos

SAMPLE ?= 100
SEED ?= 1
mutants: dev-environment
	@$(BIN)/python -m tools.mutants --sample '$(SAMPLE)' --seed '$(SEED)'

cases: setup
	@$(BIN)/python tools/cases.py --missing

statements: setup
	@$(BIN)/python tools/statements.py --missing

reference: setup
	@$(BIN)/python tools/reference.py

# The bytes depend on the sources alone: one date for all files, that of the last commit.
wheel: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct 2>/dev/null || echo 1767225600)
wheel: setup
	@rm -rf dist .cache/again
	@$(BIN)/python -m build --no-isolation --outdir dist .
	@$(BIN)/python -m build --no-isolation --outdir .cache/again . >/dev/null
	@diff -r dist .cache/again
	$(STEP) 'built twice with the same bytes'

pythons:
	@for version in 3.11 3.12 3.13 3.14; do \
		python=$$(tools/python python$$version); \
		obstacle=$${python:+$$("$$python" tools/check_python.py)}; \
		if [ -z "$$python" ]; then echo "== Python $$version: not found"; continue; fi; \
		if [ -n "$$obstacle" ]; then echo "== $$obstacle"; continue; fi; \
		folder=.cache/pythons/$$version; \
		"$$python" tools/environment.py --at $$folder dev && \
		echo "== Python $$version: the quick suite" && \
		$$folder/bin/python $(QUICK) || exit 1; \
	done

bench: setup
	@rm -rf .cache/bench && mkdir -p .cache/bench
	@$(BIN)/python -c 'import os, platform as p, sqlite3 as s; \
		print(p.platform(), os.cpu_count(), "cores, Python", p.python_version(), "SQLite", s.sqlite_version)'
	@for mode in NORMAL FULL; do \
		for round in 1 2 3; do \
			store="sqlite:///.cache/bench/$$mode-$$round.db?synchronous=$$mode"; \
			$(BIN)/ff bench cycle --store "$$store" --n 20000 --json || exit 1; \
		done; \
		$(BIN)/ff bench limit --store "sqlite:///.cache/bench/$$mode-limit.db?synchronous=$$mode" || exit 1; \
	done

lock:
	@$(environment) lock
	$(LOCK) pyproject.toml --output-file requirements/base.txt
	$(LOCK) requirements/build.in --constraints requirements/base.txt --output-file requirements/build.txt
	$(LOCK) requirements/lock.in --output-file requirements/lock.txt
	$(LOCK) pyproject.toml --extra postgres --extra valkey --extra fast --extra servers \
		requirements/build.in requirements/dev.in \
		--constraints requirements/base.txt --constraints requirements/build.txt \
		--output-file requirements/dev.txt

clean:
	rm -rf .venv .cache dist build .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
