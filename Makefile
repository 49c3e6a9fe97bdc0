# Sets up .venv and the extension as far as they are missing or old, then does what is asked.
#   make bench     the comparison of all algorithms, beside the peers that are installed
#   make bench-tables  measures README's tables beside the peers, which it installs, and writes them there
#   make train     trains a small GPT on two ranks in a minute and a half, and plots loss and time
#   make test      quick checks of the source, then the tests that are quick; continuous integration runs it
#   make test-quick  what to run after an edit: the checks, the engine, and a test or two of each front (a minute)
#   make test-all  all tests (an hour); tests/README.md says which are where
#   make test-torch  torch's own tests of a torch.distributed backend, beside Gloo's results (AS=gloo: asked for by that name)
#   make test-torch AS=gloo PYTORCH=FOLDER  the test files of a checkout of PyTorch that ask for Gloo, beside Gloo itself
#   make test-horovod HOROVOD=FOLDER  Horovod's own tests for torch, of a checkout of Horovod, with our modules
#   make test-frameworks  tests with frameworks from PyPI, such as transformers and TensorFlow, in their own environment
#   make card-kit  builds what bench/gpu/visit.py needs to test and measure on a GPU (docs/gpu.md)
#   make fuzz      harnesses for libFuzzer over all that reads bytes of other ranks (hours; fuzz-short: a minute)
#   make test-memory-model  herd7 checks the protocols of shared memory under the memory models of C++, ARM and x86
#   make docs      the documentation as a site, with the reference of the Python API, in build/docs
#   make test-freethreaded  the tests of ranks as threads, under a CPython without the GIL (TSAN=1: and ThreadSanitizer)
#   make chaos     injects faults for ten minutes, and prints a table of what came of them
#   make mpi-suites OSU=FOLDER IMB=FOLDER  OSU's and Intel's collective benchmarks, with the interposer and without
#   make test-arm64  tests for arm64 under qemu, which it installs with apt-get (ten minutes; STEPS="schedules": of others)
#   make wheel     the source distribution and wheels, in dist (make sdist: the former alone; ARCH=aarch64: for arm64; LIBC=musl)
#   make test-wheels  installs the wheels in dist where they belong, and tries them (ARCH and LIBC as above)
#   make test-compilers  compiles the sources with g++ 13 to 15 and clang, in Debian systems that it unpacks (COMPILERS="g++-13")
#   make release   all that a release needs, in dist/VERSION, built twice and compared (RELEASE_FLAGS=--rehearse: to try it)
#   make lint      all checks, clang-tidy too (minutes)
# Needs git, python3 (>= 3.10) with venv, make and g++; all else comes from the package index.

PYTHON ?= python3
# Tests start hundreds of interpreters, each of which would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
BENCH_FLAGS ?= --compare
TABLES_FLAGS ?=
TRAIN_FLAGS ?= --ranks 2 --plot build/train/plot.png --json-log build/train/log.jsonl
# Tests of one file stay together, because many measure how long something takes. Five workers keep two cores busy:
# much of a test is waiting. Each takes 11 seconds to import and to collect all tests.
# A worker that is replaced may never get the rest of its tests: pytest-xdist 3.8 then hangs (its issue 1378).
PYTEST_FLAGS ?= -n 5 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 30
SUITE_FLAGS ?=
# No seed: a new one. No number of trials: as many as there is time for.
CHAOS_SECONDS ?= 600
CHAOS_SEED ?=
CHAOS_TRIALS ?=
CHAOS_FLAGS ?=
JOBS ?= $(shell nproc)
TEST_MPIS := openmpi mpich

# As in pyproject.toml's build-system.requires, which a build without isolation does not install by itself.
BUILD_REQUIRES := 'setuptools>=77' 'scikit-build-core>=1.0' 'nanobind>=2.4' 'numpy>=2.0' 'cmake>=3.28' ninja
TORCH := torch==2.13.0

