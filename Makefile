# Two commands on a fresh machine: `make run` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.installed-run
READY := $(VENV)/.installed-dev
# Compiling tens of thousands of files that are never imported costs a minute: Python compiles what
# it loads.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# Nothing is compiled at installation, so what is loaded is compiled once and kept, even where the
# environment says otherwise: torch alone takes four seconds to compile, in every process of a test.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: attack gpu-check run test test-docs test-lab test-thorough lint types docs dist clean

# The paper's table at its quick size. Finished work is kept: running it again shows the table,
# and after an interruption it goes on. Another size: make run ARGS="--preset paper".
run: $(RUNS)
	$(BIN)/natural-langevin reproduce --resume $(ARGS)

# A file stays with one worker: what its tests share (a launch of torchrun, a compiled step) is made
# once. The order is that of tests/conftest.py, longest first. One thread each: two workers with two
# threads on two cores spend half their time waiting.
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(READY)
	$(PYTEST) -m "not thorough" $(addprefix --ignore ,$(DOCS) tests/lab) $(ARGS)

# What a reader is given: the pages and the site of docs/, the examples, a wheel.
DOCS := tests/docs tests/examples tests/packaging
test-docs: $(READY)
	$(PYTEST) -m "not thorough" $(DOCS) $(ARGS)

# The tests of lab/, the experiments that are run from a checkout.
test-lab: $(READY)
	$(PYTEST) -m "not thorough" tests/lab $(ARGS)

# The tests that take minutes each; every one has a cheaper sibling in `make test`.
test-thorough: $(READY)
	$(PYTEST) -m thorough $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Every dynamics and metric, run every way there is, against the eager float64 step: on a GPU in
# under two minutes. On a machine without one: make gpu-check ARGS="--device cpu".
gpu-check: $(READY)
	$(BIN)/python -m lab.matrix $(ARGS)

# Every family of attacks: kills, full disks, hostile files, ranks, threads, leaks; cases tried,
# survived and failed. Some minutes; a part of it is in `make test`.
attack: $(READY)
	$(BIN)/python tests/attack $(ARGS)

# The documentation site, in build/site: every link and anchor is checked, nothing is fetched.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

# A wheel and an sdist, in dist.
dist: $(READY)
	$(BIN)/python -m build $(ARGS)

# Installed again only when a file that says what to install has changed; `make run` installs what
# it runs, everything else the tools as well.
$(RUNS): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[run]'
	touch $(RUNS)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $(RUNS) $(READY)

clean:
	rm -rf $(VENV) build dist src/*.egg-info
