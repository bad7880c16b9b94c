# Two commands do all the set-up: `make demo` and `make test`. Everything goes into .venv of this folder.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FRAMEWORKS := $(VENV)/.frameworks

.PHONY: system demo test fast lint docs sizes bench campaign mac clean

$(STAMP): constraints.txt pyproject.toml | system
	$(PYTHON) -c 'import sys; sys.exit("mpsq needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,test,lint]'
	touch $@

# torch's twins and the libraries around it: more than a gigabyte that the demonstration does without.
$(FRAMEWORKS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mlx,tinygrad,jax,transformers,lightning,opcheck,images]'
	touch $@

system:  ## the packages of the system that the other targets need: installed where this is root, else named
	@$(PYTHON) -m tests.system_packages

demo: $(STAMP)  ## trains nanoGPT on this machine's devices and reports
	$(BIN)/python -m queue_runner.cli.demo

test: $(FRAMEWORKS)  ## every test
	$(BIN)/python -m pytest tests -m fast -n 2
	$(BIN)/python -m pytest tests -m process -n 2
	$(BIN)/python -m pytest tests -m slow -n 2

fast: $(STAMP)  ## the tests of a few seconds
	$(BIN)/python -m pytest tests -m fast -n 2

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(STAMP)  ## what is generated: docs/cli.md
	$(BIN)/python -m queue_runner.cli.generate_reference > docs/cli.md

sizes:  ## modules, lines and tokens by wing
	@$(PYTHON) tests/sizes.py

bench: $(STAMP)  ## what the queue itself costs: docs/benchmarks.md
	$(BIN)/python -m tests.bench > docs/benchmarks.md
	cat docs/benchmarks.md

campaign: $(STAMP)  ## the long fault campaign; its short seeded version is part of `make test`
	MPSQ_CAMPAIGN=long MPSQ_TREES=20 $(BIN)/python -m pytest tests -m process -n 2

mac: $(FRAMEWORKS)  ## on a Mac: what holds of what could only be tried on stand-ins (docs/macos.md)
	$(BIN)/python -m tests.mac_check

clean:  ## everything that make made, but for the system's packages
	rm -rf $(VENV) build dist *.egg-info
