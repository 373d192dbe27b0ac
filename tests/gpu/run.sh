#!/bin/bash
# Builds the kernels, their tests and their benchmark with nvcc and g++ alone, and
# runs the tests, on machines with a GPU but without Bazel and gRPC. Without a GPU the
# tests report that they are skipped; without nvcc this script does. A driver that does
# not work is an error. Tests that need Abseil or gRPC come in a bundle (bundle.sh).
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
kernels=(bfloat16 blocks factor_gradient sums update_rules)
tests=(kernel_test factor_test)
references=(block_pieces blocks frame_halves half update_rules vectors)
cxx=(g++ -std=c++20 -O3 -ffp-contract=off -Wall -Wextra -I. -isystem "$cuda/include")
# As common/bazel/cuda.bzl has them.
compiler=$cuda/bin/nvcc
[ -x "$compiler" ] || compiler=$(command -v nvcc || true)
nvcc=("$compiler" -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr -lineinfo
  -gencode arch=compute_80,code=sm_80
  -gencode "arch=compute_90,code=[sm_90,compute_90]"
  -Xcompiler=-Wall,-Wextra,-ffp-contract=off -Xptxas=-warn-spills,-Werror -I.)

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
  for name in emulated_cuda emulated_cublas; do
    "${cxx[@]}" -c "tests/gpu/$name.cc" -o "$build/$name.o"
  done
  for test in "${tests[@]}"; do
    "${cxx[@]}" -DNEREUS_NO_GTEST -DNEREUS_CUDA_EMULATION "tests/gpu/$test.cc" \
      $(objects "${references[@]}" "${kernels[@]/%/_emulated}") \
      $(objects emulated_cuda emulated_cublas) -lpthread -o "$build/${test}_emulated"
    "$build/${test}_emulated"
  done
  exit
fi

[ -n "$compiler" ] || skip "no nvcc in $cuda/bin, nor elsewhere"
compile_references
for name in "${kernels[@]}"; do
  echo "compiling common/compute/${name}_cuda.cu"
  "${nvcc[@]}" -c "common/compute/${name}_cuda.cu" -o "$build/${name}_cuda.o"
done
for name in "${tests[@]}" kernel_benchmark; do
  "${cxx[@]}" -DNEREUS_NO_GTEST -c "tests/gpu/$name.cc" -o "$build/$name.o"
  "${nvcc[@]}" $(objects "$name" "${references[@]}" "${kernels[@]/%/_cuda}") -lcublas \
    -Xlinker=-rpath="$cuda/lib64" -o "$build/$name"
done
for test in "${tests[@]}"; do "$build/$test"; done
sanitizer=$(command -v compute-sanitizer || echo "$cuda/bin/compute-sanitizer")
if [ -x "$sanitizer" ] && [ -e /dev/nvidiactl ]; then
  for tool in memcheck racecheck initcheck; do
    for test in "${tests[@]}"; do
      echo "compute-sanitizer --tool=$tool $test"
      NEREUS_GPU_TEST_EXACT=1 NEREUS_GPU_TEST_VALUES=1000003 \
        "$sanitizer" --tool="$tool" --error-exitcode=1 "$build/$test"
    done
  done
else
  echo "SKIPPED compute-sanitizer: there is none, or no GPU"
fi
if $benchmark; then "$build/kernel_benchmark"; fi
