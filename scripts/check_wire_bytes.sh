#!/bin/bash
# Holds pardiff's own counters to what a network interface counts: one Gloo run of two ranks in two network namespaces
# joined by a veth pair.   check_wire_bytes.sh PARDIFF MODEL
# Both ranks' sent bytes, by the counters of the report, must be within 3 % of both interfaces' tx bytes less what they
# send when idle. Needs root and iproute2; leaves with 77 where it cannot run. Touches nothing outside the namespaces.
set -eu
pardiff=$1 model=$2
least_payload=100000000
. "$(dirname "$0")/two_namespaces.sh"

# sent bytes|packets: of both ends
sent() {
  local sum=0 end
  for end in 0 1; do
    sum=$((sum + $(ip netns exec "${names[$end]}" cat "/sys/class/net/wire$end/statistics/tx_$1")))
  done
  echo $sum
}
now_ms() { echo $(($(date +%s%N) / 1000000)); }

sleep 3  # neighbour discovery of a new link
idle_ms=4000
idle=$(sent bytes)
sleep $((idle_ms / 1000))
idle=$(($(sent bytes) - idle))

before=$(sent bytes) packets=$(sent packets) start=$(now_ms)
run_on_both_ends "$pardiff" generate --model "$model" --prompt "a red circle on a blue background" --comm gloo --height 512 \
  --width 512 --steps 10 --max-sequence-length 512 --seed 1 --device cpu --dtype float32 --ulysses-degree 2 --timeout 120 \
  --quiet --report "$folder/report.json" --output "$folder/picture.png" || leave "a rank failed" 1
took=$(($(now_ms) - start)) after=$(sent bytes) packets=$(($(sent packets) - packets))
wire=$((after - before - idle * took / idle_ms))

python3 - "$folder/report.json" $wire $packets $least_payload $idle <<'PYTHON'
import json, sys
report, wire, packets, least, idle = sys.argv[1], *map(int, sys.argv[2:])
ranks = json.load(open(report))["ranks"]
counted = sum(row["bytes_sent"] for rank in ranks for row in rank["communication_total"].values())
print(f"counters {counted} bytes, interfaces {wire} (+{100 * (wire / counted - 1):.2f} %), "
      f"{wire / packets:.0f} bytes a packet, idle {idle} bytes in 4 s")
if counted < least:
    sys.exit(f"only {counted} bytes of payload: at least {least} are asked for")
if abs(wire / counted - 1) > 0.03:
    sys.exit("the counters and the interfaces are more than 3 % apart")
PYTHON
