# Everything that is done with this checkout. Python 3.11 or newer and make are all that has to be there: .venv is made
# when a target first needs it, from the lock files alone.

PYTHON ?= python3
ARGS ?=
SECONDS ?= 60
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
PROXY := $(BIN)/python -m proxy
POLICIES := $(wildcard config/*.yaml)

# What is generated, and the command that prints it: `make gen` writes it, `make check` compares it.
GENERATED := docs/repairs.md docs/presets.md docs/coverage.md config/policy.schema.json
print_docs/repairs.md := -m docs.print_repairs
print_docs/presets.md := -m docs.print_presets
print_docs/coverage.md := -m docs.print_coverage
print_config/policy.schema.json := -m proxy schema

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test test-browser test-clients test-real test-session fuzz check gen bench soak lock format lint types layers policy generated

help: ## say what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 18

run: .venv/runtime ## serve config/policy.yaml on 127.0.0.1:8080; more flags in ARGS="--port 9000"
	@$(PROXY) serve -c config/policy.yaml $(ARGS)

test: .venv/dev ## run the tests; a part of them with ARGS="tests/test_sse.py -k split"
	@$(BIN)/python -m pytest -n 2 $(ARGS)

test-clients: .venv/clients tests/clients/node_modules/.done ## run the whole matrix of clients; Node 20 or newer is needed
	@$(BIN)/python -m pytest -m "clients or not real" tests/clients $(ARGS)

test-real: .venv/dev ## run the tests that need a real backend
	@$(BIN)/python -m pytest -m real $(ARGS)

test-browser: .venv/dev ## run the tests of the admin port's page in Chromium (the command chromium, or what CHROMIUM names)
	@$(BIN)/python -m pytest -m browser tests/page $(ARGS)

test-session: .venv/dev ## run the tests of the edge over the other data path
	@MENDPROXY_DATA_PATH=session $(BIN)/python -m pytest tests/edge tests/cases tests/properties tests/sdk $(ARGS)

fuzz: .venv/dev ## change good bytes until something breaks, SECONDS=60 for each target; some of them with ARGS="sse http"
	@$(PIP) --require-hashes -r requirements-fuzz.lock || echo "There is no atheris for this Python: the changes are blind." >&2
	@$(BIN)/python tests/fuzz --seconds $(SECONDS) --findings .hypothesis/fuzz $(ARGS)

check: format lint types layers policy generated ## all that has to hold before a change goes in; the tests come last
	@$(MAKE) --no-print-directory test

gen: .venv/dev ## write the generated files again
	@$(foreach file,$(GENERATED),echo "$(file)"; mkdir -p "$(dir $(file))"; \
		$(BIN)/python $(print_$(file)) > "$(file).new" && mv "$(file).new" "$(file)" || { rm -f "$(file).new"; exit 1; };)

# A larger harness that lies beside the checkout is used where there is one.
PAGE ?= docs/benchmarks.md
HARNESS := $(wildcard ../shared/bench/bench.py)

bench: .venv/dev ## measure the proxy beside its peers and write docs/benchmarks.md; for a look only ARGS=--quick PAGE=
	@$(BIN)/python -m bench $(if $(HARNESS),--harness $(HARNESS)) $(if $(PAGE),--write $(PAGE)) $(ARGS)

# 900 unless SECONDS is told, whose own default is that of fuzz.
soak: .venv/dev ## load the proxy with streams and faults, SECONDS=900, and look for what is left; flags in ARGS="--workers 2"
	@$(BIN)/python -m soak --seconds $(if $(filter file,$(origin SECONDS)),900,$(SECONDS)) $(ARGS)

# The parts of check, each also a target of its own.
format: .venv/dev
	@$(BIN)/python -m ruff format --check .

lint: .venv/dev
	@$(BIN)/python -m ruff check .

types: .venv/dev
	@$(BIN)/python -m mypy

layers: .venv/dev
	@$(BIN)/python $(BIN)/lint-imports --no-logo

policy: .venv/dev
	@$(PROXY) check --deny-warnings $(POLICIES)
	@$(if $(wildcard config/tests),$(PROXY) test --coverage config/tests)

generated: .venv/dev
	@$(foreach file,$(GENERATED),$(BIN)/python $(print_$(file)) | diff -u "$(file)" - \
		|| { echo "$(file) is not what the code says: run make gen" >&2; exit 1; };)

# The environment. The runtime's part alone is enough for `make run`, and a newcomer waits for no more than that.
.venv/runtime: requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Python 3.11 or newer is needed, $(PYTHON) is %d.%d: make PYTHON=python3.13 ..." % v[:2])'
	@echo "Making .venv (some seconds, once) ..."
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) --require-hashes -r requirements.lock
	@touch $@

.venv/dev: .venv/runtime requirements-dev.lock pyproject.toml
	@echo "Adding the development tools to .venv ..."
	@$(PIP) --require-hashes -r requirements-dev.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

.venv/clients: .venv/dev requirements-clients.lock
	@echo "Adding the clients for Python to .venv ..."
	@$(PIP) --require-hashes -r requirements-clients.lock
	@touch $@

tests/clients/node_modules/.done: tests/clients/package.json tests/clients/package-lock.json
	@echo "Installing the clients for Node ..."
	@cd tests/clients && npm ci --silent
	@touch $@

# The locks: what runs, what builds the wheel, and both with the tools of development. No address gets into them, so
# that they hold with any index; the hashes say that it is the same file.
COMPILE := $(BIN)/python -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-annotate \
	--no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock: .venv/dev ## bring the lock files in line with pyproject.toml; newer releases with ARGS=--upgrade
	@$(COMPILE) $(ARGS) --extra fast -o requirements.lock pyproject.toml
	@$(COMPILE) $(ARGS) --only-build-deps --all-build-deps -c requirements.lock -o requirements-build.lock pyproject.toml
	@echo "atheris>=3" | $(COMPILE) $(ARGS) -o requirements-fuzz.lock -
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' \
		| $(COMPILE) $(ARGS) -o requirements-dev.lock requirements.lock requirements-build.lock -
	@grep -v '^#' requirements-dev.lock > requirements-dev.new && mv requirements-dev.new requirements-dev.lock
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["clients"], sep="\n")' \
		| $(COMPILE) $(ARGS) -c requirements-dev.lock -o requirements-clients.lock -
	@grep -v '^#' requirements-clients.lock > requirements-clients.new && mv requirements-clients.new requirements-clients.lock