# One at a time in the venv, also with make -j.
PIP := flock $(VENV) $(BIN)/python -m pip --disable-pip-version-check -qq
# Installs metadata, the command and a link to this folder. Extensions are built by ninja.
EDITABLE := PATH="$(CURDIR)/$(BIN):$$PATH" SKBUILD_CMAKE_DEFINE=RINGREDUCE_PYTHON=OFF \
  $(PIP) install --no-build-isolation --editable
# The venv's cmake and ninja, whatever else is installed. The compilers' settings come from the environment.
CMAKE := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake
CONFIGURE := $(CMAKE) -G Ninja -S . -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DRINGREDUCE_WERROR=ON
QUIETLY = > $@.log 2>&1 || { cat $@.log; exit 1; }

FILES := $(wildcard $(shell git ls-files --cached --others --exclude-standard))
CXX_FILES := $(filter %.cpp %.h %.c %.cu %.cuh,$(FILES))

.PHONY: help bench bench-tables train docs test test-quick test-all built-for-test test-torch test-horovod test-slurm test-arm64 test-memory-model test-freethreaded chaos check lint format engine fronts \
  emulated-gpu emulated card-kit cuda cuda-12 cuda-13 machine-code nccl-header asan tsan fuzz fuzz-short clean \
  sdist wheel release test-wheels test-compilers
.DEFAULT_GOAL := help
help:
	@sed -n '2,/make lint/s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

bench: export RINGREDUCE_BENCH_MPI ?= $(subst $() ,:,$(patsubst %/.ready,%,$(wildcard $(PEER_MPIS:%=.venv-%/.ready))))
bench: engine $(VENV)/.plot
	$(BIN)/python -m ringreduce bench $(BENCH_FLAGS)

bench-tables: bench-peers build/dev/.bench
	@$(CMAKE) --build build/dev -j $(JOBS) --target bench_collectives
	@$(BIN)/python -m bench.peers.readme_tables $(TABLES_FLAGS)

build/dev/.bench: build/dev/.torch
	$(DEV) -DRINGREDUCE_BENCH=ON $(QUIETLY)
	@touch $@

train: engine $(VENV)/.train
	$(BIN)/python -m ringreduce.train $(TRAIN_FLAGS)

# The last line is pytest's. The MPIs, each in a virtual environment of its own, come from bench/peers.mk.
test: check built-for-test
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) -m 'not slow'

# Chosen to take a minute on two cores, and to fail if a room is broken.
QUICK := tests/schedules tests/engine/reduce tests/engine/transport tests/packaging/test_layers.py tests/packaging/test_rooms.py \
  tests/packaging/test_doors.py tests/communicator/collectives/test_values.py tests/communicator/api/test_surface.py \
  tests/start/test_start.py tests/frameworks/torch/test_operations.py tests/frameworks/horovod/test_names.py \
  tests/frameworks/mpi/test_library.py
test-quick: check fronts
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) -m 'not slow' -q $(QUICK)

built-for-test: emulated-gpu $(VENV)/.tools .venv-mpich/.ready

# CUDA's part is built where there is an nvcc. Tests of what is missing are skipped, and pytest says which.
test-all: check built-for-test emulated cuda-12 nccl-header $(VENV)/.dev $(VENV)/.accelerate $(TEST_MPIS:%=.venv-%/.ready)
	$(if $(shell command -v nvcc),@$(MAKE) --no-print-directory cuda)
	@$(BIN)/python -m pytest $(PYTEST_FLAGS)
	@$(MAKE) --no-print-directory test-torch chaos

# To look at: python3 -m http.server -d build/docs
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.dev
	@$(BIN)/python -m mkdocs build --strict --quiet

# Otherwise AS is the assembler.
AS :=
# Gloo's results are kept in build/torch-suite and used again; SUITE_FLAGS=--redo runs its tests anew.
test-torch: fronts $(VENV)/.tools
	@$(BIN)/python -m tests.frameworks.torch.suite$(if $(PYTORCH),.files $(PYTORCH),$(AS:%= --backend as-%)) $(SUITE_FLAGS)

