#!/bin/bash
# Holds pardiff's own counters to what a network interface counts: one Gloo run of two ranks in two network namespaces
# joined by a veth pair.   check_wire_bytes.sh PARDIFF MODEL
# Both ranks' sent bytes, by the counters of the report, must be within 3 % of both interfaces' tx bytes less what they
# send when idle. Needs root and iproute2; leaves with 77 where it cannot run. Touches nothing outside the namespaces.
set -eu
pardiff=$1 model=$2
names=(pardiff-wire-$$-0 pardiff-wire-$$-1)
least_payload=100000000

leave() { echo "check_wire_bytes: $1" >&2; exit "$2"; }
[ "$(id -u)" -eq 0 ] || leave "needs root" 77
command -v ip >/dev/null || leave "needs iproute2" 77

folder=$(mktemp -d)
ranks=()
clean_up() {
  for rank in "${ranks[@]}"; do kill "$rank" 2>/dev/null || true; done
  for name in "${names[@]}"; do ip netns del "$name" 2>/dev/null || true; done  # their ends of the pair go with them
  rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

ip netns add "${names[0]}" 2>"$folder/error" || leave "no network namespaces here: $(cat "$folder/error")" 77
ip netns add "${names[1]}"
ip -n "${names[0]}" link add wire0 type veth peer name wire1 netns "${names[1]}" 2>"$folder/error" ||
  leave "no veth pairs here: $(cat "$folder/error")" 77
for end in 0 1; do
  ip -n "${names[$end]}" address add "10.77.0.$((end + 1))/24" dev "wire$end"
  ip -n "${names[$end]}" link set "wire$end" up
  ip -n "${names[$end]}" link set lo up
done

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
for end in 0 1; do
  ip netns exec "${names[$end]}" env RANK=$end WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 OMP_NUM_THREADS=1 \
    MASTER_ADDR=10.77.0.1 MASTER_PORT=29577 GLOO_SOCKET_IFNAME="wire$end" \
    "$pardiff" generate --model "$model" --prompt "a red circle on a blue background" --comm gloo --height 512 --width 512 \
    --steps 10 --max-sequence-length 512 --seed 1 --device cpu --dtype float32 --ulysses-degree 2 --timeout 120 --quiet \
    --report "$folder/report.json" --output "$folder/picture.png" &
  ranks+=($!)
done
for rank in "${ranks[@]}"; do wait "$rank" || leave "a rank failed" 1; done
ranks=()
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
