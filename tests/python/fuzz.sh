#!/usr/bin/env bash
# Trains random programs with nereus.torch and in one process (torch_fuzz.py). --help has the
# arguments. It is run for longer than in tests/python/run.sh before a release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export NEREUS_LIBRARY="${NEREUS_LIBRARY:-$PWD/bazel-bin/worker/c_api/libnereus.so}"
export NEREUS_SERVER_BINARY="${NEREUS_SERVER_BINARY:-$PWD/bazel-bin/server/nereus-server}"
export PYTHONPATH="$PWD/worker/python:$PWD/tests/python" PYTHONDONTWRITEBYTECODE=1
for python in "${PYTHON:-python3}" /usr/bin/python3; do
  if "$python" -c "import torch" 2>/dev/null; then
    exec "$python" tests/python/torch_fuzz_run.py "$@"
  fi
done
echo "no python3 has torch; deploy/install_packages.sh --test installs it" >&2
exit 1
