#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh virtual environment without an index, and
# runs a job there, without anything of this repository: on this machine, and in a root
# that has Debian's smallest system, Python and NumPy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
example="$PWD/worker/python/examples/own_loop.py"
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

if [[ $EUID -ne 0 ]] || ! command -v mmdebstrap >/dev/null; then
  echo "wheel in a small root: skipped, it needs root and mmdebstrap"
  exit 0
fi
root="$scratch/root"
mmdebstrap --quiet --variant=minbase --include=python3-venv,python3-numpy \
  --dpkgopt='path-exclude=/usr/share/man/*' --aptopt='APT::Install-Recommends "false"' \
  bookworm "$root"
cp "$scratch"/nereus-*.whl "$example" "$root/tmp"
# The mounts, and processes that are left, go with the namespaces.
unshare --mount --pid --net --fork bash -euc "ip link set lo up
  mkdir -p $root/dev/shm
  mount -t proc proc $root/proc
  mount -t tmpfs shm $root/dev/shm
  exec chroot $root /bin/bash -euc '
    cd /tmp
    python3 -m venv --system-site-packages venv
    venv/bin/pip install --quiet --no-index nereus-*.whl
    PATH=\$PWD/venv/bin:\$PATH
    python3 -m nereus.check
    nereusctl run -np 2 -- python3 own_loop.py'" | tee "$scratch/output"
[[ "$(grep -c '] y = 3.00 x + 1.00' "$scratch/output")" -eq 2 ]]
echo "wheel in a small root: works"
