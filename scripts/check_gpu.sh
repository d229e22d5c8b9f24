#!/bin/bash
# Builds pardiff from source against the torch that PYTHON has, and checks it on one GPU, in under 8 minutes: transports,
# every attention mode (forward on ranks that are threads; backward on ranks that are processes over Gloo, which share the
# GPU; NCCL with one rank), the golden transformers in every layout, and the share of a step at FLUX.1's shapes that is
# matrix products and attention. See docs/gpu.md.
#
#   PYTHON      the python with the torch wheel; default: .venv's, else python3
#   DEVICE=cpu  the same tests without a GPU, and small shapes
#   JOBS        compilers at a time; default: the cores
set -euo pipefail
cd "$(dirname "$0")/.."
device=${DEVICE:-cuda}
build=build/gpu
archive=build/gpu-packages.tar.gz
root=$PWD/build/gpu-root
python=${PYTHON:-$([ -x .venv/bin/python3 ] && echo .venv/bin/python3 || echo python3)}

if [ ! -d /usr/include/gloo ] && [ -f $archive ]; then
  mkdir -p "$root"
  tar -xzf $archive -C "$root"
  export CMAKE_PREFIX_PATH=$root LD_LIBRARY_PATH=$root/lib/x86_64-linux-gnu:${LD_LIBRARY_PATH:-}
fi

mkdir -p build
cmake -G Ninja -S . -B $build -DCMAKE_BUILD_TYPE=Release -DPARDIFF_DEVELOPER_MODE=ON -DPARDIFF_WARNINGS_ARE_ERRORS=OFF \
  -DPARDIFF_PYTHON="$(command -v "$python")" >$build.log || { cat $build.log; exit 1; }
cmake --build $build -j "${JOBS:-$(nproc)}" --target pardiff_program distributed_collectives distributed_sweep \
  distributed_processes distributed_flux step_share >>$build.log || { tail -n 50 $build.log; exit 1; }
$build/cli/pardiff doctor

if [ "$device" = cpu ]; then
  tests=(-R '^distributed_(collectives|sweep|processes|flux)$')
  shapes=(--device cpu --dtype float32 --heads 4 --image-tokens 256 --text-tokens 32 --repeats 5)
else
  [ -f $build/src/libpardiff_cuda.so ] || { echo "check_gpu: the torch of $python has no CUDA part"; exit 1; }
  tests=(-L gpu)
  shapes=(--device cuda --dtype bfloat16)
fi
failed=0
ctest --test-dir $build "${tests[@]}" --output-on-failure || failed=1
$build/benchmarks/step_share "${shapes[@]}" || failed=1
exit $failed
