# Two commands do all the set-up: `make demo` and `make test`. Everything goes into .venv of this folder.
# The newest that torch has wheels of and that can make environments: Debian's may lack the means.
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
ifndef PYTHON
PYTHON := $(shell for name in python3.14 python3.13 python3.12 python3.11 python3; do \
	"$$name" -c 'import ensurepip, venv; $(FITS)' 2>/dev/null && echo "$$name" && exit; done; echo python3)
endif
# Kept even where the shell says otherwise: tests start mpsq thousands of times, and each would compile every module anew.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e
DEMO := $(VENV)/.demo
STAMP := $(VENV)/.installed
FRAMEWORKS := $(VENV)/.frameworks
DOCS := $(VENV)/.docs
RELEASE := $(VENV)/.release

.NOTPARALLEL:
.PHONY: python system demo test fast lint words shrink docs site pictures transcript changes changelog release sizes bench simulate campaign faults campaign-slurm mac clean

# mpsq and what its main job trains with: all that the demonstration needs.
$(DEMO): constraints.txt pyproject.toml requirements.txt | python
	@$(PYTHON) -m tests.system_packages --check
	$(PYTHON) -m venv $(VENV)
	$(PIP) '.[train]'
	touch $@

$(STAMP): $(DEMO)
	$(PIP) '.[test,lint]'
	touch $@

# torch's twins and the libraries around it: more than a gigabyte that only `make test` and `make mac` use.
$(FRAMEWORKS): $(STAMP)
	$(PIP) '.[mlx,tinygrad,jax,transformers,lightning,opcheck,images]'
	touch $@

$(DOCS): $(STAMP)
	$(PIP) '.[docs]'
	touch $@

$(RELEASE): $(STAMP)
	$(PIP) '.[release]'
	touch $@

python:
	@$(PYTHON) -c '$(FITS)' 2>/dev/null || { \
	echo "mpsq needs Python 3.11 to 3.14, and $(PYTHON) is: $$($(PYTHON) --version 2>&1)" >&2; \
	echo "install one and name it: make $(MAKECMDGOALS) PYTHON=python3.13" >&2; exit 1; }

system: python  ## the system packages that the tests need: named, then installed where this is root on Debian
	@$(PYTHON) -m tests.system_packages

demo: $(DEMO)  ## trains nanoGPT on this machine's devices and reports
	$(BIN)/python -m tests.demo

# Four at a time on two processors where tests mostly wait for processes; the slow ones compute. Neighbours in a file
# run in one pytest as long as another one is not idle: they share a sshd.
test: system $(FRAMEWORKS) $(DOCS)  ## every test
	$(BIN)/python -m pytest tests -m fast -n 2
	$(BIN)/python -m pytest tests -m process -n 4 --dist worksteal
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests -m slow -n 2 --dist worksteal

fast: $(STAMP)  ## the tests of a few seconds
	$(BIN)/python -m pytest tests -m fast -n 2

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

words: $(STAMP)  ## the places that the language lint of tests/project counts
	@$(BIN)/python -m tests.project.language

shrink: $(STAMP)  ## lowers its baseline to the counts of today
	$(BIN)/python -m tests.project.language --shrink

docs: $(STAMP)  ## what is generated: docs/cli.md
	$(BIN)/python -m tests.cli_reference > docs/cli.md

site: $(DOCS)  ## the documents as a site in build/site; ends at a broken link
	$(BIN)/python -m tests.site

transcript: $(STAMP)  ## runs the commands shown in README.md and docs/first-ten-minutes.md, and writes what they print
	$(BIN)/python -m tests.transcript

pictures: $(STAMP)  ## docs/pictures: the page and the dashboard, of a training on this machine
	$(BIN)/python -m tests.pictures

changes: $(RELEASE)  ## what has changed since the last release
	$(BIN)/towncrier build --draft

changelog: $(RELEASE)  ## the files of changelog.d become a section of CHANGELOG.md
	$(BIN)/towncrier build --yes

release: $(RELEASE)  ## sdist and wheel in dist, checked and tried in every Python that is here; publishes nothing
	$(BIN)/python -m tests.release

sizes: python  ## modules, lines and tokens by wing
	@$(PYTHON) tests/sizes.py

bench: $(STAMP)  ## what the queue itself costs: docs/benchmarks.md
	$(BIN)/python -m tests.bench > docs/benchmarks.md
	cat docs/benchmarks.md

simulate: $(STAMP)  ## the long simulations of the statistics: their tables in docs/simulations.md
	$(BIN)/python -m tests.simulate

campaign: $(STAMP)  ## the long fault campaign; its short seeded version is part of `make test`
	MPSQ_CAMPAIGN=long MPSQ_TREES=20 $(BIN)/python -m pytest tests -m process -n 2

faults: $(STAMP)  ## five minutes of the simulator, each planted bug, each error of SQLite; then 30 campaigns of real kills
	MPSQ_FAULTS=long $(BIN)/python -m pytest tests/faults -n 2
	MPSQ_SEEDS=30 $(BIN)/python -m pytest tests/worker/test_lane_campaign.py -n 2

campaign-slurm: $(STAMP)  ## the faults planted in a real Slurm, ten times each; `make test` plants three of them once
	MPSQ_CAMPAIGN=long $(BIN)/python -m pytest tests/remote -m process -n 2

mac: $(FRAMEWORKS)  ## on a Mac: what holds of what could only be tried on stand-ins (docs/macos.md)
	$(BIN)/python -m tests.mac_check

clean:  ## everything that make made, but for the system's packages
	rm -rf $(VENV) build dist *.egg-info
