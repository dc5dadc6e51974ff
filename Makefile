# Two commands: `make serve` builds all and serves the demo model; `make test` builds all and passes all tests.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

TOOLS  := .tools
UV     := $(TOOLS)/bin/uv
UV_PIN := uv==0.13.9
PY     := .venv/bin/python

export CARGO_TERM_PROGRESS_WHEN := never
# The lock files are the truth: no build may change them.
CARGO := cargo

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: prerequisites
prerequisites:
	@bash deploy/prerequisites.sh

.PHONY: prerequisites-lint
prerequisites-lint:
	@bash deploy/prerequisites.sh lint

$(UV): Makefile | prerequisites
	@echo "==> uv (from PyPI) into $(TOOLS)"
	python3 -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check $(UV_PIN)
	@touch $@

# The public suite of JSON Schema, as a release of a validator carries it: pinned by its hash.
SCHEMA_SUITE := target/schema-suite/jsonschema-4.26.0.tar.gz

$(SCHEMA_SUITE): bench/grammar/suite.txt | $(UV)
	@echo "==> the JSON-Schema-Test-Suite (from PyPI) into $(@D)"
	$(TOOLS)/bin/python -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --no-binary jsonschema --dest $(@D) -r $<
	@touch $@

.PHONY: build
build: $(UV) ## Everything: the Python environment, both wheels, .venv/bin/pelton. TORCH=cpu: no CUDA packages
	@echo "==> Python packages from uv.lock; Rust from Cargo.lock (the first time takes some minutes)"
ifeq ($(TORCH),cpu)
	$(UV) sync --locked --inexact $$(deploy/cuda-packages.sh)
	$(UV) pip install --torch-backend=cpu 'torch>=2.11'
else
	$(UV) sync --locked
endif
	@# Compiled modules load in half the time, also for whom Python may not write them (PYTHONDONTWRITEBYTECODE, as images set it).
	@# Some are for newer Pythons and do not compile, and without any of it all works: so this cannot fail.
	@[ .venv/compiled -nt uv.lock ] || { echo "==> compiling the packages"; \
		$(PY) -m compileall -q -j 0 .venv/lib/python3*/site-packages > /dev/null || true; touch .venv/compiled; }
	@# The first start is as quick as the others. Where nothing can be kept, each start loads the model anew, and all works.
	@echo "==> the demo model is loaded once"
	@.venv/bin/pelton prepare demo || echo "==> it is not kept: see above; each start loads it"
	@test -x .venv/bin/pelton && echo "==> .venv/bin/pelton is ready"

.PHONY: serve
serve: build ## Builds, then serves the demo model on 127.0.0.1:8000
	exec .venv/bin/pelton serve $(ARGS)

.PHONY: chat
chat: build ## Builds, then a terminal chat with the demo model
	exec .venv/bin/pelton chat $(ARGS)

.PHONY: lint
lint: prerequisites-lint build ## rustfmt, clippy, ruff, mypy: warnings are errors
	@echo "==> rustfmt"
	$(CARGO) fmt --all --check
	@echo "==> clippy"
	$(CARGO) clippy --locked --release --workspace --all-targets -- -D warnings
	@echo "==> ruff"
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	@echo "==> mypy"
	.venv/bin/mypy
	@echo "==> planted bugs still apply"
	.venv/bin/python router/core/mutants.py --check

.PHONY: test-rust
test-rust:
	@echo "==> cargo test"
	@# Two crates switch on features of what others build on for their tests (tokio's clock, planted faults). Apart, or all of that
	@# would be compiled once more; with the wheel's crate beside them, so that the other features are those of the build.
	$(CARGO) test --locked --release --workspace --exclude pelton-kv-events --exclude pelton-engine
	$(CARGO) test --locked --release -p pelton-kv-events -p pelton-python
	$(CARGO) test --locked --release -p pelton-engine -p pelton-python

.PHONY: test-python
test-python: build $(SCHEMA_SUITE)
	@echo "==> pytest: kernels, worker, demo model"
	OMP_NUM_THREADS=1 $(PY) -m pytest kernels/tests pyworker/tests bench/demo -n 2 --dist loadfile
	@echo "==> pytest: whole servers, two files at a time: they start servers, and one process of a start uses one core"
	OMP_NUM_THREADS=1 $(PY) -m pytest tests -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: test
test: prerequisites-lint build lint test-rust test-python ## Builds, lints and runs every test
	@echo "==> all passed"

.PHONY: mutants
mutants: $(UV) ## Plants bugs in the core, one at a time, and sees whether its tests catch each of them
	$(UV) run --no-project python router/core/mutants.py

.PHONY: worlds
worlds: ## The core's simulator for as long as you like: make worlds COUNT=1000000 FIRST=0
	$(CARGO) run --locked --release -p pelton-core --example worlds -- $(or $(COUNT),100000) $(or $(FIRST),0)

.PHONY: soak
soak: build ## A server under load for MINUTES=10 (8 hours: MINUTES=480): memory, descriptors and blocks must not grow; KILL=20: a worker is killed so often; FLAGS="--kv-host-memory 1GiB"
	$(PY) tests/soak/soak.py --minutes $(or $(MINUTES),10) $(if $(JSON),--json $(JSON),) $(if $(KILL),--kill-every $(KILL),) $(if $(FLAGS),-- $(FLAGS),)

# The coverage that libFuzzer needs, as stable compilers know it.
COVERAGE := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
	-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares

.PHONY: fuzz
fuzz: ## A fuzz target for a while: make fuzz TARGET=plan SECONDS=60 (others: result, answer, template, grammar, detok, tokenise)
	cd tests/fuzz && RUSTFLAGS="--cfg fuzzing $(COVERAGE)" $(CARGO) build --locked --release --target $$(rustc -vV | sed -n 's/^host: //p')
	python3 tests/fuzz/seeds.py
	@mkdir -p target/corpus/$(or $(TARGET),plan)
	tests/fuzz/target/$$(rustc -vV | sed -n 's/^host: //p')/release/$(or $(TARGET),plan) target/corpus/$(or $(TARGET),plan) $$(ls target/corpus/$(or $(TARGET),plan).dict 2>/dev/null | sed 's/^/-dict=/') \
		-max_total_time=$(or $(SECONDS),60) -max_len=$(if $(filter grammar,$(TARGET)),4096,65536) -timeout=20 -rss_limit_mb=2048 -artifact_prefix=target/corpus/found- $(FUZZ)

.PHONY: conformance
conformance: build ## schemathesis against /openapi.json and the demo model for MINUTES=10; SEED=7: other requests
	FUZZ_MINUTES=$(or $(MINUTES),10) FUZZ_SEED=$(or $(SEED),1) OMP_NUM_THREADS=1 $(PY) -m pytest tests/conformance/test_openapi.py -k as_it_says

.PHONY: schemas
schemas: build $(SCHEMA_SUITE) ## The public suite of JSON Schema and RANDOM=300 schemas through the grammars: what is served, and that it is kept. JSON=FILE
	$(PY) bench/grammar/suite.py --random $(or $(RANDOM),300) --documents $(or $(DOCUMENTS),10) $(if $(JSON),--json $(JSON),)

.PHONY: proto
proto: $(UV) ## Generates the Python side of proto/ again
	$(UV) run --script proto/generate.py

.PHONY: gpu-check
gpu-check: $(if $(DRY),build) ## On a machine with a card: every Triton kernel, a served model, the benchmarks. DRY=1 proves here that it would run
	$(if $(DRY),$(PY),python3) bench/gpu/check.py $(if $(DRY),--dry,)
