#!/bin/bash
# What a ring that rotates gains on a slow link: two ranks over Gloo, in two network namespaces joined by a veth pair that
# tc's token bucket limits to the rate at which a block of K and V takes as long to arrive as attention on a block takes.
#   slow_link.sh PARDIFF [TOKENS] [ROUNDS]
# Prints the rotating ring's time over the all-gather ring's, round by round in one run: median and 95 % bootstrap interval.
# With transfer and attention equal, all-gather takes 3 units and rotating 2: the limit is 0.67. Needs root and iproute2.
set -eu
pardiff=$1 tokens=${2:-8192} rounds=${3:-15}
heads=12 head_dim=64
. "$(dirname "$0")/../scripts/two_namespaces.sh"
sleep 3  # neighbour discovery of a new link

bench=("$pardiff" bench attention --device cpu --threads 1 --heads $heads --head-dim $head_dim)
# As many ranks at work as later, each with a block of its own.
for end in 0 1; do
  OMP_NUM_THREADS=1 "${bench[@]}" --sizes $((tokens / 2)) --repeats 5 --json "$folder/block-$end.json" >/dev/null &
  ranks+=($!)
done
wait_for_ranks
rate=$(python3 - "$folder" $((tokens / 2 * heads * head_dim * 4 * 2)) <<'PYTHON'
import json, statistics, sys
folder, block_bytes = sys.argv[1], int(sys.argv[2])
seconds = statistics.median(t for end in "01" for t in json.load(open(f"{folder}/block-{end}.json"))["rows"][0]["seconds"])
print(f"attention on a block: {seconds * 1e3:.1f} ms; a block has {block_bytes} bytes", file=sys.stderr)
print(round(block_bytes * 8 / seconds))
PYTHON
)
for end in 0 1; do
  ip netns exec "${names[$end]}" tc qdisc add dev "wire$end" root tbf rate "${rate}bit" burst 256kb latency 200ms
done
echo "the link carries $((rate / 1000000)) Mbit/s" >&2
run_on_both_ends "${bench[@]}" --sizes "$tokens" --repeats "$rounds" --comm gloo --json "$folder/ring.json" >/dev/null

PYTHONPATH="$(dirname "$0")/peers" PYTHONDONTWRITEBYTECODE=1 python3 - "$folder/ring.json" <<'PYTHON'
import json, random, statistics, sys
from run import interval
rows = {row["name"]: row["seconds"] for row in json.load(open(sys.argv[1]))["rows"]}
for name, seconds in rows.items():
    print(f"{name}: {statistics.median(seconds) * 1e3:.1f} ms")
ratios = [a / b for a, b in zip(rows["ring 2"], rows["ring 2, allgather"])]
random.seed(0)
low, high = interval(ratios)
print(f"rotating / all-gather: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")
PYTHON
