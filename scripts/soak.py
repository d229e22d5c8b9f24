#!/usr/bin/env python3
"""Serves random requests on 4 ranks for a long time, with a fault in about one of ten: bad requests and a full disk
among those ranks' own, and beside them other 4-rank runs of which a random rank is killed or stopped.

  soak.py [--build build/release] [--requests 1000] [--seed 0]

Reports requests right, faults survived, memory growth over the last half, descriptors and processes left; exit code 1 if
one of them misses its bar (all, all, under 1 %, none more, none). Needs root for the full disk (a small tmpfs).
"""
import argparse
import collections
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

RANKS = 4
TIMEOUT_S = 5
# A stopped rank is noticed after the timeout; ranks that end get some time on a machine that is busy with the soak.
MOST_SECONDS_TO_END = TIMEOUT_S + 10
OUTSIDE_FAULTS_PER_REQUEST = 0.05


def children_of(pid):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            return [int(child) for child in children.read().split()]
    return []


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "pardiff" in name}


@contextlib.contextmanager
def full_disk(folder):
    """A tmpfs without a free block, empty but for what fills it, which nobody sees: the file is deleted and open."""
    path = os.path.join(folder, "full")
    os.mkdir(path)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", path], check=True)
    filler = open(os.path.join(path, "filler"), "wb", buffering=0)
    os.unlink(filler.name)
    with contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))
    try:
        yield path
    finally:
        filler.close()
        subprocess.run(["umount", path], check=True)


class Disturbance:
    """A run of its own, one rank of which is killed or stopped at a random moment."""

    def __init__(self, program, model, folder, draw):
        self.output = os.path.join(folder, "disturbed.png")
        mode = draw.choice([["--ulysses-degree", "4"], ["--ring-degree", "4"], ["--ring-degree", "2", "--ulysses-degree", "2"]])
        command = [program, "generate", "--model", model, "--prompt", "a star", "--height", "64", "--width", "64", "--steps",
                   "10000", "--max-sequence-length", "16", "--seed", "0", "--device", "cpu", "--threads", "1", "--quiet",
                   "--comm", draw.choice(["shm", "gloo"]), "--timeout", str(TIMEOUT_S), "--output", self.output, *mode]
        self.signal = draw.choice([signal.SIGKILL, signal.SIGSTOP])
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        start_new_session=True, text=True)
        time.sleep(draw.uniform(0.1, 5))
        self.ranks = children_of(self.process.pid)
        if self.ranks:
            os.kill(draw.choice(self.ranks), self.signal)

    def fault(self):
        """What went wrong, or nothing."""
        if not self.ranks:
            self.process.kill()
            return "no rank was there yet"
        try:
            _, errors = self.process.communicate(timeout=MOST_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return f"still running {MOST_SECONDS_TO_END} s after {self.signal.name}"
        left = [pid for pid in self.ranks if os.path.exists(f"/proc/{pid}")]
        if left:
            return f"processes left: {left}"
        if self.process.returncode == 0 or os.path.exists(self.output):
            return "it ended well"
        messages = [line for line in errors.splitlines() if "pardiff: error" in line]
        return "" if len(messages) == 1 else f"{len(messages)} messages: {messages}"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--model", default="models/flux-shapes")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def soak(options, folder, disk):
    """Returns the requests' lines and what went wrong with each disturbance."""
    draw = random.Random(options.seed)
    program = os.path.join(options.build, "cli", "pardiff")
    ranks = os.path.join(options.build, "tests", "process", "soak_ranks")
    server = subprocess.Popen([ranks, options.model, disk, str(options.requests), str(options.seed)], stdout=subprocess.PIPE,
                              stderr=open(os.path.join(folder, "errors"), "w"), text=True, env={**os.environ, "PARDIFF_NPROC_PER_NODE": str(RANKS)})
    lines, disturbances = [], []
    for text in server.stdout:
        lines.append(json.loads(text))
        if not lines[-1]["ok"]:
            print("wrong:", text.strip(), flush=True)
        if draw.random() < OUTSIDE_FAULTS_PER_REQUEST:
            fault = Disturbance(program, options.model, folder, draw).fault()
            disturbances.append(fault)
            if fault:
                print(f"after request {len(lines)}: {fault}", flush=True)
        if len(lines) % 100 == 0:
            print(f"{len(lines)} requests, {len(disturbances)} disturbances", flush=True)
    if server.wait() != 0:
        with open(os.path.join(folder, "errors")) as errors:
            print(errors.read()[-2000:])
    return lines, disturbances, server.returncode


def report(options, lines, disturbances, code, left):
    inside = [line for line in lines if "fault" in line]
    good = [line for line in lines if "fault" not in line]
    half = lines[len(lines) // 2:]
    quarter = max(1, len(half) // 4)
    before, after = (statistics.median(line["resident"] for line in part) for part in (half[:quarter], half[-quarter:]))
    counts = collections.Counter(line["fault"] for line in inside)
    survived = sum(line["ok"] for line in inside) + sum(not fault for fault in disturbances)
    bars = {
        f"requests right: {sum(line['ok'] for line in good)} of {len(good)}": all(line["ok"] for line in good),
        f"requests served: {len(lines)} of {options.requests}, exit code {code}": len(lines) == options.requests and code == 0,
        f"faults survived: {survived} of {len(inside) + len(disturbances)} ({dict(counts)}, killed or stopped: "
        f"{len(disturbances)})": survived == len(inside) + len(disturbances),
        f"memory growth of rank 0 over the last {len(half)}: {100 * (after / before - 1):.2f} %": after < before * 1.01,
        f"descriptors: {half[0]['descriptors']}, then {half[-1]['descriptors']}":
            half[-1]["descriptors"] <= half[0]["descriptors"],
        f"left behind: {left or 'nothing'}": not left,
    }
    for line, met in bars.items():
        print(("ok    " if met else "MISSED"), line)
    return all(bars.values())


def main():
    options = arguments()
    shared_before = shared_memory()
    with tempfile.TemporaryDirectory() as folder, full_disk(folder) as disk:
        lines, disturbances, code = soak(options, folder, disk)
        left = sorted(shared_memory() - shared_before) + sorted(set(os.listdir(folder)) - {"full", "errors"}) + os.listdir(disk)
    if not lines:
        sys.exit("no request was served")
    sys.exit(0 if report(options, lines, disturbances, code, left) else 1)


if __name__ == "__main__":
    main()
