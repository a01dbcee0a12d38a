PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-web lint clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch .venv/ready

demo: .venv/ready  ## cut a photo into 3x3 pieces, shuffle them, solve the puzzle
	$(BIN)/puzlm make puzlm/samples/china.jpg --grid 3 --erode 0.1 --seed 7 -o demo/puzzle
	$(BIN)/puzlm solve demo/puzzle -o demo/solved.png

test: .venv/ready lint  ## what CI runs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --ignore=tests/web

test-web: .venv/ready  ## the page in a real browser (needs Chromium: apt-get install chromium)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests/web

lint: .venv/ready
	$(BIN)/ruff check puzlm bench tools tests
	$(BIN)/ruff format --check puzlm bench tools tests
	$(BIN)/mypy

clean:
	rm -rf .venv demo build *.egg-info
