#!/usr/bin/env bash
# Runs all checks of a fresh clone. The last line is `N passed, N failed`: it counts
# test cases and static checks. Exits with 0 if none failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

usage() {
  cat <<'TEXT'
Usage: tests/run.sh [--asan | --tsan | --ubsan]

Without an argument: installs the packages, builds everything, and runs the
style test, clang-format, all tests, those of the Python package, clang-tidy
with its analysis of locks, and tests of the images and of the manifests for
Kubernetes. With one: builds and runs the unit, simulation and integration
tests with that sanitizer, and no static check.

Some tests train on MNIST, without a sanitizer, and are skipped where they do
not find its files: in the folder NEREUS_MNIST_DIR, by default
../shared/data/mnist beside this repository. So are those that need the CRDs of
JobSet, Kubeflow Trainer and the Prometheus operator, in the folder NEREUS_CRDS,
by default ../shared/data.
TEXT
}

config=""
case "${1:-}" in
  "") ;;
  --asan | --tsan | --ubsan) config="${1#--}" ;;
  --help | -h)
    usage
    exit 0
    ;;
  *)
    echo "unknown argument: $1" >&2
    usage >&2
    exit 2
    ;;
esac

passed=0
failed=0
failures=()
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# check NAME COMMAND...: runs one static check and counts its result.
check() {
  local name="$1" start=$SECONDS
  shift
  echo "== $name"
  if "$@"; then
    passed=$((passed + 1))
    echo "$name: passed in $((SECONDS - start)) s"
  else
    failed=$((failed + 1))
    failures+=("$name")
    echo "$name: FAILED after $((SECONDS - start)) s"
  fi
}

# Lists the project's files of these names: known to git, or new and not ignored.
list_files() {
  git ls-files --cached --others --exclude-standard -- "$@" |
    while IFS= read -r file; do [[ -f "$file" ]] && echo "$file"; done
}

check_format() {
  list_files '*.cc' '*.cu' '*.h' | xargs clang-format --dry-run -Werror
}

cuda="${CUDA_HOME:-/usr/local/cuda}"

# Builds the code for all GPUs that common/bazel/cuda.bzl names. Warnings fail the
# build, also those about spilt registers.
check_gpu_code() {
  bazel build --config=cuda //common/... //worker/... //tests/gpu/...
}

# Builds a program in another workspace, with the files that docs/client.md shows. The
# program trains with the server that is built here.
check_outside_workspace() {
  local outside="$scratch/outside" file
  mkdir -p "$outside"
  for file in WORKSPACE .bazelrc BUILD; do
    sed -n "/^\`\`\`$file\$/,/^\`\`\`\$/{/^\`\`\`/d;p}" docs/client.md |
      sed "s|/path/to/nereus|$PWD|" >"$outside/$file"
    [[ -s "$outside/$file" ]] || { echo "docs/client.md has no $file"; return 1; }
  done
  cp worker/examples/own_loop.cc "$outside/train.cc"
  bazel build //server:nereus-server //server/admin:nereusctl || return 1
  local bazel=(bazel "--output_user_root=$scratch/outside_bazel")
  # Without optimization, which halves the time.
  (cd "$outside" && "${bazel[@]}" build --jobs=2 --spawn_strategy=local \
    --noshow_progress --copt=-O0 //:train)
  local status=$?
  if [[ $status -eq 0 ]]; then
    bazel-bin/server/admin/nereusctl run -- "$outside/bazel-bin/train" |
      grep -x '\[worker-0\] y = 3.00 x + 1.00'
    status=$?
  fi
  (cd "$outside" && "${bazel[@]}" shutdown)
  chmod -R u+w "$scratch/outside_bazel"
  return $status
}

# Tests see NEREUS_MNIST_DIR only if a flag of Bazel names it. It is left out with a
# sanitizer, because training on MNIST would then take longer than all other tests.
mnist=()
if [[ -z "${NEREUS_MNIST_DIR:-}" && -d ../shared/data/mnist ]]; then
  NEREUS_MNIST_DIR="$(cd ../shared/data/mnist && pwd)"
fi
if [[ -z "$config" && -n "${NEREUS_MNIST_DIR:-}" ]]; then
  mnist=("--test_env=NEREUS_MNIST_DIR=$NEREUS_MNIST_DIR")
fi

# run_tests TARGET...: runs tests and adds their cases to the counts.
run_tests() {
  local name="tests${config:+ with $config}" start=$SECONDS
  local events="$scratch/events.json" counts
  echo "== $name"
  bazel test --keep_going ${config:+--config="$config"} \
    ${mnist[@]+"${mnist[@]}"} --build_event_json_file="$events" -- "$@"
  local status=$?
  if ! counts="$(python3 tests/count_results.py "$events")"; then
    counts="0 1"
    failures+=("$name: no results")
  fi
  sed '$d' <<<"$counts"
  local passed_here failed_here
  read -r passed_here failed_here <<<"$(tail -n 1 <<<"$counts")"
  # Bazel has failed although no test has: it could not build another target. That
  # counts as one failure.
  if [[ $status -ne 0 && $failed_here -eq 0 ]]; then failed_here=1; fi
  passed=$((passed + passed_here))
  failed=$((failed + failed_here))
  if [[ $failed_here -ne 0 ]]; then failures+=("$name, bazel's code $status"); fi
  echo "$name: $passed_here passed, $failed_here failed in $((SECONDS - start)) s"
}

if ! deploy/install_packages.sh --test; then
  echo "0 passed, 1 failed"
  exit 1
fi
if [[ -n "$config" ]]; then
  run_tests //:unit //:simulation //:integration
else
  check "style test" python3 tests/style_test.py
  check "clang-format" check_format
  run_tests //...
  check "python" tests/python/run.sh
  check "clang-tidy" tests/clang_tidy.py
  check "use from another workspace" check_outside_workspace
  check "wheel" tests/deploy/wheel_check.sh
  check "on a cluster" tests/deploy/run.sh
  if [[ -x "$cuda/bin/nvcc" ]]; then
    check "use without Bazel" tests/deploy/install_check.sh --cuda
    check "code for GPUs" check_gpu_code
  else
    check "use without Bazel" tests/deploy/install_check.sh
    echo "code for GPUs: skipped, there is no nvcc in $cuda/bin"
  fi
fi

for failure in ${failures[@]+"${failures[@]}"}; do
  echo "failed: $failure"
done
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
