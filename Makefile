# One virtual environment, .venv, made once: a stamp for each set of packages says that it is there.
PYTHON ?= python3
VENV := .venv
SERVE_STAMP := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-test

.PHONY: serve test lint demo-model manifests clean

serve: $(SERVE_STAMP) ## Serve the demo model on http://localhost:8000
	@echo "== serving the demo model on http://localhost:8000 (Ctrl-C stops it)"
	@. $(VENV)/bin/activate && serve run apps.llm:app

test: $(TEST_STAMP) ## Run all tests
	@echo "== running the tests"
	@. $(VENV)/bin/activate && python -m pytest $(PYTEST_ARGS)

lint: $(TEST_STAMP) ## Check style
	@. $(VENV)/bin/activate && ruff check . && ruff format --check .

demo-model: $(TEST_STAMP) ## Train the demo model again (about 40 minutes on two cores)
	@. $(VENV)/bin/activate && python -m apps.llm.demo.train

manifests: $(SERVE_STAMP) ## Render the catalog into kuberay/manifests/ again
	@. $(VENV)/bin/activate && python -m kuberay render $$(python -m kuberay catalog --names) -o kuberay/manifests

clean: ## Remove the virtual environment
	rm -rf $(VENV)

$(VENV)/bin/python:
	@echo "== creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; $(PYTHON) is older. Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(SERVE_STAMP): pyproject.toml | $(VENV)/bin/python
	@echo "== installing what serving needs into $(VENV) (a few minutes, once)"
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -e .
	@touch $@

$(TEST_STAMP): pyproject.toml | $(VENV)/bin/python
	@echo "== installing what serving and testing need into $(VENV) (some minutes, once)"
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -e '.[test]'
	@touch $(SERVE_STAMP) $@
