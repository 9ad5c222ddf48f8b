# `make demo` trains and analyzes a real model, `make test` checks everything. Both set up .venv/ by themselves.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The first Python on the path that is new enough; `make demo PYTHON=/some/python3` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
BIN := .venv/bin
RUN := run/demo
# The scanner of Kineto files, and what compiles it when ddptrace is installed.
COMPILED := hatch_build.py ddptrace/load/kineto/scan.c ddptrace/load/kineto/scan_library.py

.PHONY: help demo test test-fast test-device test-versions collect lint docs bench-overhead soak acceptance clean

help:
	@echo "make demo            train a 10M-parameter model on 2 processes, then say where its step time went"
	@echo "make test            ruff, mypy and all tests"
	@echo "make test-fast       unit tests without the long ones: two minutes"
	@echo "make test-device     the tests of devices, with a summary; DEVICE=cuda on a GPU"
	@echo "make test-versions   the tests of recording with each Python and torch that is to be had; takes long"
	@echo "make lint            ruff and mypy only"
	@echo "make collect         compile the tests, which each process of make test would otherwise do by itself"
	@echo "make docs            build the documentation site into run/site/, with every link checked"
	@echo "make bench-overhead  what tracing costs a training step on this machine"
	@echo "make acceptance      what only a machine that does nothing else can show: errors of clocks and events"
	@echo "make soak            100,000 steps under a trace: memory flat, disk within its bound (takes many minutes)"

# One thread a rank: two ranks share this machine.
demo: export OMP_NUM_THREADS := 1
demo: .venv/.ready-to-run
	$(BIN)/torchrun --standalone --nproc-per-node 2 examples/1_char_gpt.py $(RUN)
	@echo
	$(BIN)/ddptrace analyze $(RUN)
	@echo
	@echo "Open $(RUN)/analysis/report.html in a browser, and $(RUN)/analysis/trace.json.gz in https://ui.perfetto.dev"

# Files run side by side, two more than there are processors, since many tests wait for timeouts; in the order of their
# names, so that integration tests, which take long, begin before unit tests. Then the tests that compare times run one by
# one, from the files that have any. A failed test is not run again.
# Python keeps what it compiles, even where the variable that forbids it is set: thousands of processes start.
test test-fast collect: export PYTHONDONTWRITEBYTECODE :=
test: SIDE_BY_SIDE = $(shell $(BIN)/python -c "import os; print(min(6, 2 + (os.cpu_count() or 1)))")
test: export DDPTRACE_MISSING := run/missing.json
test: lint
	@mkdir -p run && rm -f $(DDPTRACE_MISSING)
	$(BIN)/python -m pytest --numprocesses $(SIDE_BY_SIDE) --dist loadfile --no-loadscope-reorder -m "not alone"
	$(BIN)/python -m pytest -m alone $$(grep -rl --include='test_*.py' 'mark\.alone' tests | sort)

test-fast: .venv/.ready-to-test
	$(BIN)/python -m pytest --quiet --numprocesses 2 --dist worksteal -m "not alone and not long" tests/unit tests/test_layers.py

# On the device that tests/device makes, without a GPU; DEVICE=cuda: on the first GPU.
test-device: export DEVICE := $(or $(DEVICE),test)
test-device: .venv/.ready-to-test
	$(BIN)/python -m tests.device run/device-$(DEVICE)

# Not in CI: each pair of versions has a virtual environment of its own.
test-versions: .venv/.ready-to-test
	$(BIN)/python -m tools.versions

# Imports every test once, so that pytest's processes find them compiled: each would compile all of them otherwise.
collect: .venv/.ready-to-test
	$(BIN)/python -m pytest --collect-only --quiet >/dev/null

lint: .venv/.ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Not --quiet, which hides warnings from --strict, too. Material for MkDocs advertises its successor unless the variable is
# set.
docs: export NO_MKDOCS_2_WARNING := 1
docs: .venv/.ready-to-document
	$(BIN)/python -m mkdocs build --strict
	@echo "Open run/site/index.html in a browser."

bench-overhead: .venv/.ready-to-run
	$(BIN)/python -m benchmarks overhead

# One thread a rank, as in the demo.
soak: export OMP_NUM_THREADS := 1
soak: .venv/.ready-to-run
	$(BIN)/python -m tests.soak run/soak

acceptance: export DDPTRACE_ACCEPTANCE := 1
acceptance: .venv/.ready-to-test
	$(BIN)/python -m pytest -s -m quiet

clean:
	rm -rf .venv run dist .hypothesis .mypy_cache .pytest_cache .ruff_cache

# Installed again only when what is to be installed changed.
.venv/.ready-to-run: pyproject.toml constraints.txt $(COMPILED) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch]'
	@touch $@

.venv/.ready-to-test: pyproject.toml constraints.txt $(COMPILED) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch,dev]'
	@touch $@ .venv/.ready-to-run

.venv/.ready-to-document: pyproject.toml constraints.txt constraints-docs.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -c constraints-docs.txt -e '.[docs]'
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "ddptrace needs Python 3.11 or newer, and none is on the PATH: install one," \
		"or say where it is with make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv .venv
