# To be sourced: two network namespaces, "${names[0]}" and "${names[1]}", joined by a veth pair whose ends are wire0
# (10.77.0.1) and wire1 (10.77.0.2). They, and "$folder", a temporary folder, go when the script that sources this ends.
# Needs root and iproute2; leaves with 77 where it cannot run.
names=(pardiff-wire-$$-0 pardiff-wire-$$-1)
folder=$(mktemp -d)
ranks=()

leave() { echo "$(basename "$0" .sh): $1" >&2; exit "$2"; }
clean_up() {
  for rank in "${ranks[@]}"; do kill "$rank" 2>/dev/null || true; done
  for name in "${names[@]}"; do ip netns del "$name" 2>/dev/null || true; done  # their ends of the pair go with them
  rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

[ "$(id -u)" -eq 0 ] || leave "needs root" 77
command -v ip >/dev/null || leave "needs iproute2" 77
ip netns add "${names[0]}" 2>"$folder/error" || leave "no network namespaces here: $(cat "$folder/error")" 77
ip netns add "${names[1]}"
ip -n "${names[0]}" link add wire0 type veth peer name wire1 netns "${names[1]}" 2>"$folder/error" ||
  leave "no veth pairs here: $(cat "$folder/error")" 77
for end in 0 1; do
  ip -n "${names[$end]}" address add "10.77.0.$((end + 1))/24" dev "wire$end"
  ip -n "${names[$end]}" link set "wire$end" up
  ip -n "${names[$end]}" link set lo up
done

# Waits for all "${ranks[@]}", whose process ids they are; fails if one of them does.
wait_for_ranks() {
  local rank failed=0
  for rank in "${ranks[@]}"; do wait "$rank" || failed=1; done
  ranks=()
  return $failed
}

# One rank of one thread at each end runs the command; fails if one of them does.
run_on_both_ends() {
  local end
  for end in 0 1; do
    ip netns exec "${names[$end]}" env RANK=$end WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 OMP_NUM_THREADS=1 \
      MASTER_ADDR=10.77.0.1 MASTER_PORT=29577 GLOO_SOCKET_IFNAME="wire$end" "$@" &
    ranks+=($!)
  done
  wait_for_ranks
}