docs/environment.md: ringreduce/environment.py engine
	@$(BIN)/python -m ringreduce.environment > $@

test-horovod: fronts $(VENV)/.tools
	@PYTHONPATH=$(CURDIR)/tests/frameworks/horovod/suite $(BIN)/python -m ringreduce run -n 2 --prefix --as-horovod \
	  $(BIN)/python -m pytest -p no:cacheprovider $(or $(HOROVOD),$(error HOROVOD names a checkout of Horovod))/test/parallel/test_torch.py \
	  $(SUITE_FLAGS)

chaos: engine $(VENV)/.torch
	@$(BIN)/python -m tests.faults.chaos --seconds $(CHAOS_SECONDS) --within 3 \
	  $(CHAOS_SEED:%=--seed %) $(CHAOS_TRIALS:%=--trials %) $(CHAOS_FLAGS)
	@$(BIN)/python -m tests.faults.chaos.checkpoints $(CHAOS_SEED:%=--seed %)

# What a visit to a card takes along, built for its GPU alone (docs/gpu.md). EMULATED=1: for a dry run on the emulated GPU.
GPU_ARCHITECTURES ?= 90
KIT_LIBRARIES := libringreduce.so libringreduce_nccl.so
card-kit: $(if $(EMULATED),emulated,$(VENV)/.build)
ifdef EMULATED
	@$(BIN)/python bench/gpu/kit.py build/card-kit-emulated build/tests/libringreduce_cuda_emulated.so \
	  $(KIT_LIBRARIES:%=ringreduce/%)
else
	@mkdir -p build/kit
	@$(CONFIGURE) -B build/kit -DRINGREDUCE_TORCH=OFF -DRINGREDUCE_CUDA=ON -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON \
	  -DRINGREDUCE_CUDA_ARCHITECTURES=$(GPU_ARCHITECTURES) > build/kit.log 2>&1 || { cat build/kit.log; exit 1; }
	@$(CMAKE) --build build/kit -j $(JOBS) --target ringreduce_cuda ringreduce_nccl
	@$(BIN)/python bench/gpu/kit.py build/card-kit $(addprefix build/kit/,libringreduce_cuda.so $(KIT_LIBRARIES))
endif

# Programs under srun and sbatch; needs slurm-wlm and munge, and root for network namespaces.
test-slurm: fronts $(VENV)/.tools
	@$(BIN)/python -m pytest tests/start/slurm $(SLURM_FLAGS)

STEPS ?=
test-arm64: $(VENV)/.build
	@$(BIN)/python tests/arm64.py -j $(JOBS) $(if $(STEPS),--steps $(STEPS))

# HERD7: the command, if it is not on the PATH. Debian's package is herdtools7, from Debian 13 on.
test-memory-model: engine $(VENV)/.tools
	@$(BIN)/python -m pytest tests/engine/memory_model

# The engine is that of .venv; the extension is built on it. Without frameworks: their tests start processes.
FREE_THREADED ?= $(or $(shell command -v python3.14t || command -v python3.13t),$(CURDIR)/build/python3.13t/bin/python3.13t)
FREE := .venv-freethreaded
FREE_TESTS ?= tests/communicator tests/schedules tests/engine/transport tests/faults/test_lifecycle.py \
  tests/faults/test_daemon_threads.py tests/faults/test_leaks.py tests/diagnosis/test_statistics.py
# TSAN=1: ThreadSanitizer watches the engine, whose library takes the place of the usual one; CPython is as it was. A
# forked rank is not watched, so these are the tests of threads.
ifdef TSAN
FREE_TSAN := $(CURDIR)/build/freethreaded-tsan
FREE_TESTS := tests/communicator/api/test_threads.py tests/communicator/collectives/test_stress.py \
  tests/communicator/collectives/test_point_to_point.py tests/engine/transport -k 'local or test_threads'
