# The commands of a working day. `make demo` and `make test` start from nothing.
PYTHON ?= python3
JOBS ?= $(shell nproc)
# TORCH=slim installs what a CPU needs of the wheel (1.5 GB instead of 5.3): no CUDA libraries, no torchrun.
TORCH ?= full
PRESET ?= release

BUILD := build/$(PRESET)
PARDIFF := $(BUILD)/cli/pardiff
TORCH_PIN := $(shell grep '^torch==' requirements.txt)

.PHONY: all demo deps debian configure build program test test-full sanitize gpu-packages format lint api package install clean

all: build

## demo: install what is missing, build the program, make demo.png on two ranks
demo: program
	$(PARDIFF) generate --model models/flux-shapes --prompt "a large yellow star on a purple background" \
	  --height 128 --width 128 --steps 20 --max-sequence-length 64 --seed 0 --ulysses-degree 2 --output demo.png

## deps: Debian packages and the pinned torch wheel
deps: debian .venv/.has-$(TORCH)

debian:
	@scripts/install_deps.sh

.venv/.has-full: requirements.txt | debian
	test -x .venv/bin/python3 || $(PYTHON) -m venv .venv
	.venv/bin/python3 -m pip install -q -r requirements.txt
	touch .venv/.has-slim $@

.venv/.has-slim: requirements.txt | debian
	test -x .venv/bin/python3 || $(PYTHON) -m venv .venv
	.venv/bin/python3 -m pip install -q --no-deps $(TORCH_PIN) "nvidia-cuda-runtime==13.2.*" "nvidia-cuda-cupti==13.2.*"
	touch $@

configure: deps
	@mkdir -p build
	@cmake --preset $(PRESET) $(CMAKE_FLAGS) > build/$(PRESET).log 2>&1 || { cat build/$(PRESET).log; exit 1; }

program: configure
	cmake --build --preset $(PRESET) -j $(JOBS) --target pardiff_program

## build: library, program, tests and examples
build: configure
	cmake --build --preset $(PRESET) -j $(JOBS)

## test: everything but the exhaustive sweeps and what needs a GPU
test: build
	ctest --preset $(PRESET) -LE 'full|gpu'

## test-full: the exhaustive sweeps too
test-full: build
	ctest --preset $(PRESET) -LE gpu

## sanitize: unit and distributed tests under the address, undefined-behaviour and thread sanitizers; needs Debian's clang
sanitize: deps
	@mkdir -p build
	for preset in asan tsan; do \
	  cmake --preset $$preset > build/$$preset.log 2>&1 || { cat build/$$preset.log; exit 1; }; \
	  cmake --build --preset $$preset -j $(JOBS) --target unit_and_distributed_tests || exit 1; \
	  ctest --preset $$preset -L 'unit|distributed' -LE 'full|gpu' || exit 1; \
	done

## gpu-packages: what a GPU machine without a package registry needs to build, for scripts/check_gpu.sh
gpu-packages: debian
	@mkdir -p build
	scripts/pack_gpu.sh $(CURDIR)/build/gpu-packages.tar.gz

## install: into PREFIX (default /usr/local)
PREFIX ?= /usr/local
install: build
	cmake --install $(BUILD) --prefix $(PREFIX)

SOURCES = $(shell git ls-files '*.cpp' '*.h')

## api: the public headers as HTML, in build/api/html
api: debian
	@mkdir -p build
	doxygen docs/Doxyfile

## package: a .deb, in build/package
package: build
	cd $(BUILD) && cpack -G DEB -B $(CURDIR)/build/package

## format: every C++ file, in place
format:
	clang-format -i $(SOURCES)

## lint: formatting, layers
lint:
	clang-format --dry-run -Werror $(SOURCES)
	$(PYTHON) scripts/check_layers.py

clean:
	rm -rf build demo.png
