#!/usr/bin/env bash
# Runs all checks of a fresh clone. The last line is `N passed, N failed`: it counts
# test cases and static checks. Exits with 0 if none failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

usage() {
  cat <<'TEXT'
Usage: tests/run.sh [--quick | --asan | --tsan]

Without an argument: installs the packages, builds everything, and runs the
style test, clang-format, all tests, those of the Python package, clang-tidy
with its analysis of locks, and tests of the images and of the manifests for
Kubernetes.

--quick         clang-format, the style test, unit tests, and simulations with at
                most 300 seeds: minutes, after a build.
--asan, --tsan  unit, simulation and integration tests with that sanitizer, and
                no static check.

Some tests train on MNIST, without a sanitizer, and are skipped where they do
not find its files: in the folder NEREUS_MNIST_DIR, by default
../shared/data/mnist beside this repository. So are those that need the CRDs of
JobSet, Kubeflow Trainer and the Prometheus operator, in the folder NEREUS_CRDS,
by default ../shared/data.
TEXT
}

config=""
is_quick=""
case "${1:-}" in
  "") ;;
  --quick) is_quick=1 ;;
  --asan | --tsan) config="${1#--}" ;;
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

scratch="$(mktemp -d)"
# Each line has the number of cases that passed, of those that failed, and, if any
# failed, what to say about it.
results="$scratch/results"
beside=""  # Process group that `beside` has started.
trap '[[ -z "$beside" ]] || kill -- "-$beside" 2>/dev/null; rm -rf "$scratch"' EXIT

# check NAME COMMAND...: runs a check and counts its result.
check() {
  local name="$1" start=$SECONDS
  shift
  echo "== $name"
  if "$@"; then
    echo "1 0" >>"$results"
    echo "$name: passed in $((SECONDS - start)) s"
  else
    echo "0 1 $name" >>"$results"
    echo "$name: FAILED after $((SECONDS - start)) s"
  fi
}

# beside FUNCTION: runs a function in the background, in the time that other checks
# leave: most of those wait. join_beside waits for it and shows its output.
beside() {
  set -m  # A process group, which the trap can end.
  (
    renice -n 19 "$BASHPID" >/dev/null
    "$1"
  ) >"$scratch/beside.log" 2>&1 </dev/null &
  beside=$!
  set +m
}
join_beside() {
  wait "$beside"
  beside=""
  cat "$scratch/beside.log"
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
  local bazel=(bazel "--output_user_root=$scratch/outside_bazel" --max_idle_secs=60)
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

# Checks that change nothing in bazel-bin.
check_besides() {
  check "clang-tidy" tests/clang_tidy.py
  check "use from another workspace" check_outside_workspace
  check "wheel" tests/deploy/wheel_check.sh
}

# Checks that build programs anew.
check_other_builds() {
  if [[ -x "$cuda/bin/nvcc" ]]; then
    check "use without Bazel" tests/deploy/install_check.sh --cuda
    check "code for GPUs" check_gpu_code
  else
    check "use without Bazel" tests/deploy/install_check.sh
    echo "code for GPUs: skipped, there is no nvcc in $cuda/bin"
  fi
}

# Tests see NEREUS_MNIST_DIR only if a flag of Bazel names it. It is left out with a
# sanitizer, because training on MNIST would then take longer than all other tests.
env=()
if [[ -z "${NEREUS_MNIST_DIR:-}" && -d ../shared/data/mnist ]]; then
  NEREUS_MNIST_DIR="$(cd ../shared/data/mnist && pwd)"
fi
if [[ -n "$is_quick" ]]; then
  env=(--test_env=NEREUS_TEST_SEEDS_MAX=300)
elif [[ -z "$config" && -n "${NEREUS_MNIST_DIR:-}" ]]; then
  env=("--test_env=NEREUS_MNIST_DIR=$NEREUS_MNIST_DIR")
fi

# run_tests TARGET...: runs tests and adds their cases to the counts.
run_tests() {
  local name="tests${config:+ with $config}" start=$SECONDS
  local events="$scratch/events.json" counts
  echo "== $name"
  bazel test --keep_going ${config:+--config="$config"} \
    ${env[@]+"${env[@]}"} --build_event_json_file="$events" -- "$@"
  local status=$?
  if ! counts="$(python3 tests/count_results.py "$events")"; then
    counts="0 1"
    echo "$name: no results"
  fi
  sed '$d' <<<"$counts"
  local passed_here failed_here
  read -r passed_here failed_here <<<"$(tail -n 1 <<<"$counts")"
  # Bazel has failed although no test has: it could not build another target. That
  # counts as one failure.
  if [[ $status -ne 0 && $failed_here -eq 0 ]]; then failed_here=1; fi
  echo "$passed_here $failed_here $name, bazel's code $status" >>"$results"
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
fi
if [[ -n "$is_quick" ]]; then
  run_tests //:unit //:simulation
elif [[ -z "$config" ]]; then
  run_tests //...
  echo "== beside the next two, with their output after it: clang-tidy, another workspace, wheel"
  beside check_besides
  check "python" tests/python/run.sh
  check "on a cluster" tests/deploy/run.sh
  join_beside
  check_other_builds
fi

awk '$2 > 0 { sub(/^[0-9]+ [0-9]+ /, ""); print "failed: " $0 }' "$results"
awk '{ passed += $1; failed += $2 } END { print passed + 0 " passed, " failed + 0 " failed"
       exit failed > 0 }' "$results"
