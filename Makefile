# make up, make test, make fuzz, make demo, make check, make interop, make interop-full, make bench, make torture: each sets up what it needs first.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
INTEROP_WORKERS ?= 3
PRODUCERS ?= python,java

.DEFAULT_GOAL := help
.PHONY: help setup native java up test fuzz demo check format interop interop-full bench torture clean

help: ## Show the commands.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# What a node needs comes in seconds; Spark and the tools are a large download, made once.
$(VENV)/.installed: pyproject.toml scripts/setup scripts/common.sh
	@scripts/setup "$(PYTHON)" "$(VENV)" run
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@scripts/setup "$(PYTHON)" "$(VENV)" dev
	@touch $@

# Optional: where no C compiler is found, it says so and pure Python does the work.
native: $(VENV)/.installed
	@scripts/native $(VENV)

java:
	@scripts/java

setup: $(VENV)/.installed-dev native java ## Create .venv with everything the other commands need, Java for Spark included.

up: $(VENV)/.installed native ## Start name server, broker and console in the foreground.
	@exec $(BIN)/cosmodrome up $(ARGS)

# Hundreds of processes of tests import the package: none compiles it again, even where bytecode is kept off disks.
test: setup ## Run the tests.
	env -u PYTHONDONTWRITEBYTECODE scripts/in-memory $(BIN)/pytest -n $(WORKERS) $(ARGS)

fuzz: setup ## Try the property tests with new examples, and many more of them.
	scripts/in-memory $(BIN)/pytest -n $(WORKERS) -m hypothesis --hypothesis-profile=fuzz $(ARGS)

demo: setup ## A million orders through a node and Spark: a streaming report and a Parquet archive (ARGS="--messages 50000").
	@$(BIN)/python examples/spark_orders.py $(ARGS)

# Tests that read the whole source, so any change may break them.
GUARDS := $(addprefix tests/unit/test_,layers.py clock_uses.py number_parsing.py admin.py lazy.py) tests/system/test_start_up.py

check: $(VENV)/.installed-dev ## Lint, formatting, types, and tests that read the whole source.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n 0 --durations=0 --durations-min=60 $(GUARDS)

format: $(VENV)/.installed-dev ## Let ruff put the code into shape.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What runs in which worker: interop/groups.py. What is full: tests/interop/conftest.py.
INTEROP = AGAINST=apache $(BIN)/pytest -n $(INTEROP_WORKERS) tests/behaviour tests/interop

interop: setup ## Meet Apache RocketMQ's own clients, brokers and name servers, each kind of meeting once (needs Maven and a JDK).
	$(BIN)/python -m interop.setup
	$(INTEROP) -m "not full" $(ARGS)

interop-full: setup ## The same in all combinations, with volumes, kills and waits: for what a change touches (ARGS="-k pop").
	$(BIN)/python -m interop.setup
	$(INTEROP) $(ARGS)

bench: setup ## Measure, beside Apache's broker where Maven can fetch it.
	$(BIN)/python -m benchmarks.run $(ARGS)

torture: $(VENV)/.installed-dev native ## Kill stores and brokers, cut the power, fill disks, thousands of times; overload (SEED=7 KILLS=2000 MASTER_KILLS=200 OVERLOAD_SECONDS=60).
	$(if $(findstring java,$(PRODUCERS)),$(BIN)/python -m interop.setup)
	SEED=$(SEED) SEEDS=$(SEEDS) KILLS=$(KILLS) ROTS=$(ROTS) MASTER_KILLS=$(MASTER_KILLS) PRODUCERS=$(PRODUCERS) $(BIN)/pytest -x -s -o faulthandler_timeout=0 tests/torture $(ARGS)

clean: ## Remove what the other commands made, but not your data.
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis interop/build .demo
