#!/bin/bash
# Builds the kernels, their tests and their benchmark with nvcc and g++ alone, and
# runs the tests; for machines that have a GPU but not Bazel or gRPC. Without a GPU
# the tests say that they are skipped; without nvcc this does.
#
#   tests/gpu/run.sh               tests, and compute-sanitizer if it is there
#   tests/gpu/run.sh --benchmark   the table of docs/benchmarks.md, too
#   tests/gpu/run.sh --emulated    the tests on the CPU, with g++ and CUDA's headers
#
# CUDA_HOME says where the toolkit is, BUILD where the built files go.
set -euo pipefail
cd "$(dirname "$0")/../.."

benchmark=false
emulated=false
for argument in "$@"; do
  case $argument in
    --benchmark) benchmark=true ;;
    --emulated) emulated=true ;;
    -h | --help)
      sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *)
      echo "run.sh: unknown argument $argument; see --help" >&2
      exit 2
      ;;
  esac
done

cuda=${CUDA_HOME:-/usr/local/cuda}
build=${BUILD:-}
if [ -z "$build" ]; then
  build=$(mktemp -d)
  trap 'rm -rf "$build"' EXIT
fi
mkdir -p "$build"
kernels=(blocks frame_halves sums update_rules)
references=(block_pieces blocks frame_halves half update_rules vectors)
cxx=(g++ -std=c++20 -O3 -ffp-contract=off -Wall -Wextra -I. -isystem "$cuda/include")
# As common/bazel/cuda.bzl has them.
nvcc=("$cuda/bin/nvcc" -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr -lineinfo
  -gencode arch=compute_80,code=sm_80
  -gencode "arch=compute_90,code=[sm_90,compute_90]"
  -Xcompiler=-Wall,-Wextra,-ffp-contract=off -I.)

skip() {
  echo "SKIPPED run.sh: $*"
  exit 0
}
objects() { printf "$build/%s.o\n" "$@"; }
compile_references() {
  for name in "${references[@]}"; do
    "${cxx[@]}" -c "common/compute/$name.cc" -o "$build/$name.o"
  done
}

if $emulated; then
  [ -e "$cuda/include/cuda_runtime_api.h" ] || skip "no headers of CUDA in $cuda"
  compile_references
  for name in "${kernels[@]}"; do
    "${cxx[@]}" -Wno-unknown-pragmas -x c++ -include tests/gpu/cuda_emulation.h \
      -c "common/compute/${name}_cuda.cu" -o "$build/${name}_emulated.o"
  done
  "${cxx[@]}" -c tests/gpu/emulated_cuda.cc -o "$build/emulated_cuda.o"
  "${cxx[@]}" -DNEREUS_NO_GTEST -DNEREUS_CUDA_EMULATION tests/gpu/kernel_test.cc \
    $(objects "${references[@]}" "${kernels[@]/%/_emulated}" emulated_cuda) \
    -lpthread -o "$build/kernel_emulation_test"
  "$build/kernel_emulation_test"
  exit
fi

[ -x "${nvcc[0]}" ] || skip "no nvcc in $cuda/bin"
compile_references
for name in "${kernels[@]}"; do
  echo "compiling common/compute/${name}_cuda.cu"
  "${nvcc[@]}" -c "common/compute/${name}_cuda.cu" -o "$build/${name}_cuda.o"
done
for name in kernel_test kernel_benchmark; do
  "${cxx[@]}" -DNEREUS_NO_GTEST -c "tests/gpu/$name.cc" -o "$build/$name.o"
  "${nvcc[@]}" $(objects "$name" "${references[@]}" "${kernels[@]/%/_cuda}") \
    -o "$build/$name"
done
"$build/kernel_test"
sanitizer=$(command -v compute-sanitizer || echo "$cuda/bin/compute-sanitizer")
if [ -x "$sanitizer" ] && nvidia-smi > /dev/null 2>&1; then
  for tool in memcheck racecheck initcheck; do
    echo "compute-sanitizer --tool=$tool"
    NEREUS_GPU_TEST_VALUES=1000003 \
      "$sanitizer" --tool="$tool" --error-exitcode=1 "$build/kernel_test"
  done
else
  echo "SKIPPED compute-sanitizer: there is none, or no GPU"
fi
if $benchmark; then "$build/kernel_benchmark"; fi
