#!/usr/bin/env python3
"""Checks that every file includes only its own layer and those below it, and that foreign headers stay where they belong.
The umbrella header includes every public header.

  cli -> plan -> pipelines -> models -> nn -> attention -> parallel -> comm -> core
                 pipelines -> schedulers, text, io      models, text -> io      schedulers, text, io, comm -> core

The rule is docs/architecture.md's. Run from anywhere; an argument gives another root. Exits 1 and lists the violations.
"""
import pathlib
import re
import sys

DIRECT = {
    "core": [],
    "io": ["core"],
    "schedulers": ["core", "io"],
    "comm": ["core"],
    "text": ["io"],
    "parallel": ["comm"],
    "attention": ["parallel"],
    "nn": ["attention"],
    "models": ["nn", "io"],
    "pipelines": ["models", "schedulers", "text", "io"],
    "plan": ["pipelines"],
    "cuda": ["comm"],
    "cli": ["plan"],
}
# Headers of c10d and its transports, and who may include them.
TRANSPORT = re.compile(r"torch/csrc/distributed|gloo/|nccl")
TRANSPORT_HOMES = ("src/comm/backends/", "src/comm/rendezvous.cpp", "src/cuda/")
# torch/nn/module.h brings all of ATen/ATen.h into whatever includes it.
# at::parallel_for runs on one thread where a file is compiled without OpenMP: these are compiled with it (src/CMakeLists.txt).
PARALLEL = re.compile(r"at::parallel_(for|reduce)")
PARALLEL_HOMES = ("src/attention/backends/flash_cpu.cpp", "src/nn/kernels/elementwise.cpp")
HEADERS_WITHOUT_MODULES = ("core", "io", "text", "comm", "parallel")

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def layers_below(layer):
    seen, waiting = set(), [layer]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += DIRECT[current]
    return seen


def layer_of(path):
    """The layer of a file by its path below the root, or None for one outside the layers (the umbrella header)."""
    parts = pathlib.PurePosixPath(path).parts
    if parts[0] == "cli":
        return "cli"
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 else None
    if parts[:2] == ("include", "pardiff"):
        return parts[2] if len(parts) > 3 else None
    return None


def layer_of_include(name):
    """The layer that an include names, or None for a foreign header."""
    parts = pathlib.PurePosixPath(name).parts
    if parts[0] == "pardiff":
        parts = parts[1:]
    return parts[0] if len(parts) > 1 and parts[0] in DIRECT else None


def violations_in(path, text):
    layer = layer_of(path)
    if layer is None:
        return
    if layer not in DIRECT:
        yield f"{path}: '{layer}' is not a layer. Known: {', '.join(DIRECT)}."
        return
    allowed = layers_below(layer)
    for name in INCLUDE.findall(text):
        target = layer_of_include(name)
        if target and target not in allowed:
            yield f"{path}: {layer} must not include {target} ({name})."
        if name == "pardiff/pardiff.h":
            yield f"{path}: the umbrella header is for users, not for the library."
        if TRANSPORT.search(name) and not target and not path.startswith(TRANSPORT_HOMES):
            yield f"{path}: {name} belongs in {', '.join(TRANSPORT_HOMES)} only."
        if name == "torch/nn/module.h" and path.endswith(".h") and layer in HEADERS_WITHOUT_MODULES:
            yield f"{path}: headers of {', '.join(HEADERS_WITHOUT_MODULES)} do without {name}."
    if PARALLEL.search(text) and path not in PARALLEL_HOMES:
        yield f"{path}: at::parallel_for works in {', '.join(PARALLEL_HOMES)} only, which are compiled with OpenMP."


def missing_from_umbrella(root):
    """The umbrella header includes every public header."""
    umbrella = root / "include/pardiff/pardiff.h"
    included = set(INCLUDE.findall(umbrella.read_text(encoding="utf-8")))
    for file in sorted((root / "include/pardiff").rglob("*.h")):
        name = file.relative_to(root / "include").as_posix()
        if file != umbrella and name not in included:
            yield f"include/pardiff/pardiff.h: does not include {name}."


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    found, checked = [], 0
    for folder in ("include", "src", "cli"):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in (".h", ".cpp"):
                continue
            checked += 1
            found += violations_in(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8"))
    if checked == 0:
        print(f"check_layers: no source files below {root}")
        return 1
    found += missing_from_umbrella(root)
    for line in found:
        print(f"check_layers: {line}")
    if not found:
        print(f"check_layers: {checked} files keep to their layers")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
