# `make demo` and `make test` do all set-up themselves; they need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Of `make bench`: the folder of data sets, if there is one, and the benchmarks to run (by default all).
DATA ?=
ONLY ?=
# Of `make soak`: the part of each campaign to run, and the seed of its faults.
SCALE ?= 1
SEED ?= 1
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check docs docs-test tutorials soak bench compatibility audit lock release clean

# The promise: a pretrained model, fine-tuned (without R-Drop and distillation, each of which doubles the time), beside random weights and a bag of words; then
# pretraining from scratch.
demo: $(VENV)/.core
	rm -rf demo
	$(BIN)/bertworks fill-mask en-small "I have never [MASK] this film before."
	$(BIN)/bertworks fill-mask zh-small "酒店的服务很[MASK]，下次还会来。"
	$(BIN)/bertworks finetune python-docs --data demo/labelled --model en-small --set r_drop=0 --set distill_weight=0 --output demo/tuned
	$(BIN)/bertworks finetune python-docs --data demo/labelled --vocab en-small --set model.size=mini --set r_drop=0 --set distill_weight=0 --output demo/random
	$(BIN)/python release/demo_scores.py demo/tuned demo/random
	echo "The event loop waits until the task is done." | $(BIN)/bertworks predict demo/tuned/model
	$(BIN)/bertworks vocab python-docs --size 8192 --output demo/vocab
	$(BIN)/bertworks prepare python-docs --vocab demo/vocab --output demo/corpus
	$(BIN)/bertworks show demo/corpus --count 2
	$(BIN)/bertworks pretrain demo --data demo/corpus --output demo/run
	$(BIN)/bertworks fill-mask demo/run/model "This function returns the [MASK] of the list."
	@echo "Open demo/tuned/report.html and demo/run/report.html in a browser."

test: $(VENV)/.full
	@command -v chromium > /dev/null || timeout 300 apt-get install -y -qq chromium fonts-noto-cjk > /dev/null 2>&1 \
		|| echo "Chromium is not here and may not be installed: the tests of the page are skipped."
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(VENV)/.full
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site in build/site, searchable without a network: docs/, the tutorials, and the reference from the package itself.
# A broken link, an undocumented public name or anything loaded from another host is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python release/docs_site.py build/site

# Executes the notebooks of docs/tutorials and writes their outputs into them; two minutes, no network.
tutorials: $(VENV)/.docs
	$(INSTALL) --editable '.[docs,onnx]'
	PYTHONWARNINGS=ignore $(BIN)/python release/run_notebooks.py docs/tutorials

# Runs every code block of docs/ that is not marked as needing data, hardware, a server and so on, and counts both.
docs-test: $(VENV)/.full
	$(BIN)/python -m pytest -m docs tests/test_doc_blocks.py -rP

# Writes docs/reliability.md, also if a campaign fails. SCALE=0.02 runs a fiftieth of each campaign.
soak: $(VENV)/.full
	rm -rf build/soak
	$(BIN)/python -m pytest -m soak --campaign-scale $(SCALE) --campaign-seed $(SEED); status=$$?; \
		$(BIN)/python release/reliability.py build/soak && exit $$status

# Writes docs/performance.md. The machine should be idle. DATA=FOLDER also runs those that need data sets;
# ONLY=inference,serving renews the rows of these two.
bench: $(VENV)/.peers
	$(BIN)/python benchmarks/bench.py $(if $(DATA),--data $(DATA)) $(if $(ONLY),--only $(ONLY))

# Writes docs/compatibility.md, also if a cell fails: models of transformers and sentence-transformers, built and compared.
compatibility: $(VENV)/.full
	$(BIN)/python release/compatibility.py

# Known vulnerabilities of the versions in constraints.txt. Needs a network; says so without one.
audit: $(VENV)/.core
	-@$(INSTALL) --editable '.[release]'
	$(BIN)/python release/audit.py

# The core dependencies with their hashes, for this platform: dist/requirements.lock, and that of bertworks-run.
lock: $(VENV)/.core
	$(BIN)/python release/lock.py pyproject.toml dist/requirements.lock
	$(BIN)/python release/lock.py run/pyproject.toml dist/requirements-run.lock

# Of bertworks and bertworks-run: wheel and sdist (built twice: the same bytes), locked requirements and software bill of materials
# (CycloneDX) in dist/. Then each wheel is installed into an environment of its own, and pip resolves its extras.
release: lock
	$(INSTALL) --editable '.[release]'
	$(BIN)/python release/build_packages.py dist
	$(BIN)/python release/sbom.py dist/requirements.lock dist/bertworks.cdx.json
	$(BIN)/python release/sbom.py dist/requirements-run.lock dist/bertworks-run.cdx.json
	$(BIN)/python release/check_packages.py dist

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bertworks needs Python 3.11 or newer; name one with: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	touch $@

$(VENV)/.full: $(VENV)/.core
	$(INSTALL) --editable '.[test,check]'
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(INSTALL) --editable '.[docs]'
	touch $@

$(VENV)/.peers: $(VENV)/.core
	$(INSTALL) --editable '.[peers]'
	touch $@
