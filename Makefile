# Each target sets up what it needs, once, in .venv. PYTHON chooses the interpreter: make test PYTHON=python3.13
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
HTML := _build/html
PORT ?= 8000

.DEFAULT_GOAL := help
.PHONY: help book test serve notebooks bench clean

help:
	@echo "make book        build the book into $(HTML), warnings are errors"
	@echo "make serve       build it and show it at http://localhost:$(PORT)"
	@echo "make test        build it and run every test and every notebook"
	@echo "make notebooks   execute the notebooks whose source has changed and write their outputs (ALL=1: every one)"
	@echo "make bench       measure again what is recorded in results/"
	@echo "make clean       remove the built book and $(VENV)"
	@echo
	@echo "The first of them installs what is needed into $(VENV); after that nothing is installed again."

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, but this is " + sys.version.split()[0] + ": choose one with make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	@touch $@

# A failed build is taken away: what it had read would pass in silence the next time.
book: $(READY)
	@$(BIN)/python -m tools.build_book

serve: book
	@echo "The book is at http://localhost:$(PORT) until you press Ctrl-C."
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory $(HTML)

test: book
	$(BIN)/python -m pytest --numprocesses auto tests
	$(BIN)/python -m pytest --nbval notebooks

notebooks: $(READY)
	$(BIN)/python -m tools.notebooks $(if $(ALL),--all)

bench: $(READY)
	$(BIN)/python -m benchmarks.first_network

clean:
	rm -rf _build $(VENV)
