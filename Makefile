# `make demo` and `make test` need python3 >= 3.10 and nothing else; the rest is made in .venv.

# The first interpreter that is new enough and can make environments; `make PYTHON=…` takes another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-compile -c constraints.txt
# pip compiles on one core, and what no test imports as well.
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests?/|/transformers/models/' $(VENV)/lib
WORKERS ?= 2
SOURCES := lithi_datasets tests tools $(wildcard benchmarks loading_scripts)

# Nothing outside this folder is written, and nothing is sent anywhere.
export HF_HOME := $(CURDIR)/$(VENV)/hf-home
export HF_HUB_DISABLE_TELEMETRY := 1
# Many tests start processes; each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-versions environments lint soak bench sample docs clean

help:
	@echo "make demo    run the main job on the sample: verify, convert, train over two readers"
	@echo "make test    formatting, lint, types, tests"
	@echo "make test-versions   the suite's core on other versions of datasets, pyarrow and fsspec"
	@echo "make soak    the tests that run for minutes"
	@echo "make bench   the benchmarks"
	@echo "make sample  make the sample bundle again"
	@echo "make docs    make the generated pages again"
	@echo "make clean   remove the environment and what tools left"

demo: $(VENV)/.runtime
	$(BIN)/lithi-datasets demo

test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not soak"

# VERSIONS="3.6 oldest" takes some of them.
test-versions: $(VENV)/.python
	WORKERS=$(WORKERS) $(BIN)/python tools/test_versions.py $(VERSIONS)

# The environments of test-versions, without testing in them.
environments: $(VENV)/.python
	$(BIN)/python tools/test_versions.py --fill $(VERSIONS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy --strict

soak: $(VENV)/.sample
	$(BIN)/python -m pytest -n $(WORKERS) -m soak --timeout 3600

bench: $(VENV)/.dev
	@failed=0; for script in $(wildcard benchmarks/*.py); do \
		echo "== $$script"; $(BIN)/python $$script || failed=1; done; exit $$failed

sample: $(VENV)/.sample
	$(BIN)/python tools/make_sample.py

docs: $(VENV)/.dev
	$(BIN)/python tools/make_docs.py

clean:
	rm -rf $(VENV) .venvs .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps, so that an environment is filled once and again only when what it is made from changes.
$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "No python3 >= 3.10 with venv found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) -e .
	@$(COMPILE) || true
	@touch $@

# All at once, where nothing is there yet: what demo needs is part of it.
$(VENV)/.dev: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	@$(COMPILE) || true
	@touch $(VENV)/.runtime $@

$(VENV)/.sample: $(VENV)/.dev
	$(PIP) -e '.[dev,sample]'
	@touch $@
