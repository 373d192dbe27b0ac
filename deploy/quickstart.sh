#!/usr/bin/env bash
# Takes a fresh clone to a model that several workers and servers train on this
# machine. All arguments go to `nereusctl local`. Safe to run again: each step
# does only what is not done yet.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
nereusctl="$root/bazel-bin/server/admin/nereusctl"

for argument in "$@"; do
  [[ "$argument" == --help || "$argument" == -h ]] || continue
  cat <<'TEXT'
Usage: deploy/quickstart.sh [arguments of nereusctl local]

Installs the packages (1/3), builds Nereus (2/3), and trains a model with
several workers and servers on this machine (3/3). The arguments are those of
`nereusctl local`:
TEXT
  if [[ -x "$nereusctl" ]]; then exec "$nereusctl" local --help; fi
  cat <<'TEXT'
  --workers=4 --servers=2 --model=mlp|cnn --data=DIR --epochs=N --json FILE, ...
  All of them, once it is built: bazel-bin/server/admin/nereusctl local --help
TEXT
  exit 0
done

say_how_to_use_gpus() {
  local cuda="${CUDA_HOME:-/usr/local/cuda}"
  [[ -x "$cuda/bin/nvcc" ]] || return 0
  echo "The CUDA Toolkit is in $cuda. This script builds for CPUs; for GPUs:"
  echo "  bazel build --config=cuda //server:nereus-server //worker/trainer:nereus-worker"
  echo "  bazel-bin/worker/trainer/nereus-worker --device=cuda:0 ..."
}

echo "== 1/3 packages (about a GB of disk, once)"
"$root/deploy/install_packages.sh"
say_how_to_use_gpus

echo "== 2/3 build (minutes the first time, seconds after that)"
(cd "$root" && bazel build //server:nereus-server \
  //worker/trainer:nereus-worker //server/admin:nereusctl)

echo "== 3/3 nereusctl local $*"
exec "$nereusctl" local "$@"
