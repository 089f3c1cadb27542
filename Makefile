# One command per purpose; `make help` lists them. Each sets up what it needs on a fresh machine and reruns fast.

# Python 3.11 where present (PyTorch's CPU wheels and the reasoner's CPU engine are best there), else 3.12, 3.13, python3.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
TORCH ?= 2.13.0
# The index that PyTorch comes from. Where none is named, scripts/torch_index.py chooses: PyTorch's CPU index on a machine
# without an NVIDIA device, where it can be reached, else pip's own.
TORCH_INDEX ?=
ARGS ?=
# Two lanes of tests that start services, and units in what they leave of the cores: tests/support/lanes.py.
PARALLEL ?= -n auto

# A service is seven processes. Where this is set, each of them would compile torch and Ray anew at each start.
unexport PYTHONDONTWRITEBYTECODE

# uv downloads in parallel; pip does it where uv cannot, for example behind a private index.
install = $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '$(1)' || \
	$(PIP) install --quiet --no-compile --constraint constraints.txt --editable '$(1)'

# pip, since uv does not look into pip's own places (find-links, a configured index).
install_torch = index=$$($(BIN)/python scripts/torch_index.py $(TORCH_INDEX)); \
	$(PIP) install --quiet --no-compile $${index:+--index-url $$index} torch==$(TORCH) || \
	{ test -n "$$index" && echo "PyTorch $(TORCH) could not be had from $$index: trying pip's own index" && \
	$(PIP) install --quiet --no-compile torch==$(TORCH); }

# What is installed already is enough: a development environment also runs the quickstart.
INSTALLED := $(if $(wildcard $(VENV)/.dev),$(VENV)/.dev,$(VENV)/.quickstart)

.DEFAULT_GOAL := help
.PHONY: help quickstart test slow bytes check lint style unit bench setup setup-reasoner reasoner-for-tests ffmpeg-for-tests docs recipes clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The second act needs vLLM. Without it the first act still runs, and the command says what is missing.
quickstart: $(INSTALLED) ## both services on this machine: S3 to S3, then questions (ARGS="--json --no-reasoner …")
ifeq ($(findstring --no-reasoner,$(ARGS))$(COSMOS3_VLLM_PYTHON),)
	@$(MAKE) --no-print-directory setup-reasoner >&2 || echo "quickstart: no vLLM, so no second act (see above)" >&2
endif
	@$(BIN)/cosmos3 quickstart $(ARGS)

# Types are checked beside the tests: half a minute on one core.
test: style reasoner-for-tests ffmpeg-for-tests ## everything: lint, types, units, real Ray, a real S3 API, real vLLM, the quickstart
	@nice -n 5 $(BIN)/mypy --no-color-output >$(VENV)/mypy.log 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL) $(ARGS); tests=$$?; \
	wait $$types || tests=$$?; cat $(VENV)/mypy.log; exit $$tests

slow: reasoner-for-tests ffmpeg-for-tests ## the long lane, which `make test` leaves out: large files, 200 kills, long simulations
	$(BIN)/python -m pytest -m slow $(ARGS)

bytes: $(VENV)/.dev ## the tests of bytes as on other CPUs: each level of vector instructions, 1, 2 and 4 threads (ARGS=--short)
	$(BIN)/python tests/support/cpu_levels.py $(ARGS)

check: lint unit ## lint, types and the fast tests only

lint: style
	$(BIN)/mypy

CODE := src tests benchmarks containers docs recipes scripts hatch_build.py

style: $(VENV)/.dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow and not e2e" $(PARALLEL) $(ARGS)

bench: $(VENV)/.dev ## the measurements of benchmarks/README.md on this machine, short (in full: ARGS=--full)
	@for script in benchmarks/bench_*.py; do \
		$(BIN)/python "$$script" $(or $(filter-out --full,$(ARGS)),$(if $(ARGS),,--short)) || exit 1; done

docs: $(VENV)/.dev ## write the tables that are generated from the code
	$(BIN)/python docs/generate.py

recipes: $(VENV)/.dev ## write the manifests of recipes/ and workflows/ from the code
	$(BIN)/cosmos3 deploy render --target dynamo --output recipes/cosmos3-nano-reasoner
	$(BIN)/cosmos3 deploy render --target kuberay --service reasoner --output recipes/cosmos3-nano-reasoner
	$(BIN)/cosmos3 deploy render --target kuberay --service generator --output recipes/cosmos3-generator
	cp recipes/cosmos3-generator/batch/cosmos3-ray-batch.yaml workflows/testing/cosmos3-ray-batch.yaml

setup: $(VENV)/.dev ## the development environment in $(VENV)

# vLLM's CPU engine exists for Python 3.11 only.
PYTHON_VLLM ?= python3.11
# Services look for it beside their own environment.
VENV_VLLM ?= $(dir $(VENV)).venv-vllm
# Who needs vLLM depends on $(VLLM): the environment is whole, and made again when one of its inputs changes.
VLLM := $(VENV_VLLM)/.ready

setup-reasoner: $(VLLM) ## vLLM in an environment of its own, .venv-vllm, for `cosmos3 reasoner serve` (2.5 GB)

$(VLLM): scripts/setup_reasoner.sh scripts/reasoner_constraints.txt scripts/reasoner_overrides.txt \
		scripts/torchvision_on_cpu.py
	@PYTHON='$(PYTHON_VLLM)' VENV_VLLM='$(VENV_VLLM)' TORCH_INDEX='$(TORCH_INDEX)' UV='$(BIN)/uv' \
		sh scripts/setup_reasoner.sh
	@touch $@

# Where vLLM cannot be had, its tests skip and say why. In CI they fail: nobody reads there what was skipped.
reasoner-for-tests: $(VENV)/.dev
	@test -n "$$COSMOS3_VLLM_PYTHON" || $(MAKE) --no-print-directory $(VLLM) || { printf '\n%s\n%s\n\n' \
		"==== There is no vLLM here; the reason is above. The tests that need it (tests/e2e/test_reasoner_answers.py," \
		"==== test_reasoner_deaths.py) are skipped, and in CI they fail." >&2; test -z "$$CI"; }

ffmpeg-for-tests:
	@sh scripts/ffmpeg_for_tests.sh

$(VENV)/.torch:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed: install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "installing PyTorch $(TORCH) into $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV) >&2
	@{ $(install_torch); } >&2
	-@$(PIP) install --quiet --no-compile 'uv>=0.5' >&2
	@touch $@

$(VENV)/.quickstart: $(VENV)/.torch pyproject.toml constraints.txt
	@echo "installing .[quickstart] into $(VENV): 330 MB to download beside PyTorch, 1.8 GB on disk with its CPU build" >&2
	@{ $(call install,.[quickstart]); } >&2
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml constraints.txt
	@echo "installing .[dev] into $(VENV): 650 MB to download beside PyTorch" >&2
	@{ $(call install,.[dev]); } >&2
	@touch $@

clean: ## remove the environment, caches and quickstart results
	rm -rf $(VENV) $(VENV_VLLM) .quickstart .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
