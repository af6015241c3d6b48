# Every target sets up what it needs: a fresh clone plus `make serve` or `make test` is enough.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
ARGS ?=

.PHONY: install serve test check bench clients sglang-frontend clean

install: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo 'Installing into .venv: a few minutes the first time.'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,bench]'
	@echo 'Compiling for this processor: about ten seconds, once.'
	-$(BIN)/radixlm generate --max-tokens 1 Hello > /dev/null
	touch $(READY)

serve: $(READY)
	$(BIN)/radixlm serve $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m 'not slow' $(ARGS)

bench: $(READY)
	$(BIN)/radixlm bench shared-prefix $(ARGS)

# Environments of their own: what clients need is much, and aiperf's pins are not ours.
clients: .venv-clients/.ready .venv-aiperf/.ready
	.venv-clients/bin/python scripts/clients.py $(ARGS)

.venv-clients/.ready: pyproject.toml constraints.txt
	@echo 'Installing the clients into .venv-clients: a few minutes the first time.'
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,clients]'
	touch $@

.venv-aiperf/.ready: Makefile
	$(PYTHON) -m venv .venv-aiperf
	.venv-aiperf/bin/python -m pip install --quiet --disable-pip-version-check aiperf==0.13.0
	touch $@

# SGLang's frontend, without the server of the same package, which needs CUDA.
sglang-frontend: $(READY) .venv-sglang/.ready
	$(BIN)/python scripts/sglang_frontend.py $(ARGS)

.venv-sglang/.ready: Makefile
	$(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/python -m pip install --quiet --disable-pip-version-check aiohttp ipython msgspec numpy pybase64 pydantic requests tqdm
	.venv-sglang/bin/python -m pip install --quiet --disable-pip-version-check --no-deps sglang==0.5.23
	touch $@

clean:
	rm -rf .venv .venv-clients .venv-aiperf .venv-sglang
