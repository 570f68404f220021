# The commands of this project. Each makes the environment it needs; a second call reuses it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_FLAGS ?=

.PHONY: setup check test bench demo docs clean

setup: $(VENV)/.dev

$(VENV)/.base: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[plots]'
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

# Style, types, floors, and that every path the documents name exists.
check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/architecture

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

bench: $(VENV)/.dev
	$(BIN)/python bench/kernels.py
	$(BIN)/python bench/lane_steps.py
	$(BIN)/python bench/eggroll.py
	$(BIN)/python bench/inference.py
	$(BIN)/python bench/training.py
	$(BIN)/python bench/exchange.py
	$(BIN)/python bench/clustering.py
	$(BIN)/python bench/communication.py  # needs root and iproute2, for links in network namespaces

demo: $(VENV)/.base
	$(BIN)/thinwire demo --out runs/demo

docs: $(VENV)/.dev
	$(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
