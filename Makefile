# make run    the whole thing once: a plan applied to the embedded model on a real clip, uncached beside it
# make test   everything CI checks;  make quick  the same without the tests marked slow
# make lint   ruff, mypy, import contracts;  make bench  the published numbers;  make locks  compile every plan
# PYTHON=python3.12 chooses the interpreter that .venv is made with.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# A process a core, each of one thread: they would wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal
PLAN ?= plans/wan21_p1_k4.yaml
PINS := $(shell $(PYTHON) -c 'import sys; print("-c constraints.txt" if sys.version_info >= (3, 11) else "")')

.DEFAULT_GOAL := help
.PHONY: help venv run test quick lint bench locks wheel clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -4

venv: $(READY)

# Brought up to date in place whenever what it should hold has changed; `make clean venv` starts from nothing.
$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PINS) --editable '.[dev]'
	@touch $@

run: $(READY)
	$(BIN)/refkv run --plan $(PLAN) --baseline

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/refkv validate plans
	$(BIN)/refkv compile --check plans
	$(PYTEST)

quick: lint
	$(PYTEST) -m 'not slow'

bench: $(READY)
	@for each in bench/overhead.py bench/p1.py bench/audit.py bench/validate.py bench/gpu.py; do \
		if [ -f $$each ]; then echo "== $$each"; $(BIN)/python $$each || exit 1; fi; \
	done

locks: $(READY)
	$(BIN)/refkv compile plans

wheel: $(READY)
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf $(VENV) build dist out .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