FREE_UNDER = LD_PRELOAD="$$(g++ -print-file-name=libtsan.so) $(FREE_TSAN)/clocks.so $(FREE_TSAN)/libringreduce.so" \
  TSAN_OPTIONS="log_path=$(FREE_TSAN)/report exitcode=0 ignore_noninstrumented_modules=1 die_after_fork=0 \
  report_thread_leaks=0 suppressions=$(CURDIR)/tests/engine/cpp/cpython.tsan"
endif
test-freethreaded: engine $(FREE)/.ready
	@mkdir -p build/freethreaded
	@$(CMAKE) -G Ninja -S . -B build/freethreaded -DPython_EXECUTABLE=$(CURDIR)/$(FREE)/bin/python -DRINGREDUCE_WERROR=ON \
	  -DRINGREDUCE_ENGINE=$(CURDIR)/ringreduce/libringreduce.so -DRINGREDUCE_TORCH=OFF -DRINGREDUCE_CUDA=OFF \
	  > build/freethreaded/configure.log 2>&1 || { cat build/freethreaded/configure.log; exit 1; }
	@$(CMAKE) --build build/freethreaded -j $(JOBS) --target _engine
	@$(CMAKE) --install build/freethreaded --prefix . --component engine > build/freethreaded/install.log
ifdef TSAN
	@$(CMAKE) -G Ninja -S . -B $(FREE_TSAN) -DPython_EXECUTABLE=$(CURDIR)/$(FREE)/bin/python -DRINGREDUCE_SANITIZE=thread \
	  -DRINGREDUCE_TORCH=OFF -DRINGREDUCE_CUDA=OFF > $(FREE_TSAN).log 2>&1 || { cat $(FREE_TSAN).log; exit 1; }
	@$(CMAKE) --build $(FREE_TSAN) -j $(JOBS) --target ringreduce
	@gcc -O1 -Wall -Wextra -Werror -shared -fPIC -o $(FREE_TSAN)/clocks.so tests/engine/cpp/tsan_clocks.c
	@rm -f $(FREE_TSAN)/report.*
endif
	@$(FREE_UNDER) $(FREE)/bin/python -m pytest -n $(JOBS) --dist loadfile --max-worker-restart 0 -m 'not slow' $(FREE_TESTS)
	$(if $(TSAN),@! cat $(FREE_TSAN)/report.* 2> /dev/null)

$(CURDIR)/build/python3.13t/bin/python3.13t:
	packaging/cpython.sh 3.13 $(CURDIR)/build/python3.13t --disable-gil

$(FREE)/.ready: | $(FREE_THREADED)
	$(FREE_THREADED) -m venv $(FREE)
	$(FREE)/bin/python -m pip install -qq --prefer-binary 'nanobind>=2.4' 'numpy>=2.0' pytest pytest-timeout pytest-xdist \
	  hypothesis ml_dtypes
	@touch $@

# --- set-up: a stamp per step --------------------------------------------------------------------------------

$(VENV)/.build:
	test -x $(BIN)/python || $(PYTHON) -m venv --upgrade-deps $(VENV)
	$(PIP) install $(BUILD_REQUIRES)
	@touch $@

$(VENV)/.installed: $(VENV)/.build pyproject.toml setup.py
	@# What an older build has left here would be found before the metadata that is installed now.
	rm -rf *.egg-info
	$(EDITABLE) .
	@touch $@

# What checks and tests need. After torch, whose types mypy reads. Of these packages only what tests import is compiled,
# and here: several workers would compile it at the same time.
TESTS_IMPORT := hypothesis jinja2 matplotlib.pyplot pandas plotly.graph_objects scipy.optimize sklearn.datasets \
  statsmodels.api torch._dynamo torch.distributed.fsdp
$(VENV)/.tools: $(VENV)/.torch
	$(EDITABLE) '.[check,test]' pytorch-optimizer --no-compile
	@printf 'import %s\n' $(TESTS_IMPORT) | $(BIN)/python -W ignore
	@touch $@

# And what documentation, slow tests and slow checks need.
$(VENV)/.dev: $(VENV)/.tools
	$(EDITABLE) '.[dev]'
	@touch $@

