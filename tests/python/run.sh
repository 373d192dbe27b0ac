#!/usr/bin/env bash
# Tests the Python package with the library and the programs that Bazel has built.
# NEREUS_LIBRARY and NEREUSCTL name others. Arguments are those of pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

export NEREUS_LIBRARY="${NEREUS_LIBRARY:-$PWD/bazel-bin/worker/c_api/libnereus.so}"
export NEREUSCTL="${NEREUSCTL:-$PWD/bazel-bin/server/admin/nereusctl}"
export NEREUS_SERVER_BINARY="${NEREUS_SERVER_BINARY:-$PWD/bazel-bin/server/nereus-server}"
export PYTHONDONTWRITEBYTECODE=1

missing=()
for file in "$NEREUS_LIBRARY" "$NEREUSCTL" "$NEREUS_SERVER_BINARY"; do
  [[ -f "$file" ]] || missing+=("$file")
done
if [[ ${#missing[@]} -ne 0 ]]; then
  echo "tests of the Python package: there is no ${missing[*]};" \
    "bazel build //worker/c_api:libnereus.so //server/admin:nereusctl //server:nereus-server" >&2
  exit 1
fi

for python in python3 /usr/bin/python3; do
  if "$python" -c "import numpy, pytest" 2>/dev/null; then
    arguments=(-q -rs -p no:cacheprovider)
    # Most tests wait for processes for half of their time.
    if "$python" -c "import xdist" 2>/dev/null; then arguments+=(-n 3); fi
    exec "$python" -m pytest "${arguments[@]}" tests/python "$@"
  fi
done
echo "tests of the Python package: no python3 has pytest and numpy;" \
  "deploy/install_packages.sh --test installs them" >&2
exit 1
