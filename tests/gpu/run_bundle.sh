#!/bin/bash
# Runs the tests and programs of a bundle (bundle.sh): the tests that need a GPU, then a
# job with four workers on it. Passes its arguments to nereusctl local. Exits with 0 if
# all passed, and also, with a message, if there is no GPU.
set -euo pipefail
cd "$(dirname "$0")"
export LD_LIBRARY_PATH="$PWD/lib:${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64"
if [ ! -e /dev/nvidiactl ]; then
  echo "SKIPPED $0: no GPU: there is no /dev/nvidiactl"
  exit 0
fi
failed=0
for test in tests/gpu/*_test; do
  "$test" || failed=$((failed + 1))
done
server/admin/nereusctl local --workers=4 --servers=2 --device=cuda:0 "$@" ||
  failed=$((failed + 1))
echo "$failed failed"
exit $((failed > 0))
