# A fresh machine needs Python 3.11 or newer and make, nothing else:
#
#   make demo        train a small language model on this machine: about 4 minutes; again: 2 seconds
#   make test        everything that guards a change: lint, types, tests; about 25 minutes on two cores
#   make test-full   the same and the slow tests
#   make check       lint and types alone
#   make clean       remove .venv and caches; results in .marin stay
#
# The first of them makes .venv and installs the versions of constraints.txt. PYTHON=... chooses the interpreter.

.PHONY: help demo test test-full check clean
.DELETE_ON_ERROR:

BIN := .venv/bin
CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
# ensurepip is what Debian leaves out of a Python without its python3-venv package
SUITABLE := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))
# -qq: errors only
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo: .venv/installed
	@$(BIN)/marin run pipelines/quickstart.py

# Two files at once: first what is small, then what trains on embedded clusters, last what starts clusters of its own. Those
# wait more than they compute, and have time limits: beside the others they would be the ones to suffer.
SHARED := -n 2 --dist loadfile
TOGETHER := tests/architecture tests/unit tests/cli tests/docs tests/contract tests/fault --ignore=tests/unit/infra
TRAINING := tests/e2e tests/numerics
CLUSTERS := tests/unit/infra tests/cluster

test: check
	$(BIN)/python -m pytest $(SHARED) $(TOGETHER)
	$(BIN)/python -m pytest $(SHARED) $(TRAINING)
	$(BIN)/python -m pytest $(SHARED) $(CLUSTERS)

test-full: check
	$(BIN)/python -m pytest $(SHARED) -m "not gpu" $(TOGETHER)
	$(BIN)/python -m pytest $(SHARED) -m "not gpu" $(TRAINING)
	$(BIN)/python -m pytest $(SHARED) -m "not gpu" $(CLUSTERS)

check: .venv/installed-for-tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build marin.egg-info
	find marin tests pipelines benchmarks -name __pycache__ -prune -exec rm -rf {} +

.venv/installed: pyproject.toml constraints.txt | .venv/made
	@echo "marin: installing the versions of constraints.txt into .venv (once; 1 to 3 minutes)"
	@$(INSTALL) -e .
	@touch $@

.venv/installed-for-tests: pyproject.toml constraints.txt | .venv/made
	@echo "marin: installing the versions of constraints.txt and the test tools into .venv (once; 1 to 3 minutes)"
	@$(INSTALL) -e '.[dev,s3]'
	@touch .venv/installed $@

.venv/made:
	@if $(BIN)/python -c 'import pip; $(SUITABLE)' 2>/dev/null; then touch $@; exit; fi; \
	for python in $(CANDIDATES); do \
	    $$python -c '$(SUITABLE)' 2>/dev/null || continue; \
	    echo "marin: making .venv with $$($$python --version)"; \
	    $$python -m venv --clear .venv && touch $@; \
	    exit; \
	done; \
	echo "error: no Python 3.11 to 3.14 with venv among: $(CANDIDATES)" >&2; \
	echo "hint: install one (Debian, Ubuntu: apt install python3 python3-venv), or name it: make demo PYTHON=/path/to/python3.11" >&2; \
	exit 1