$(VENV)/.release: $(VENV)/.dev
	$(PIP) install 'twine>=6'
	@touch $@

$(VENV)/.plot: $(VENV)/.torch
	$(PIP) install matplotlib tqdm
	@touch $@

$(VENV)/.torch: $(VENV)/.installed
	$(PIP) install --no-compile '$(TORCH)'
	@touch $@

$(VENV)/.train: $(VENV)/.torch
	$(PIP) install pydantic scikit-learn matplotlib tqdm pytorch-optimizer
	@touch $@

# After torch, of which pip would take another one for its sake, and after what else goes into this environment.
$(VENV)/.accelerate: $(VENV)/.train
	$(PIP) install accelerate
	@touch $@

# CUDA's part takes as long to compile as all else: make cuda builds it.
DEV := $(CONFIGURE) -B build/dev -DRINGREDUCE_CUDA=OFF

build/dev/build.ninja: $(VENV)/.build
	@mkdir -p $(@D)
	$(DEV) $(QUIETLY)

# The extension, in place; rebuilds what has changed. What was linked with an older engine may not fit this one.
engine: build/dev/build.ninja $(VENV)/.installed
	@$(CMAKE) --build build/dev -j $(JOBS) --target ringreduce _engine
	@$(CMAKE) --install build/dev --prefix . --component engine > build/dev/install.log
	@find ringreduce \( -name '_torch-*.so' -o -name libringreduce_nccl.so \) ! -newer ringreduce/libringreduce.so -delete

# Once more when there is torch, which decides what there is to build.
build/dev/.torch: $(VENV)/.torch | engine
	$(DEV) $(QUIETLY)
	@touch $@

# What is built on the engine: torch's backend and NCCL's interface. $(1): what else ninja builds at the same time.
define build_fronts
@$(CMAKE) --build build/dev -j $(JOBS) --target torch_backend ringreduce_nccl $(1)
@$(CMAKE) --install build/dev --prefix . --component fronts >> build/dev/install.log
endef
fronts: engine build/dev/.torch
	$(build_fronts)

# And what the GPU's threads do, for tests on the CPU.
emulated-gpu: engine build/dev/.torch
	$(call build_fronts,reduce_emulated interpreter_emulated cuda_emulated nccl_emulated driver_emulated)

# And torch tensors on that GPU, which only slow tests need.
emulated: emulated-gpu
	@$(CMAKE) --build build/dev -j $(JOBS) --target torch_emulated_cuda

# --- what is published ----------------------------------------------------------------------------------------

# Wheels for those Pythons of the list that are there, with the torch backend for those versions of torch.
WHEEL_PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14 python3.13t python3.14t
WHEEL_TORCH ?= 2.13.0 2.14.1 2.15.0
WHEEL_FOR = $(ARCH:%=--arch %) $(LIBC:%=--libc %)
sdist: $(VENV)/.build
	@$(BIN)/python packaging/wheels.py sdist
wheel: $(VENV)/.build
	@$(BIN)/python packaging/wheels.py wheel -j $(JOBS) $(WHEEL_FOR) --python $(WHEEL_PYTHONS) --torch $(WHEEL_TORCH)
test-wheels: $(VENV)/.build
	@$(BIN)/python tests/wheels.py $(WHEEL_FOR) --python $(WHEEL_PYTHONS)
COMPILERS ?=
test-compilers: $(VENV)/.build
	@$(BIN)/python tests/compilers.py -j $(JOBS) $(COMPILERS)

# Names of Pythons as wheels have them, and of platforms as packaging/release.py has.
RELEASE_PYTHONS ?= cp310 cp311 cp312 cp313 cp314 cp313t cp314t
RELEASE_FLAGS ?=
release: docs $(VENV)/.release
	@$(BIN)/python packaging/release.py -j $(JOBS) --pythons $(RELEASE_PYTHONS) --torch $(WHEEL_TORCH) $(RELEASE_FLAGS)

# --- checks --------------------------------------------------------------------------------------------------

