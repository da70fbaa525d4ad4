# The first of these that is Python 3.11, 3.12 or 3.13; `make demo PYTHON=/path/to/python` takes another one.
NAMES := python3.11 python3.12 python3.13 python3 python
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(firstword $(foreach name,$(NAMES),$(shell $(name) -c '$(FITS)' 2>/dev/null && echo $(name))))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TESTS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast check docs dist bench torture notebooks clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.13 here; name one: make demo PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable ".[dev]" --constraint constraints.txt
	touch $@

demo: $(STAMP)  ## from nothing to a calibrated ensemble on made-up images
	$(BIN)/python -m lightning_calib demo

check: $(STAMP)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check  ## everything that must hold: lint, types, doctests, tests
	$(BIN)/python -m pytest -n auto --dist worksteal $(TESTS)

test-fast: $(STAMP)  ## the tests that take less than a minute
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" $(TESTS)

torture: $(STAMP)  ## kills, damage, bad numbers, strangers' folders, full disks: all of them, and the table
	TORTURE_ALL=1 $(BIN)/python -m pytest tests/torture -q

docs: $(STAMP)  ## the site, in site/: without network, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: $(STAMP)  ## source distribution and wheel, in dist/, with their metadata checked
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

bench: $(STAMP)  ## speed and memory beside other libraries
	for script in $(filter-out benchmarks/_% benchmarks/outputs.py benchmarks/regret.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script || exit 1; done

notebooks: $(STAMP)  ## run the notebooks of the docs again, and keep what they show
	$(BIN)/python -m tests.notebooks

clean:  ## the virtual environment, caches and what was built
	rm -rf $(VENV) .mypy_cache .ruff_cache build dist site lightning_calib.egg-info
