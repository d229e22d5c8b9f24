#!/usr/bin/env python3
"""Checks that every test that docs/errors.md names exists: `Suite.Name`, or `Suite` with at least one test."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    source = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("*.cpp")))
    tests = set(re.findall(r"\bTEST(?:_F|_P)?\((\w+),\s*(\w+)\)", source))
    suites = {suite for suite, _ in tests}
    named = 0
    missing = []
    for line in (ROOT / "docs/errors.md").read_text().splitlines():
        cells = line.split(" | ")
        if not line.startswith("|") or len(cells) < 4:
            continue
        for name in re.findall(r"`([A-Z]\w+(?:\.\w+)?)`", cells[2]):
            if name == "World":
                continue  # a class
            named += 1
            suite, _, test = name.partition(".")
            if not ((suite, test) in tests if test else suite in suites):
                missing.append(name)
    for name in missing:
        print(f"docs/errors.md names {name}, and there is no such test")
    if not named:
        print("docs/errors.md names no test")
    sys.exit(1 if missing or not named else 0)


if __name__ == "__main__":
    main()