# The commands of .pre-commit-config.yaml on all files, but for the slow one. Not again if no file has changed.
check: build/dev/.checked
build/dev/.checked: $(FILES) | engine $(VENV)/.tools
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	@$(BIN)/codespell
	@$(BIN)/mypy --no-error-summary
	@touch $@

lint: check fronts $(VENV)/.dev
	@$(BIN)/python tests/tidy.py -j $(JOBS) $(TIDY_FILES)

format: $(VENV)/.tools
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format --quiet .
	$(BIN)/clang-format -i $(CXX_FILES)

# --- the C++ side alone, with sanitizers ---------------------------------------------------------------------

asan: SANITIZERS := address,undefined
asan: export UBSAN_OPTIONS := print_stacktrace=1:halt_on_error=1
tsan: SANITIZERS := thread
tsan: export TSAN_OPTIONS := halt_on_error=1 suppressions=$(CURDIR)/tests/engine/cpp/tsan.supp
tsan: STRESS_FLAGS := --threads-only
# The ranks' kernels, too: a fence that is missing there is a data race here.
tsan: EMULATED := cuda_emulated interpreter_emulated
tsan: $(VENV)/.tools
asan tsan: $(VENV)/.build
	@mkdir -p build/$@
	$(CONFIGURE) -B build/$@ -DRINGREDUCE_PYTHON=OFF -DRINGREDUCE_TESTS=ON \
	  -DRINGREDUCE_SANITIZE=$(SANITIZERS) > build/$@/configure.log
	$(CMAKE) --build build/$@ -j $(JOBS) --target stress $(EMULATED)
	build/$@/tests/engine/cpp/stress $(STRESS_FLAGS)
	$(if $(EMULATED),EMULATED_LIBRARIES=$(CURDIR)/build/$@ LD_PRELOAD=$$(g++ -print-file-name=libtsan.so) \
	  $(BIN)/python -m pytest -q -s tests/gpu/test_ranks.py tests/gpu/test_interpreter.py)

# --- what reads bytes of others, under libFuzzer and sanitizers ---------------------------------------------------

# FUZZ_RUNS executions of each harness, 10^7 in all; fuzz-short only replays the seeds and looks around a little.
FUZZERS := stream frames agreement messages tables
FUZZ_RUNS ?= 2000000
FUZZ_CXX ?= clang++
FUZZ_FLAGS := -max_len=1024 -timeout=30 -rss_limit_mb=2048 -malloc_limit_mb=8192 -print_final_stats=1
fuzz-short: FUZZ_RUNS := 2000
fuzz fuzz-short: export UBSAN_OPTIONS := print_stacktrace=1:halt_on_error=1
fuzz fuzz-short: export ASAN_OPTIONS := allocator_may_return_null=1
fuzz fuzz-short: $(VENV)/.build
	@mkdir -p build/fuzz $(FUZZERS:%=build/fuzz/corpus/%)
	@echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' | \
	  $(FUZZ_CXX) -fsanitize=address,fuzzer -x c++ - -o build/fuzz/probe || { echo \
	  'make fuzz needs clang with libFuzzer; on Debian 12: apt-get install clang libclang-rt-14-dev'; exit 1; }
	@$(CONFIGURE) -B build/fuzz -DCMAKE_CXX_COMPILER=$(FUZZ_CXX) -DRINGREDUCE_PYTHON=OFF -DRINGREDUCE_FUZZ=ON \
	  > build/fuzz/configure.log
	@$(CMAKE) --build build/fuzz -j $(JOBS) --target $(FUZZERS:%=fuzz_%)
	@printf '%s\n' $(FUZZERS) | xargs -P $(JOBS) -I NAME sh -c 'cd build/fuzz && tests/engine/fuzz/fuzz_NAME \
	  -runs=$(FUZZ_RUNS) $(FUZZ_FLAGS) -artifact_prefix=NAME- corpus/NAME $(CURDIR)/tests/engine/fuzz/seeds/NAME \
	  > NAME.log 2>&1 && echo "NAME: no finding in $(FUZZ_RUNS) executions" || { tail -n 60 NAME.log; exit 255; }'

