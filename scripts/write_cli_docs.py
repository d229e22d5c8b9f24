#!/usr/bin/env python3
"""write_cli_docs.py [--check] PROGRAM DOCUMENT: puts what `PROGRAM COMMAND --help` prints into the document.

Under each heading "## COMMAND" the first block of code becomes that command's help. With --check nothing is written, and the
exit code is 1 if the document does not say what the program does, or leaves out a command.
"""
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r"^## (\S+)\n\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def help_of(program, *command):
    return subprocess.run([program, *command, "--help"], check=True, capture_output=True, text=True).stdout


def commands_of(program):
    """The names in the list that the program's own help has."""
    listed = help_of(program).split("Commands\n", 1)[1].split("\n\n", 1)[0]
    return [line.split()[0] for line in listed.splitlines() if not line.startswith("   ")]


def main(arguments):
    is_check = arguments[0] == "--check"
    program, document = arguments[is_check:]
    path = pathlib.Path(document)
    before = path.read_text(encoding="utf-8")
    commands = commands_of(program)
    described = [name for name, _ in BLOCK.findall(before)]
    missing = [name for name in commands if name not in described]
    after = BLOCK.sub(lambda found: f"## {found[1]}\n\n```\n{help_of(program, found[1])}```", before)
    if not is_check:
        path.write_text(after, encoding="utf-8")
    if missing:
        print(f"{document} has no section for: {', '.join(missing)}", file=sys.stderr)
    elif is_check and after != before:
        print(f"{document} is not what the program prints. Run scripts/write_cli_docs.py {program} {document}", file=sys.stderr)
    return 1 if missing or (is_check and after != before) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
