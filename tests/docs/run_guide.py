#!/usr/bin/env python3
"""run_guide.py SOURCE BUILD DOCUMENT: runs the commands of a document as they stand.

Blocks marked `sh` are run by one shell, one after another, in an empty folder that looks like the repository: what a command
needs of it is linked. A block marked `text` below them is a sample of the output: each of its lines must be there, with other
numbers and other text for "...".
"""
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
END_OF_BLOCK = "== end of block {} =="


def pattern_of(line):
    """A regular expression for a line of sample output."""
    pieces = re.split(r"(\d+(?:\.\d+)?|\.\.\.)", line)
    return "".join(".*" if piece == "..." else r"\d+(?:\.\d+)?" if index % 2 else re.escape(piece)
                   for index, piece in enumerate(pieces))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def has_torchrun(source):
    """The wheel without its dependencies (make TORCH=slim) has one that does not start."""
    program = pathlib.Path(source) / ".venv/bin/torchrun"
    return program.exists() and subprocess.run([program, "--help"], capture_output=True).returncode == 0


def outputs_of(commands, folder):
    """What each of the commands prints. Ends the program if one fails."""
    script = "set -e\n" + "".join(f"{command}\necho '{END_OF_BLOCK.format(i)}'\n" for i, command in enumerate(commands))
    environment = dict(os.environ, PORT=str(free_port()), OMP_NUM_THREADS="1")
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\na command of the document failed with {done.returncode}")
    outputs, rest = [], done.stdout
    for i in range(len(commands)):
        output, rest = rest.split(END_OF_BLOCK.format(i) + "\n", 1)
        outputs.append(output)
    return outputs


def main(source, build, document):
    blocks = BLOCK.findall(pathlib.Path(document).read_text(encoding="utf-8"))
    commands = [text for kind, text in blocks if kind == "sh"]
    if not has_torchrun(source):
        print("this torch has no torchrun: commands with it are left out")
        commands = ["true" if "torchrun" in text else text for text in commands]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part in ("models", "examples", ".venv"):
            (folder / part).symlink_to(pathlib.Path(source) / part)
        (folder / "build").mkdir()
        (folder / "build/release").symlink_to(build)
        outputs = outputs_of(commands, folder)
    wrong, at = [], -1
    for kind, text in blocks:
        if kind == "sh":
            at += 1
            continue
        for line in text.splitlines():
            if not re.search("^" + pattern_of(line) + "$", outputs[at], re.MULTILINE):
                wrong.append(f"'{line}' is not in:\n{outputs[at]}")
    print(f"ran {len(commands)} blocks of commands, compared {len(blocks) - len(commands)} of output")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
