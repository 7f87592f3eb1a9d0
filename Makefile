# Two commands on a fresh machine: `make demo` and `make test`. Both make .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DATA := ../shared/data/lvis1203_clip.npz

.PHONY: demo test lint bench clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Each stamp says what is installed, so a second call costs nothing.
$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e .
	touch $@

# torch first and pinned: asked for by a range, pip would take a build with several gigabytes of CUDA libraries.
$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) $(shell grep '^torch==' constraints.txt)
	$(PIP) -e '.[test]'
	touch $@ $(VENV)/.core

demo: $(VENV)/.core
	@test -f $(DATA) || { echo "make demo needs $(DATA), which lies beside a full checkout."; exit 2; }
	$(BIN)/congruence demo $(DATA)

lint: $(VENV)/.test
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(VENV)/.test lint
	$(BIN)/python -m pytest

bench: $(VENV)/.test
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
