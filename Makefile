# Everything sets itself up in .venv; a machine needs only Python 3.11, gcc 12, CMake, make and git.
PYTHON ?= python3
VENV := .venv
# As pip does for what it copies: without it the first start takes half a second more, or every one where none may be written.
BYTECODE := $(VENV)/bin/python -m compileall -q src/foreword
SOURCES := pyproject.toml CMakeLists.txt $(shell find csrc -type f)

.PHONY: demo test check bench bench-peers bench-guard docs clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.installed  ## every claim of the foundations, measured on a real model
	$(VENV)/bin/foreword pull smollm2
	$(VENV)/bin/foreword demo --model smollm2

test: $(VENV)/.installed-test  ## every test: C++, Python, the real model
	$(VENV)/bin/foreword pull smollm2
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" scripts/test

check: $(VENV)/.installed-test  ## format, lint, types, layers
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" scripts/check

bench: $(VENV)/.installed  ## the rows of docs/performance.md
	$(VENV)/bin/foreword pull smollm2
	$(VENV)/bin/foreword bench decode prefill batch waste quality --model smollm2

docs: $(VENV)/.installed-docs  ## the documents as a site, every link checked: site/index.html
	$(VENV)/bin/python scripts/make_reference.py --check
	$(VENV)/bin/python scripts/make_pictures.py --check
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

bench-peers: $(VENV)/.installed  ## beside other engines, which it sets up in build/peers; PEERS_FLAGS="--rows W1 --peers llama.cpp"
	$(BYTECODE)
	$(VENV)/bin/foreword pull smollm2
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" python -m benchmarks.peers --json build/peers/result.json $(PEERS_FLAGS)

bench-guard: $(VENV)/.installed  ## instructions of the kernels beside those kept; needs valgrind; GUARD_FLAGS=--keep
	$(VENV)/bin/python -m benchmarks.guard $(GUARD_FLAGS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: $(VENV)/bin/python $(SOURCES)
	$(VENV)/bin/python -m pip install --quiet --editable .
	$(BYTECODE)
	touch $@

$(VENV)/.installed-test: $(VENV)/bin/python $(SOURCES)
	$(VENV)/bin/python -m pip install --quiet --editable '.[test]'
	$(BYTECODE)
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(VENV)/.installed-test
	$(VENV)/bin/python -m pip install --quiet --editable '.[docs]'
	touch $@ $(VENV)/.installed $(VENV)/.installed-test

clean:
	rm -rf $(VENV) build dist site
