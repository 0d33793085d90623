# Two commands on a fresh machine: `make demo` and `make test`. Both install what they need into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: demo test explore lint types install clean

demo: $(STAMP)
	$(BIN)/everstep run examples/gpt_bytes.yaml

test: lint types
	$(BIN)/python -m pytest

# Properties with examples that no test has seen; a failing one is printed and can be played again.
explore: $(STAMP)
	$(BIN)/python -m pytest --hypothesis-profile=explore tests/policies tests/monitors tests/orchestrator

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The checker must see the checkout under its package name, whatever the folder is called.
types: $(STAMP)
	mkdir -p build/types && ln -sfn "$(CURDIR)" build/types/everstep
	cd build/types && MYPYPATH=. $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml \
	  -p everstep.conf -p everstep.policies -p everstep.monitors -p everstep.actors -p everstep.orchestrator \
	  -p everstep.benchmarks -p everstep.examples -m everstep

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build *.egg-info
