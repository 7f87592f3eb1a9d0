# Two commands on a fresh machine: `make demo` and `make test`. Both make .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-long lint bench browser audit lowest docs wheel-check clean

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

# With LanceDB, the embedded database: the demo ends with a table of it migrated.
$(VENV)/.demo: $(VENV)/.core
	$(PIP) -e '.[lancedb,plot]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/congruence demo

LINTED := src tests benchmarks examples tools docs/notebooks
LINT := $(BIN)/ruff check $(LINTED) && $(BIN)/ruff format --check $(LINTED) && $(BIN)/mypy && $(BIN)/lint-imports --no-cache
lint: $(VENV)/.test
	$(LINT)

# The report is looked at in a real browser. This installs one, where that is allowed, which `make test` alone never does: without one those tests are
# skipped. CI calls it first.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	&& { apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1; } \
	|| echo "no chromium: the browser tests will be skipped"

# Small matrices: processes pay, threads cost more than they save, and a thread that waits sleeps: where tests ask for several, they would spin on
# the cores of other tests. Work is stolen from the end of a queue, so that a module's tests, and what they share, mostly stay in one process.
# Files are written to memory where there is room (Linux): waiting for a disk to confirm each of thousands took a tenth of the time.
# Others may pass through that folder, but not list it: as root, PostgreSQL runs as a user of its own.
# Bytecode is kept, also where the environment says not to: each of many processes would compile all of it anew.
PYTEST = memory=$$(df -Pk /dev/shm 2>/dev/null | awk '$$1 == "tmpfs" && $$4 > 4000000 {print $$6}'); \
	temp=$$(mktemp -d $${memory:+-p $$memory}); chmod 711 "$$temp"; trap 'rm -rf "$$temp"' EXIT; trap 'exit 130' INT TERM HUP; \
	TMPDIR=$$temp OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

# Lint runs beside the tests, and is printed after them; a failure of either is one of this target.
test: $(VENV)/.test
	@{ $(LINT); } >$(VENV)/lint.txt 2>&1 & lint=$$!; $(PYTEST) -m 'not long'; tests=$$?; \
	wait $$lint; lint=$$?; cat $(VENV)/lint.txt; exit $$((tests | lint))

# Trainings and experiments to the end, pages as printed, kills, hostile files, clusters.
test-long: $(VENV)/.test
	@$(PYTEST) -m long

# The pinned versions are asked for in the advisory database of PyPI; without a way to it, that is said, and nothing is claimed.
audit: constraints.txt
	test -x $(VENV)-audit/bin/pip-audit || { $(PYTHON) -m venv $(VENV)-audit && $(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit; }
	$(VENV)-audit/bin/python .ci/audit.py constraints.txt

# The lowest versions that pyproject.toml allows, without torch: its wheels of that version bring gigabytes of CUDA libraries.
LOWEST := tests/test_splits.py tests/test_yaml.py tests/io/test_io.py tests/upgrade/test_tables.py tests/metrics/test_neighbors.py tests/maps/test_orthogonal.py
lowest: constraints-lowest.txt pyproject.toml
	test -x $(VENV)-lowest/bin/python || $(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e '.[plot,sklearn,faiss,hdf5,lance,images,pandas]' pytest hypothesis
	OMP_NUM_THREADS=1 $(VENV)-lowest/bin/python -m pytest -p no:cacheprovider $(LOWEST)

# The site, by mkdocs alone and strict: a link or an anchor that leads nowhere fails. typer writes the page of the commands.
$(VENV)-docs/.installed: pyproject.toml constraints.txt constraints-docs.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-docs.txt -e '.[docs]'
	touch $@

docs: $(VENV)-docs/.installed
	$(VENV)-docs/bin/python tools/commands_page.py docs/reference/commands.md
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict --quiet

# The wheel and the source distribution, complete, and the demo by the wheel in a new environment and an empty folder.
wheel-check:
	$(PYTHON) tools/wheel_check.py

bench: $(VENV)/.test
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) $(VENV)-audit $(VENV)-lowest $(VENV)-docs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
