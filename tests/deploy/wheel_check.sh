#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh virtual environment without an index, and
# runs a job there, without anything of this repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

deploy/build_wheel.sh --out="$scratch"
/usr/bin/python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --no-index "$scratch"/nereus-*.whl
unset PYTHONPATH NEREUS_LIBRARY NEREUS_SERVER_BINARY
cd "$scratch"
PATH="$scratch/venv/bin:$PATH" python3 -m nereus.check
"$scratch/venv/bin/nereusctl" --version
# All libraries but those of the system come with the wheel.
strays="$(find venv -name '*.so*' -path '*nereus*' -exec ldd {} + |
  awk '$3 ~ /^\// && $3 !~ /nereus\/libraries/ { print $3 }' |
  grep -v -E '/(libc|libm|libdl|libpthread|librt|libresolv|libstdc\+\+|libgcc_s)\.so' || true)"
if [[ -n "$strays" ]]; then
  echo "libraries of this machine that the wheel lacks: $strays" >&2
  exit 1
fi
