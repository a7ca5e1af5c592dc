# The commands of the README. Each sets up what it needs in .venv and runs; PYTHON chooses the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test slow lint docs bench clean

demo: $(VENV)/.data
	$(BIN)/lowland analyze --out lowland-report

test: $(VENV)/.test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean:
	rm -rf $(VENV) build dist docs/_build docs/generated lowland-report src/*.egg-info

# torch goes in first and alone, so that no other package's requirement can choose its build.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Lowland needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	touch $@

$(VENV)/.%: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[$*]'
	touch $@
