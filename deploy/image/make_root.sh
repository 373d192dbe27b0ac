#!/usr/bin/env bash
# Makes the file systems of the images of Nereus: programs and the libraries that they need,
# as they are on this machine. Safe to run again.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"

usage() {
  cat <<'TEXT'
Usage: deploy/image/make_root.sh --out=DIR [--cuda]

Builds Nereus, and makes DIR/server with nereus-server and nereusctl, and DIR/worker with
nereus-worker. With --cuda makes DIR/worker-cuda alone, whose nereus-worker computes on
GPUs, with cuBLAS. Each has the copyright files and the status of its Debian packages, and
/usr/share/sbom/NAME.spdx.json, which lists its files. Runs on Debian 12.
TEXT
}

out=""
cuda=()
for argument in "$@"; do
  case "$argument" in
    --out=?*) out="${argument#--out=}" ;;
    --cuda) cuda=(--cuda) ;;
    --help | -h)
      usage
      exit 0
      ;;
    *)
      echo "unknown argument: $argument" >&2
      usage >&2
      exit 2
      ;;
  esac
done
if [[ -z "$out" ]]; then
  echo "--out=DIR is missing" >&2
  usage >&2
  exit 2
fi
mkdir -p "$out"
out="$(cd "$out" && pwd)"
version="$(sed -n 's/.*kVersion\[\] = "\(.*\)".*/\1/p' "$root/common/base/version.h")"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
"$root/deploy/install.sh" --prefix="$scratch/prefix" ${cuda[@]+"${cuda[@]}"}

# add_libraries TREE FILE...: copies the libraries of these files, by their sonames. The
# loader looks in lib/x86_64-linux-gnu without a cache.
add_libraries() {
  local tree="$1" library
  shift
  ldd "$@" | awk '$3 ~ /^\// { print $3 } $1 ~ /^\// && $2 ~ /^\(/ { print $1 }' |
    sort -u | while read -r library; do
    case "$library" in
      */ld-linux-*) install -D -m 755 -t "$tree/usr/lib64" "$library" ;;
      *) install -D -m 755 -t "$tree/usr/lib/$(uname -m)-linux-gnu" "$library" ;;
    esac
  done
}

# make_tree NAME PROGRAM...: makes the file system of one image.
make_tree() {
  local name="$1" tree="$out/$1" program toolkit=""
  shift
  rm -rf "$tree"
  mkdir -p "$tree/usr/bin" "$tree/etc"
  ln -s usr/bin usr/lib usr/lib64 "$tree"
  mkdir -m 1777 "$tree/tmp"
  echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >"$tree/etc/passwd"
  echo 'nonroot:x:65532:' >"$tree/etc/group"
  for program in "$@"; do
    strip -o "$tree/usr/bin/$program" "$scratch/prefix/bin/$program"
    add_libraries "$tree" "$tree/usr/bin/$program"
  done
  if [[ "$name" == worker-cuda ]]; then
    # The worker loads cuBLAS itself. The driver's libcuda.so.1 is the node's.
    local library
    toolkit="${CUDA_HOME:-/usr/local/cuda}"
    for library in libcublas.so.13 libcublasLt.so.13; do
      library="$toolkit/lib64/$library"
      install -D -m 755 -t "$tree/usr/lib/$(uname -m)-linux-gnu" "$library"
      add_libraries "$tree" "$library"
    done
  fi
  "$root/deploy/image/sbom.py" "$tree" --name="nereus-$name" --version="$version" \
    ${toolkit:+"--cuda=$toolkit"}
}

if [[ ${#cuda[@]} -eq 0 ]]; then
  make_tree server nereus-server nereusctl
  make_tree worker nereus-worker
else
  make_tree worker-cuda nereus-worker
fi
