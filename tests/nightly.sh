#!/usr/bin/env bash
# Runs for hours what tests/run.sh runs for minutes. The last line is
# `N passed, N failed`. Exits with 0 if none failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

usage() {
  cat <<'TEXT'
Usage: tests/nightly.sh [--percent=N]

Builds, runs clang-tidy over all files, then runs 20,000 seeds of the simulated
cluster, ten times the seeds of each other simulation, each fuzz test for ten
minutes, 5,000 random programs of PyTorch with seeds that depend on the day, 50
runs of MNIST whose processes are killed (in the folder NEREUS_MNIST_DIR, by
default ../shared/data/mnist), and all mutations. With --percent it does that
part of each, but for clang-tidy, which it does whole, and the mutations, which
it then leaves out.
TEXT
}

percent=100
case "${1:-}" in
  "") ;;
  --percent=*) percent="${1#*=}" ;;
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
if ! [[ $percent =~ ^[1-9][0-9]*$ && $percent -le 100 ]]; then
  echo "--percent is '$percent', must be from 1 to 100" >&2
  exit 2
fi

passed=0
failures=()

# check NAME COMMAND...: runs a check and counts its result.
check() {
  local name="$1" start=$SECONDS
  shift
  echo "== $name: $*"
  if "$@"; then
    passed=$((passed + 1))
    echo "$name: passed in $((SECONDS - start)) s"
  else
    failures+=("$name")
    echo "$name: FAILED after $((SECONDS - start)) s"
  fi
}

# part N: the part of N that is asked for, rounded up.
part() { echo $((($1 * percent + 99) / 100)); }

check "build" bazel build //common/... //worker/... //server/... //tests/simulation/... \
  //tests/fuzz/...
check "clang-tidy" tests/clang_tidy.py --all
check "simulated cluster" bazel test //tests/simulation:swarm_simulation_test \
  --test_env=NEREUS_TEST_SEEDS="$(part 20000)" --test_timeout=36000
check "simulations" bazel test //:simulation --test_env=NEREUS_TEST_SEEDS_TIMES="$(part 10)" \
  --test_timeout=36000
check "fuzz tests" bazel test //tests/fuzz/... \
  --test_env=NEREUS_FUZZ_SECONDS="$(part 600)" --test_timeout=36000
# The programs of a night are not those of the night before.
first=$(($(date +%s) / 86400 * 10000))
check "programs of PyTorch" tests/python/fuzz.sh --first="$first" --seeds="$(part 5000)"
mnist="${NEREUS_MNIST_DIR:-../shared/data/mnist}"
if [[ -d "$mnist" ]]; then
  check "kills" tests/integration/kill_runs.py --data="$mnist" --mixed --runs="$(part 50)"
else
  echo "kills: skipped, there is no MNIST in $mnist (NEREUS_MNIST_DIR)"
fi
if [[ $percent -eq 100 ]]; then
  check "mutations" tests/simulation/mutations.py
fi

for failure in ${failures[@]+"${failures[@]}"}; do
  echo "failed: $failure"
done
echo "$passed passed, ${#failures[@]} failed"
[[ ${#failures[@]} -eq 0 ]]
