#!/bin/bash
# Fuzzes what reads hostile data, under the address and undefined-behaviour sanitizers. Needs clang with libFuzzer
# (Debian: clang). What it finds goes to build/fuzz/found, inputs that reach new code to build/fuzz/corpus.
#
#   scripts/fuzz.sh [SECONDS each; default 600] [TARGET...; default: all]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=($(ls tests/fuzz/corpus))

mkdir -p build/fuzz/found
cmake --preset asan >build/asan.log 2>&1 || { cat build/asan.log; exit 1; }
cmake --build --preset asan -j "${JOBS:-$(nproc)}" --target "${targets[@]/#/fuzz_}"
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ASAN_OPTIONS=detect_container_overflow=0  # libtorch is not instrumented
failed=()
for target in "${targets[@]}"; do
  mkdir -p build/fuzz/corpus/$target
  echo "$target"
  build/asan/tests/fuzz/fuzz_$target build/fuzz/corpus/$target tests/fuzz/corpus/$target -max_total_time=$seconds \
    -rss_limit_mb=1024 -timeout=10 -max_len=65536 -artifact_prefix=build/fuzz/found/$target- \
    -print_final_stats=1 >build/fuzz/$target.log 2>&1 || failed+=("$target")
  grep -E 'stat::(number_of_executed_units|peak_rss_mb)|^==.*ERROR|SUMMARY|runtime error' build/fuzz/$target.log || true
done
[ ${#failed[@]} -eq 0 ] || { echo "fuzz: faults in ${failed[*]}; see build/fuzz/found"; exit 1; }
