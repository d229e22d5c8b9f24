#!/usr/bin/env python3
"""Runs pardiff and diffusers alternately on the same checkpoint, ranks and threads, and prints paired ratios.

  .venv/bin/python benchmarks/peers/run.py CHECKPOINT MODE [MODE...] [--ranks 2 --steps 4 --size 128 --pairs 15]

The clock of a whole job runs outside both programs, launchers included. Each figure is the median over the pairs of
pardiff's value divided by diffusers', with a 95 % bootstrap interval; the medians stand beside it.
Step: pardiff's is the median of `step_seconds` without the first; diffusers' the median of the steps after the first.
Memory: the sum over the ranks of each process's peak resident size.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = {
    "single": lambda n: [],
    "ulysses": lambda n: ["--ulysses-degree", str(n)],
    "ring": lambda n: ["--ring-degree", str(n)],
    "ring_allgather": lambda n: ["--ring-degree", str(n), "--rotate-method", "allgather"],
    "unified": lambda n: ["--ring-degree", "2", "--ulysses-degree", str(n // 2)],
    "ulysses_anything": lambda n: ["--ulysses-degree", str(n), "--ulysses-anything"],
    "ring_anything": lambda n: ["--ring-degree", str(n), "--ring-anything"],
    "tp": lambda n: ["--tp-degree", str(n)],
}
PEER_MODE = {"ring_allgather": "ring"}
FIGURES = ("total_s", "load_s", "step_s", "peak_gb")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("modes", nargs="+", choices=FLAGS, metavar="MODE", help=", ".join(FLAGS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--max-sequence-length", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="compile the reference's transformer")
    parser.add_argument("--pardiff", default=str(ROOT / "build/release/cli/pardiff"))
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"), help="that has the peer's requirements")
    parser.add_argument("--json", help="write all rows here")
    return parser.parse_args()


def timed(command, environment):
    start = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds = time.monotonic() - start
    if done.returncode != 0:
        sys.exit(f"failed ({done.returncode}): {' '.join(command)}\n{done.stderr[-2000:]}")
    return seconds, done.stdout


def run_pardiff(args, mode, ranks, folder, environment):
    report = folder / "report.json"
    command = [args.pardiff, "generate", "--model", args.checkpoint, "--prompt", "a red circle on a blue background",
               "--height", str(args.size), "--width", str(args.size), "--steps", str(args.steps), "--seed", "42",
               "--max-sequence-length", str(args.max_sequence_length), "--dtype", args.dtype, "--device", "cpu",
               "--threads", environment["OMP_NUM_THREADS"], "--quiet", "--report", str(report),
               "--output", str(folder / "pardiff.png"), *FLAGS[mode](ranks)]
    seconds, _ = timed(command, environment)
    row = json.loads(report.read_text())
    steps = row["step_seconds"]
    return {"total_s": seconds, "load_s": row["seconds"]["load"], "step_s": statistics.median(steps[1:] or steps),
            "peak_gb": sum(rank["peak_rss_bytes"] for rank in row["ranks"]) / 1e9}


def run_diffusers(args, mode, ranks, folder, environment):
    script = [str(ROOT / "benchmarks/peers/diffusers_cp.py"), args.checkpoint, PEER_MODE.get(mode, mode),
              "--steps", str(args.steps), "--size", str(args.size), "--dtype", args.dtype, "--threads",
              environment["OMP_NUM_THREADS"], "--max-sequence-length", str(args.max_sequence_length),
              "--output", str(folder / "diffusers.png"), *(["--compile"] if args.compile else [])]
    launcher = [args.python] if ranks == 1 else [str(pathlib.Path(args.python).parent / "torchrun"),
                                                 "--nproc-per-node", str(ranks)]
    seconds, output = timed(launcher + script, environment)
    row = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    return {"total_s": seconds, "load_s": row["load_s"], "step_s": row["step_median_s"],
            "peak_gb": sum(row["peak_rss_gb"])}


def interval(ratios):
    draws = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(2000))
    return draws[50], draws[1949]


def summary(mode, ranks, rows):
    figures = {}
    for name in FIGURES:
        ratios = [ours[name] / theirs[name] for ours, theirs in rows]
        low, high = interval(ratios)
        figures[name] = {"ratio": statistics.median(ratios), "low": low, "high": high,
                         "pardiff": statistics.median(ours[name] for ours, _ in rows),
                         "diffusers": statistics.median(theirs[name] for _, theirs in rows)}
    return {"mode": mode, "ranks": ranks, "pairs": len(rows), "figures": figures}


def main():
    args = parse_arguments()
    random.seed(0)
    results = []
    print("| mode | ranks | figure | pardiff | diffusers | ratio | 95 % interval |\n|---|---|---|---|---|---|---|")
    for mode in args.modes:
        ranks = 1 if mode == "single" else args.ranks
        environment = dict(os.environ, OMP_NUM_THREADS=str(max(1, len(os.sched_getaffinity(0)) // ranks)))
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            rows = [(run_pardiff(args, mode, ranks, folder, environment),
                     run_diffusers(args, mode, ranks, folder, environment)) for _ in range(args.pairs)]
        results.append(summary(mode, ranks, rows))
        for figure, values in results[-1]["figures"].items():
            print(f"| {mode} | {ranks} | {figure} | {values['pardiff']:.4g} | {values['diffusers']:.4g} | "
                  f"{values['ratio']:.3f} | {values['low']:.3f} to {values['high']:.3f} |", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"arguments": vars(args), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
