# Every target sets itself up in .venv first; that takes minutes once and no time afterwards.
CONFIG ?= deployments/local.yaml
PORT ?=
RESULT ?= loadtest/results/quick-$(shell git rev-parse --short HEAD 2>/dev/null || echo local).json
ARGS ?=
# pytest's exit code where ARGS leaves nothing to run.
NONE_SELECTED := 5

.PHONY: help setup serve test test-fast lint bench docs loadtest-setup clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

setup: ## Install everything into .venv (CPU builds; rerun by itself when a lock changes)
	@.ci/setup

serve: setup ## Serve CONFIG=deployments/local.yaml, on PORT= if given, until Ctrl-C
	@exec .venv/bin/specray serve $(CONFIG) $(if $(PORT),--port $(PORT)) $(ARGS)

# Engines take a core each, the files that take longest first, as tests/conftest.py has them. A
# service takes the machine.
test: test-fast ## Run all tests, the fast ones first (ARGS="-k name")
	@OMP_NUM_THREADS=1 .venv/bin/pytest -m "e2e and not service" --numprocesses $$(nproc) \
		--maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS) \
		|| [ $$? = $(NONE_SELECTED) ]
	@.venv/bin/pytest -m service $(ARGS) || [ $$? = $(NONE_SELECTED) ]

# In several processes, of which each computes in one thread: they would wait for each other's.
test-fast: setup ## Run the tests that start no models
	@OMP_NUM_THREADS=1 .venv/bin/pytest -m "not e2e" --numprocesses auto --maxprocesses 4 \
		--dist loadfile $(ARGS) || [ $$? = $(NONE_SELECTED) ]

lint: setup ## Check format, style, types and imports
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: setup ## Measure speculation on against off, in under five minutes, into RESULT=
	@exec .venv/bin/specray bench --quick --config $(CONFIG) --json $(RESULT) $(ARGS)

docs: ## Build the documentation into build/docs
	@.ci/tools docs docs/requirements.txt
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet -f .ci/mkdocs.yml
	@echo "open build/docs/index.html"

loadtest-setup: ## Install Locust and matplotlib into .venv-loadtest
	@.ci/tools loadtest loadtest/requirements.txt

clean: ## Remove .venv and all caches
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build
	find specray tests loadtest -name __pycache__ -type d -prune -exec rm -rf {} +
