# The commands of the README. Each makes the environment it needs in .venv, then runs;
# PYTHON chooses the interpreter: make demo PYTHON=python3.13
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# -qq: errors are shown, and nothing else.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input -c constraints.txt
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Two targets at once would install into one environment at once.
.NOTPARALLEL:

.PHONY: demo
demo: $(VENV)/.data
	$(BIN)/lowland analyze

.PHONY: test
test: $(VENV)/.test
	$(PYTEST) $(PYTEST_ARGS)

.PHONY: slow
slow: $(VENV)/.test
	$(PYTEST) -m slow $(PYTEST_ARGS)

.PHONY: lint
lint: $(VENV)/.lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# One thread: the examples that run are tiny, and more threads would only wait for each other.
.PHONY: docs
docs: $(VENV)/.docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

# What the README and the docs open with. Needs Chromium for the picture of the page.
CHROMIUM ?= chromium
.PHONY: pictures
pictures: $(VENV)/.data
	$(BIN)/lowland analyze --out lowland-report
	$(BIN)/lowland report lowland-report --figures png --out lowland-figures
	cp lowland-figures/landscape-3d.png docs/pictures/landscape.png
	$(CHROMIUM) --headless --no-sandbox --hide-scrollbars --window-size=1200,920 --virtual-time-budget=20000 \
	  --screenshot=docs/pictures/report.png lowland-report/report.html

# The reference models that a report ranks measures among; a quarter of an hour.
.PHONY: zoo
zoo: $(VENV)/.data
	$(BIN)/python -m lowland_studies.zoo zoo

# Peers live in an environment of their own: they must not move what the tests are run with.
BENCH := .bench-venv

.PHONY: bench
bench: $(BENCH)/.peers
	$(BENCH)/bin/python benchmarks/run.py $(ROWS)

.PHONY: peers
peers: $(BENCH)/.peers
	$(BENCH)/bin/python -m pytest tests/test_peers.py

$(BENCH)/.peers: constraints.txt pyproject.toml benchmarks/requirements.txt
	@$(MAKE) VENV=$(BENCH) $(BENCH)/.test
	@$(BENCH)/bin/python -m pip install -qq --disable-pip-version-check --no-input -c constraints.txt --no-deps -r benchmarks/requirements.txt
	@touch $@

# Wheels and sdists in dist/, complete, and the wheels in an environment with nothing else: first the
# library alone, then the studies beside it.
EMPTY := .empty-venv

.PHONY: package
package: $(VENV)/.release
	rm -rf build studies/build dist $(EMPTY)
	$(BIN)/python -m build --outdir dist >/dev/null
	$(BIN)/python -m build --outdir dist studies >/dev/null
	$(BIN)/python .ci/release.py
	@$(MAKE) VENV=$(EMPTY) $(EMPTY)/.torch
	@$(EMPTY)/bin/python -m pip install -qq --disable-pip-version-check --no-input -c constraints.txt dist/lowland-*.whl
	$(EMPTY)/bin/python -P .ci/installed.py
	@$(EMPTY)/bin/python -m pip install -qq --disable-pip-version-check --no-input -c constraints.txt --no-deps dist/lowland_studies-*.whl
	$(EMPTY)/bin/python -P .ci/installed.py studies

# The same, and version, changelog and tag agree; see CONTRIBUTING.md.
.PHONY: release
release: package
	$(BIN)/python .ci/release.py release

.PHONY: clean
clean:
	rm -rf $(VENV) $(BENCH) $(EMPTY) build studies/build dist docs/_build docs/generated docs/reproduction lowland-report lowland-figures zoo src/*.egg-info studies/src/*.egg-info

# A file in the environment stands for each thing that was installed into it. torch goes in first
# and alone, so that no other package's requirement can choose its build.
$(VENV)/.torch: constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "there is no $(PYTHON); name a Python of 3.11 or newer: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Lowland needs Python 3.11 or newer, and $(PYTHON) is %d.%d; name another: make PYTHON=..." % sys.version_info[:2])'
	@echo "making $(VENV) and installing torch (some minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@touch $@

$(VENV)/.%: $(VENV)/.torch pyproject.toml studies/pyproject.toml
	@echo "installing lowland[$*] and lowland-studies"
	@$(PIP) -e '.[$*]' -e studies
	@touch $@
