# Phalanx: `make` alone lists what there is.
# Needs Python 3.11 or newer, git and make; everything else goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PEERS  := .venv-peers
PIP    := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt
# uv does not read pip's settings: pass on its folder of wheels, where a CPU build of torch may lie
# (installed: 3.1 GB with it, 6.9 GB with the CUDA libraries of the plain wheel).
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
NEEDS  := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help train test fleet chaos lint docs bench bench-workers clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: $(VENV)/.ready-train  ## train on real digits with 2 replicas; model and curves go to runs/
	$(BIN)/phalanx run --replicas 2 examples/train_mnist.py

# Programs that an earlier test, or an earlier run, has compiled are read back: XLA is most of the time of a test.
test fleet: export JAX_COMPILATION_CACHE_DIR = $(CURDIR)/$(VENV)/compiled
test fleet: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS = 0
test fleet: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES = -1

test: $(VENV)/.ready-test lint docs  ## style, types, stairs, docs, then every test of one machine
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term --ignore=tests/fleet

fleet: $(VENV)/.ready-test  ## the tests that start workers: launcher, cluster, failures
	$(BIN)/python -m pytest tests/fleet

chaos: $(VENV)/.ready-test  ## at least 100 random faults under the launcher, every end compared (some forty minutes)
	$(BIN)/python benchmarks/chaos.py

lint: $(VENV)/.ready-test  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.ready-test  ## the documentation, warnings are errors; result in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.ready-test  ## fit against a hand-written loop and Keras's own fit (quiet machine, please)
	$(BIN)/phalanx run --replicas 2 benchmarks/fit_overhead.py

bench-workers: $(VENV)/.ready-test $(PEERS)/.ready  ## two workers against a hand-written loop, DDP and tf.distribute
	$(BIN)/python benchmarks/multi_worker.py --peers $(PEERS)/bin/python

clean:  ## remove what make made
	rm -rf $(VENV) $(PEERS) site runs build *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$@ -m pip install --quiet --disable-pip-version-check uv==0.13.9

$(VENV)/.ready-train: $(VENV)/bin/python $(NEEDS)
	$(PIP) -e ".[examples]"
	@touch $@

$(VENV)/.ready-test: $(VENV)/bin/python $(NEEDS)
	$(PIP) -e ".[test,lint,docs]"
	@touch $@ $(VENV)/.ready-train

# What Phalanx is compared with lives apart: its versions are nobody else's business.
$(PEERS)/.ready: benchmarks/peers/constraints.txt $(VENV)/bin/python
	$(PYTHON) -m venv $(PEERS)
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(PEERS)/bin/python --constraint $< \
		numpy torch tensorflow tf_keras
	@touch $@
