#!/bin/bash
# Runs first_run.py. `first_run.sh --help` says what it does.
set -euo pipefail
if ! command -v python3 >/dev/null; then
  echo "first_run.sh: there is no python3 on this machine; install Python 3.8 or newer" >&2
  exit 2
fi
exec python3 "$(dirname "${BASH_SOURCE[0]}")/first_run.py" "$@"
