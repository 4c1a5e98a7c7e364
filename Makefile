# What a newcomer runs first, and what every change is held to; `make help` lists it.
#
# The environment is made once, and again when pyproject.toml or constraints.txt change: a copy of
# both lies in it. Nothing else here needs a network. JAXEFF_VENV names another folder for it,
# PYTHON the interpreter that it is made of, ARGS what the command of a target is told besides.

JAXEFF_VENV ?= .venv
PYTHON ?= python3
ARGS ?=

export JAXEFF_VENV
bin := $(JAXEFF_VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help env demo test lint docs package nightly golden

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 10

env: ## the environment alone
	@bash .ci/environment.sh "$(PYTHON)"

demo: env ## the main job on digits that come with it, to its picture; three minutes after the install
	$(bin)/python -m experiments.quickstart --data digits $(ARGS)

test: env ## the fast tests; all of them: make test ARGS='-m ""', of one room: ARGS=tests/noise
	$(bin)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: env ## format, lint and types
	@status=0; for check in "ruff format --check ." "ruff check ." mypy; do \
	  $(bin)/$$check || status=1; done; exit $$status

docs: env ## the site with the reference of every function, into site/
	NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build

package: env ## wheel and source archive, into dist/, each tried in an environment of its own
	bash .ci/package.sh "$(PYTHON)"

nightly: env ## the fast tests with the newest build of JAX, in an environment of its own
	$(MAKE) env JAXEFF_VENV=$(JAXEFF_VENV)-nightly
	$(bin:%/bin=%-nightly/bin)/python -m pip install --quiet --pre --upgrade jax jaxlib \
	  --index-url https://us-python.pkg.dev/ml-oss-artifacts-published/jax/simple/
	$(bin:%/bin=%-nightly/bin)/python -m pytest -n 2 $(ARGS)

golden: env ## programs of all networks and transforms, compared with those that are kept
	$(bin)/python -m tests.golden $(ARGS)
