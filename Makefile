# Everything runs in .venv, made here; nothing else is needed on the machine but Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
# tests at once: they wait for processes half of the time, so twice as many as two cores
WORKERS ?= 4
export OMP_NUM_THREADS ?= 1

.PHONY: demo quick test every-test check format generated examples docs faults papers gpu bounds install clean

install: .venv/installed

# torch first and through the constraints: unpinned, it would bring gigabytes of CUDA
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

demo: install
	$(BIN)/pipesched verify gpt --schedule gpipe,1f1b -p 2 -m 8 --microbatch-size 2 --rounds 3 --iterations 1 --out out

# the unit tests: no process is started, and hypothesis draws few examples of a property
quick: install
	$(BIN)/pytest -q --quick -n auto --dist loadfile --no-loadscope-reorder

# the gate and all tests side by side: mypy alone would leave a core idle for a minute
test: install
	+$(MAKE) --no-print-directory -j 2 check every-test

every-test: install
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# docs/schedules.md with its pictures, and the tables of docs/files.md
generated: install
	$(BIN)/python docs/make_schedules.py
	$(BIN)/python docs/make_files.py

# what the tutorial and the how-tos show of commands and code
examples: install
	$(BIN)/python docs/examples.py README.md docs/tutorial.md docs/own_schedule.md docs/sweep.md docs/howto/*.md

# what is promised of files, ranks and interrupts, counted: all rows, a part of each, in half an hour; FAULTS=1 is all
FAULTS ?= 0.4
faults: install
	mkdir -p build
	$(BIN)/python benchmarks/faults.py --share $(FAULTS) --out build/faults.md

# the tables and figures of the five papers, repeated, in less than half an hour
papers: install
	$(BIN)/python benchmarks/papers.py --out benchmarks/results/papers.md

# the tests that need a GPU, then its figures, whatever the tests say, in nine minutes; installs nothing: a machine
# without .venv needs a Python with torch and the packages of pipesched
GPU_TESTS = $(shell grep -rl "mark\.gpu" tests --include="test_*.py")
GPU_PYTHON = PYTHONPATH="$(CURDIR):$$PYTHONPATH" $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
gpu:
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 timeout 120 env $(GPU_PYTHON) -m pytest -c tests/gpu/pytest.ini -m gpu $(GPU_TESTS); tests=$$?; \
	$(GPU_PYTHON) benchmarks/gpu.py --minutes 7 && exit $$tests

# the tests of loops in machine code that refuses an index outside its array
bounds: install
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=build/bounds $(BIN)/pytest -q -n $(WORKERS) --dist loadfile tests/schedules tests/profiles tests/simulator

# the site, in build/site: every link inside it is checked, and warnings are errors
docs: install
	$(BIN)/sphinx-build -q -W --keep-going -E -b html -c docs . build/site

clean:
	rm -rf .venv out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
