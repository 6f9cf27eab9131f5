# make up, make test, make check, make interop, make bench, make torture: each sets up what it needs first.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup up test check format interop bench torture clean

help: ## Show the commands.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml scripts/setup
	@scripts/setup "$(PYTHON)" "$(VENV)"
	@touch $@

setup: $(VENV)/.installed ## Create .venv with everything the other commands need.

up: setup ## Start name server, broker and console in the foreground.
	@exec $(BIN)/cosmodrome up $(ARGS)

test: setup ## Run the tests.
	$(BIN)/pytest -n $(WORKERS) $(ARGS)

check: setup ## Lint, formatting and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## Let ruff put the code into shape.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

interop: setup ## Meet Apache RocketMQ's own clients, brokers and name servers (needs Maven and a JDK).
	$(BIN)/python -m interop.setup
	$(BIN)/pytest tests/interop $(ARGS)

bench: setup ## Measure, beside Apache's broker where Maven can fetch it.
	$(BIN)/python -m benchmarks.run $(ARGS)

torture: setup ## Kill stores and brokers, cut the power, thousands of times; overload (SEED=7 KILLS=2000 OVERLOAD_SECONDS=60).
	SEED=$(SEED) KILLS=$(KILLS) $(BIN)/pytest -x -s tests/torture $(ARGS)

clean: ## Remove what the other commands made, but not your data.
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis interop/build