# --- CUDA: with the nvcc that is there, with PyPI's, and against older headers ------------------------------

CUDA_CONFIGURE = $(CONFIGURE) -DRINGREDUCE_PYTHON=OFF -DRINGREDUCE_CUDA=ON
CUDA_13 := .venv-cuda13/nvidia/cu13
CUDA_12 := .venv-cuda12/toolkit
CUDA_13_PACKAGES := nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-nvvm nvidia-cuda-crt nvidia-cuda-cccl
NCCL_READ := g++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Icsrc -isystem $(CUDA_13)/include -isystem $(CUDA_13)/include/cccl
# The newest that clang-tidy's clang knows all of.
CUDA_12_PACKAGES := 'nvidia-cuda-nvcc-cu12==12.3.*' 'nvidia-cuda-runtime-cu12==12.3.*'

cuda: $(VENV)/.build
	@mkdir -p build/$@
	@$(CUDA_CONFIGURE) -B build/$@ > build/$@/configure.log 2>&1 || { cat build/$@/configure.log; exit 1; }
	@$(CMAKE) --build build/$@ -j $(JOBS) --target ringreduce_cuda
	@$(CMAKE) --install build/$@ --prefix . --component cuda > build/$@/install.log

cuda-13: $(VENV)/.build .venv-cuda13/.ready
	@mkdir -p build/$@
	@$(CUDA_CONFIGURE) -B build/$@ -DCMAKE_CUDA_COMPILER=$(CURDIR)/$(CUDA_13)/bin/nvcc > build/$@/configure.log 2>&1 || { cat build/$@/configure.log; exit 1; }
	@$(CMAKE) --build build/$@ -j $(JOBS) --target ringreduce_cuda

# A table of what the ranks' kernels are in machine code. Needs cuobjdump and nvdisasm.
machine-code: cuda
	@python3 bench/gpu/machine_code.py build/cuda/libringreduce_cuda.so

# PyPI has no nvcc 12, but its headers: clang reads all sources with them, as host code and as device code.
cuda-12: $(VENV)/.tools .venv-cuda12/.ready
	@$(BIN)/python tests/cuda_headers.py -j $(JOBS) $(CUDA_12)

# Of the oldest NCCL that serves, and of the newest.
nccl-header: .venv-cuda13/.ready .venv-nccl/.ready
	@for file in since_2_18.cpp since_2_27.cpp; do \
	  $(NCCL_READ) -isystem .venv-nccl/newest/nvidia/nccl/include tests/gpu/nccl_header/$$file || exit 1; done
	@$(NCCL_READ) -isystem .venv-nccl/oldest/nvidia/nccl/include tests/gpu/nccl_header/since_2_18.cpp

.venv-nccl/.ready: $(VENV)/.build Makefile
	$(PIP) install --no-deps --upgrade --target $(@D)/newest nvidia-nccl-cu13
	$(PIP) install --no-deps --upgrade --target $(@D)/oldest 'nvidia-nccl-cu12==2.18.*'
	@touch $@

.venv-cuda13/.ready: Makefile | $(VENV)/.build
	$(PIP) install --no-deps --upgrade --target $(@D) $(CUDA_13_PACKAGES)
	@touch $@

# One folder of what comes in several, and an empty header of a library that clang includes and we do not use.
.venv-cuda12/.ready: Makefile | $(VENV)/.build
	$(PIP) install --no-deps --upgrade --target $(@D) $(CUDA_12_PACKAGES)
	rm -rf $(CUDA_12) && mkdir $(CUDA_12)
	for part in cuda_nvcc cuda_runtime; do cp -r $(@D)/nvidia/$$part/. $(CUDA_12); done
	touch $(CUDA_12)/include/curand_mtgp32_kernel.h $@

clean:
	rm -rf build ringreduce/_engine*.so ringreduce/_engine*.pyi *.egg-info .pytest_cache .mypy_cache .ruff_cache

include bench/peers.mk
include tests/frameworks/installed/frameworks.mk
