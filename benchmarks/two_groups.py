"""Two groups of ranks against one: the time that --cfg-degree 2 (two passes of guidance) or --dp-degree 2 (two pictures) saves.

    two_groups.py CHECKPOINT [cfg] [dp] [--pardiff PROGRAM] [--size 512] [--steps 2] [--pairs 15]

Every rank has one thread. Both runs of a pair make the same pictures; their order alternates. The time is that of denoising, all
steps with what is prepared for them. Prints the median ratio two groups / one with a 95 % bootstrap interval.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))
from run import interval  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORK = {"cfg": ["--prompt", "a red circle", "--negative-prompt", "a blue square", "--true-cfg-scale", "2"],
        "dp": ["--prompt", "a red circle", "--num-images", "2"]}


def denoising_seconds(args, work, degree, folder):
    report = folder / "report.json"
    command = [args.pardiff, "generate", "--model", args.checkpoint, *WORK[work], "--height", str(args.size), "--width",
               str(args.size), "--steps", str(args.steps), "--max-sequence-length", str(args.max_sequence_length), "--seed", "0",
               "--dtype", "float32", "--device", "cpu", "--threads", "1", "--quiet", f"--{work}-degree", str(degree), "--report",
               str(report), "--output", str(folder / "picture.png")]
    subprocess.run(command, check=True)
    return json.loads(report.read_text())["seconds"]["denoise"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("work", nargs="*", default=["cfg", "dp"])
    parser.add_argument("--pardiff", default=str(ROOT / "build/release/cli/pardiff"))
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--max-sequence-length", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for work in args.work:
            ratios = []
            for pair in range(args.pairs):
                degrees = (1, 2) if pair % 2 == 0 else (2, 1)
                seconds = {degree: denoising_seconds(args, work, degree, pathlib.Path(folder)) for degree in degrees}
                ratios.append(seconds[2] / seconds[1])
            low, high = interval(ratios)
            print(f"{work} 2: {statistics.median(ratios):.3f} of one group's time ({low:.3f} to {high:.3f}), {args.pairs} pairs",
                  flush=True)


if __name__ == "__main__":
    main()
