PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo dev test test-web test-lowest test-newest fuzz lock sbom lint clean

.venv/plain: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch .venv/plain

.venv/dev: .venv/plain constraints.txt
	$(PIP) -c constraints.txt -e ".[dev]"
	touch .venv/dev

demo: .venv/plain  ## cut a photo into 3x3 worn pieces, shuffle them, solve the puzzle
	$(BIN)/puzlm make puzlm/samples/china.jpg --grid 3 --erode 0.1 --seed 7 -o demo/puzzle
	$(BIN)/puzlm solve demo/puzzle -o demo/solved.png
	@echo "Your own pieces: $(BIN)/puzlm solve FOLDER_OR_PICTURE -o solved.png"

dev: .venv/dev  ## everything that tests, training and the page need

test: .venv/dev lint  ## what CI runs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --ignore=tests/web

test-web: .venv/dev  ## the page in a real browser (needs Chromium: apt-get install chromium)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests/web

# Tests that need neither torch nor a browser, in environments of their own.
QUICK := tests/test_files.py tests/test_images.py tests/test_puzzle.py tests/test_fuzz.py \
    tests/cli/test_solve_usage.py tests/harness/test_evaluate.py tests/harness/test_compare.py \
    tests/harness/test_metrics.py tests/harness/test_resuming.py tests/models/test_decoding.py \
    tests/models/test_checkpoints.py tests/models/test_onnx_check.py tests/solving/test_solving.py \
    tests/web/test_service.py
NEEDED := -e ".[web]" pytest pytest-xdist hypothesis "scikit-learn>=1.4" httpx onnx
# typer of the lowest version uses names that today's click calls deprecated.
RUN_QUICK := -m pytest -n 2 -W ignore::DeprecationWarning $(QUICK)

test-lowest:  ## the quick tests with the lowest versions that pyproject.toml allows (Python 3.11)
	test -d .venv-lowest || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check \
	    -c constraints-lowest.txt $(NEEDED)
	OMP_NUM_THREADS=1 .venv-lowest/bin/python $(RUN_QUICK)

test-newest:  ## the same with the newest versions, for example: make test-newest PYTHON=python3.13
	test -d .venv-$(notdir $(PYTHON)) || $(PYTHON) -m venv .venv-$(notdir $(PYTHON))
	.venv-$(notdir $(PYTHON))/bin/pip install --quiet --disable-pip-version-check -U $(NEEDED)
	OMP_NUM_THREADS=1 .venv-$(notdir $(PYTHON))/bin/python $(RUN_QUICK)

fuzz: .venv/dev  ## five minutes of coverage-guided fuzzing for each of seven doors
	$(PIP) atheris
	$(BIN)/python -m tools.fuzz --seconds 300 -o docs/runs/fuzz.json

# The processor build of torch: from a folder of wheels where pip has one, else from torch's index.
CPU_TORCH := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS),--torch-backend cpu)

lock:  ## requirements-dev.lock: every package of the development environment with its hashes
	$(PIP) uv
	$(BIN)/uv pip compile pyproject.toml --all-extras -c constraints.txt --generate-hashes \
	    --python-version 3.11 $(CPU_TORCH) --no-header --no-annotate --quiet -o requirements-dev.lock

sbom: .venv/dev  ## sbom.json, the packages of the environment in the format CycloneDX
	$(PIP) cyclonedx-bom
	$(BIN)/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --of JSON -o sbom.json

lint: .venv/dev
	$(BIN)/ruff check puzlm bench peers tools tests
	$(BIN)/ruff format --check puzlm bench peers tools tests
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-* demo build *.egg-info
