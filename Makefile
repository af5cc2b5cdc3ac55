# make run | shell | reports | test | test-slow | test-versions | chaos | lint | bench | clean. Set-up is done once and again only when its inputs change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: run shell reports test test-slow test-versions chaos lint bench lock image-digest clean
.DEFAULT_GOAL := run

run: $(READY)
	$(BIN)/flower-simulation --app fl_app

# a shell in which fl-app and the other commands are found; leave it with exit
shell: $(READY)
	@echo "fl-app is on the PATH of this shell; leave it with exit"
	@PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV="$(CURDIR)/$(VENV)" $${SHELL:-/bin/sh}

# all experiments and runs as one static site, site/index.html
reports: $(READY)
	$(BIN)/fl-app-report --site site multirun

# one thread for each of the workers: together they fill the cores
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# an environment for each supported Flower, the oldest with the oldest of all other packages; VERSIONS=1.40 for one
VERSIONS ?= 1.40 1.41
test-versions: $(READY)
	$(BIN)/python -m benchmarks.versions $(VERSIONS)

# faults into real runs; the table says how many, and the exit code whether any run lost something
MINUTES ?= 10
chaos: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.chaos --minutes $(MINUTES) $(CHAOS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks

# hashes of all packages of the image; needs the package index
lock: $(READY)
	$(BIN)/python -m fl_app.deploy.lock pyproject.toml constraints.txt > requirements.lock.part
	mv requirements.lock.part requirements.lock

# which image python:3.11-slim is today: put it into the environment of docker compose build as BASE_IMAGE
image-digest:
	@docker buildx imagetools inspect python:3.11-slim --format 'BASE_IMAGE=python@{{.Manifest.Digest}}'

clean:
	rm -rf $(VENV) .cache

# torch first: no other package may pull another build of it
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	# a second accountant for the tests, which skip without it; its own demands contradict those of Flower
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps dp-accounting==0.6.0 absl-py==2.5.1
	$(BIN)/fl-app weights
	touch $(READY)
