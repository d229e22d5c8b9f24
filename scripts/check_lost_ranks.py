#!/usr/bin/env python3
"""Kills (SIGKILL) or stops (SIGSTOP) ranks of 4-rank runs at random moments and holds what follows to its bar: all other
ranks end, non-zero, within 5 s of a kill and within the timeout + 5 s of a stop; one message names the rank, its operation
and, once it denoises, the step; no process, no output file and no shared memory is left. Over shm and Gloo, under pardiff's
own launcher, in a plain RANK/WORLD_SIZE environment, where rank 0 serves the rendezvous, and with --torchrun under that.

  check_lost_ranks.py PROGRAM MODEL [--tries N] [--seed S] [--limit-factor F] [--torchrun PATH] [--signal kill|stop]

The times depend on the machine's load; --limit-factor stretches them. Exit code 1 if any try fails.
"""
import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

RANKS = 4
TIMEOUT_S = 4
OPERATIONS = r"all_to_all|all_gather|all_reduce|reduce_scatter|broadcast|send|barrier|exchange|first operation"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "pardiff" in name} if os.path.isdir("/dev/shm") else set()


def state_of(pid):
    """The kernel's letter for the process, or '' when there is none."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_alive(pid):
    return state_of(pid) not in ("", "Z")


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            return [int(child) for child in children.read().split()]
    except OSError:
        return []


class Run:
    """A long 4-rank run; `processes` are those started here, `ranks` the process ids by rank."""

    def __init__(self, arguments, folder, comm, launcher, mode):
        self.output = os.path.join(folder, "picture.png")
        self.errors = open(os.path.join(folder, "errors"), "w+b")
        command = [arguments.program, "generate", "--model", arguments.model, "--prompt", "a star", "--height", "64",
                   "--width", "64", "--steps", "10000", "--max-sequence-length", "16", "--seed", "0", "--device", "cpu", "--threads", "1",
                   "--comm", comm, "--timeout", str(TIMEOUT_S), "--output", self.output, *mode]
        clean = {name: value for name, value in os.environ.items()
                 if not re.match(r"RANK|WORLD_SIZE|LOCAL_|MASTER_|TORCHELASTIC_|OMPI_|PMIX_|SLURM_|PARDIFF_", name)}
        self.processes = []
        port = str(free_port())
        if launcher == "torchrun":
            command = [arguments.torchrun, "--no-python", "--nproc-per-node", str(RANKS), "--master-port", port, *command]
        if launcher != "plain":
            self.processes.append(self.start(command, clean))
        else:
            for rank in range(RANKS):
                own = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                self.processes.append(self.start(command, {**clean, **own}))
        self.launcher = launcher

    def start(self, command, environment):
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=self.errors, start_new_session=True)

    def text(self):
        self.errors.flush()
        with open(self.errors.name, errors="replace") as errors:
            return errors.read()

    def ranks(self):
        """In rank order: launchers start them one after another."""
        return [p.pid for p in self.processes] if self.launcher == "plain" else children_of(self.processes[0].pid)

    def wait_for_ranks(self):
        deadline = time.monotonic() + 60
        while len(self.ranks()) < RANKS and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.ranks()

    def wait_for_steps(self):
        deadline = time.monotonic() + 120
        while "step " not in self.text() and self.processes[0].poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return "step " in self.text()

    def poll(self):
        for process in self.processes:
            process.poll()

    def end(self):
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def problems_of(run, rank, how, limit, is_denoising):
    """Loses the rank and waits for the end; returns what is wrong with it."""
    began = time.monotonic()
    pids = run.ranks()
    os.kill(pids[rank], how)
    others = [pid for pid in pids if pid != pids[rank]]
    problems = []
    while any(is_alive(pid) for pid in others) and time.monotonic() - began < limit:
        run.poll()
        time.sleep(0.02)
    took = time.monotonic() - began
    if any(is_alive(pid) for pid in others):
        problems.append(f"a rank lives after {limit:.0f} s")
    for process in run.processes:
        try:
            if process.wait(40) == 0:  # torchrun gives its ranks 30 s
                problems.append("a process ended with 0")
        except subprocess.TimeoutExpired:
            problems.append(f"process {process.pid} is left")
    alive = [pid for pid in pids if is_alive(pid)]
    if alive:
        problems.append(f"ranks {alive} are left")
    messages = [line for line in run.text().splitlines() if line.startswith("pardiff: error: ")]
    if not messages and run.launcher == "torchrun" and not is_denoising:
        pass  # it was faster than the rank's first word, and says so itself
    elif len(messages) != 1:
        problems.append(f"{len(messages)} messages")
    elif not re.search(rf"\brank {rank}\b", messages[0]) or not re.search(OPERATIONS, messages[0]):
        problems.append("the message does not name the rank and its operation")
    elif is_denoising and ", step " not in messages[0]:
        problems.append("the message names no step")
    left = [name for name in os.listdir(os.path.dirname(run.output)) if name != "errors"]
    if left:
        problems.append(f"files are left: {left}")
    return problems, took, messages


def one_try(arguments, number, chance):
    launchers = ["own", "plain", "torchrun"] if arguments.torchrun else ["own", "plain"]
    signals = {"kill": [signal.SIGKILL], "stop": [signal.SIGSTOP]}.get(arguments.signal, [signal.SIGKILL, signal.SIGSTOP])
    comm = ("shm", "gloo")[number % 2]
    launcher = launchers[number // 2 % len(launchers)]
    how = chance.choice(signals)
    mode = chance.choice([["--ulysses-degree", "4"], ["--ring-degree", "4"], ["--tp-degree", "2", "--ring-degree", "2"],
                          ["--ring-degree", "2", "--ulysses-degree", "2"]])
    rank = chance.randrange(RANKS)
    is_denoising = chance.random() < 0.75  # else at its start
    delay = chance.random() * 1.5
    with tempfile.TemporaryDirectory() as folder:
        memory = shared_memory()
        run = Run(arguments, folder, comm, launcher, mode)
        try:
            if len(run.wait_for_ranks()) < RANKS or (is_denoising and not run.wait_for_steps()):
                print(f"{number:3} did not start: {run.text()}", flush=True)
                return ["did not start"]
            time.sleep(delay)
            # Of a rank that is killed before it has met the others, nobody knows that it was ever there.
            waits = how == signal.SIGSTOP or (launcher == "plain" and not is_denoising)
            limit = (5 + (TIMEOUT_S if waits else 0)) * arguments.limit_factor
            problems, took, messages = problems_of(run, rank, how, limit, is_denoising)
        finally:
            run.end()
        if shared_memory() - memory:
            problems.append("shared memory is left")
    print(f"{number:3} {how.name} of rank {rank} {'' if is_denoising else 'at the start '}({comm}, {launcher}, "
          f"{' '.join(mode)}): {took:.1f} s{'; ' + '; '.join(problems) if problems else ''}\n    {' | '.join(messages)}",
          flush=True)
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--tries", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-factor", type=float, default=1.0)
    parser.add_argument("--torchrun")
    parser.add_argument("--signal", choices=["kill", "stop"])
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    failed = sum(bool(one_try(arguments, number, chance)) for number in range(arguments.tries))
    print(f"{arguments.tries - failed} of {arguments.tries} tries were as they should be")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
