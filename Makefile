# The README's commands and nothing clever. Each sets up what it needs; a second run is quick.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOAK_SECONDS ?= 600

.PHONY: demo test test-chart test-kernels soak kube-up kube-down lint lock clean
.DELETE_ON_ERROR:

demo: $(STAMP)  ## two nodes, a real model, every promise of the first page checked
	$(BIN)/kvgrove demo --json build/demo.json

test: $(STAMP) lint test-kernels  ## the whole suite; tests that need a GPU skip loudly without one
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-kernels: $(STAMP)  ## every CUDA kernel without a GPU: compiled for each architecture, run under sanitizers, mutants caught
	@command -v g++ >/dev/null || { echo "missing: g++ (Debian: apt-get install g++); it runs the CUDA kernels on the host" >&2; exit 1; }
	$(BIN)/python tests/kernels/everything.py

test-chart: $(STAMP)  ## the chart alone: lint, schema, snapshots, rights, rules, dashboards, and a real API server's judgement
	$(BIN)/python -m pytest tests/chart

soak: $(STAMP)  ## a node under random load and failures for SOAK_SECONDS (600), every promise judged whenever it pauses
	$(BIN)/python bench/soak.py --json --seconds $(SOAK_SECONDS)

kube-up: $(STAMP)  ## a Kubernetes control plane on loopback, built from source the first time (minutes); prints its kubeconfig
	PYTHONPATH=tests/kube:tests/support $(BIN)/python -m controlplane.updown up build/kube

kube-down: $(STAMP)  ## stops what kube-up started
	PYTHONPATH=tests/kube:tests/support $(BIN)/python -m controlplane.updown down build/kube

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(STAMP): pyproject.toml requirements/bootstrap.lock requirements/dev.lock
	@command -v $(PYTHON) >/dev/null || { echo "missing: python3 (3.11 or newer), with its venv module" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "missing: Python 3.11 or newer ($(PYTHON) is $$($(PYTHON) -V))" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "missing: the venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/bootstrap.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

lock:  ## pin every dependency anew (hashes, no registry addresses)
	$(BIN)/uv pip compile requirements/bootstrap.in --generate-hashes --no-emit-index-url --no-header --python-version 3.11 -q -o requirements/bootstrap.lock
	$(BIN)/uv pip compile pyproject.toml --extra operator --extra daemon --extra otel --extra plot --extra dev --generate-hashes --no-emit-index-url --no-header --python-version 3.11 -q -o requirements/dev.lock

clean:
	rm -rf build dist $(VENV)
