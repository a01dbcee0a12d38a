PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo dev test test-web lint clean

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

lint: .venv/dev
	$(BIN)/ruff check puzlm bench tools tests
	$(BIN)/ruff format --check puzlm bench tools tests
	$(BIN)/mypy

clean:
	rm -rf .venv demo build *.egg-info
