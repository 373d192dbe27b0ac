#!/usr/bin/env bash
# Builds a wheel of the Python package, with the library and the programs. Safe
# to run again.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

usage() {
  cat <<'TEXT'
Usage: deploy/build_wheel.sh --out=DIR [--cuda]

Builds nereus-VERSION-py3-none-manylinux_2_36_x86_64.whl in DIR: the package
nereus, libnereus.so, nereusctl and nereus-server, and all libraries that they
need but those of glibc and of the compiler. It runs on Linux with glibc 2.36 or newer, such as
Debian 12 and Ubuntu 24.04, and with each CPython from 3.9.

--cuda adds libnereus_cuda.so, and needs the CUDA Toolkit. Needs the packages
python3-wheel and patchelf.
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
for program in patchelf ldd dpkg-query; do
  command -v "$program" >/dev/null || {
    echo "there is no $program; on Debian: apt-get install patchelf python3-wheel" >&2
    exit 1
  }
done
# The first interpreter may be another one than that of the package python3-wheel.
python=""
for candidate in python3 /usr/bin/python3; do
  if [[ -z "$python" ]] && "$candidate" -c "import wheel" 2>/dev/null; then
    python="$candidate"
  fi
done
if [[ -z "$python" ]]; then
  echo "no python3 has the module wheel; on Debian: apt-get install python3-wheel" >&2
  exit 1
fi
mkdir -p "$out"
out="$(cd "$out" && pwd)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

"$root/deploy/install.sh" --prefix="$scratch/prefix" ${cuda[@]+"${cuda[@]}"}
version="$(sed -n 's/.*kVersion\[\] = "\(.*\)".*/\1/p' "$root/common/base/version.h")"
tree="$scratch/tree"
package="$tree/nereus"
info="$tree/nereus-$version.dist-info"
mkdir -p "$tree" "$info/licenses"
cp -r "$root/worker/python/nereus" "$package"
find "$package" -name __pycache__ -prune -exec rm -r {} +
install -D -t "$package/bin" "$scratch/prefix/bin/nereusctl" "$scratch/prefix/bin/nereus-server"
install -t "$package" "$scratch"/prefix/lib/libnereus*.so
mkdir "$package/libraries"

# Libraries of glibc and of the compiler are those of the machine.
ours=("$package"/bin/* "$package"/libnereus*.so)
ldd "${ours[@]}" | awk '$3 ~ /^\// { print $3 }' | sort -u | while read -r library; do
  case "$(basename "$library")" in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.* | \
      ld-linux* | libstdc++.so.* | libgcc_s.so.* | libcuda.so.* | libcublas*) continue ;;
  esac
  install -m 755 -t "$package/libraries" "$library"
  source="$(dpkg-query -S "$(realpath "$library")" 2>/dev/null || dpkg-query -S "$library")"
  debian="${source%%:*}"
  cp "/usr/share/doc/$debian/copyright" "$info/licenses/$debian"
done
strip --strip-unneeded "${ours[@]}"
# shellcheck disable=SC2016  # $ORIGIN is for the loader.
patchelf --set-rpath '$ORIGIN' "$package"/libraries/*
# shellcheck disable=SC2016
patchelf --set-rpath '$ORIGIN/libraries' "$package"/libnereus*.so
# shellcheck disable=SC2016
patchelf --set-rpath '$ORIGIN/../libraries' "$package"/bin/*

cat >"$info/METADATA" <<TEXT
Metadata-Version: 2.1
Name: nereus
Version: $version
Summary: Data-parallel training over servers, rings and factors
Requires-Python: >=3.9
TEXT
cat >"$info/WHEEL" <<TEXT
Wheel-Version: 1.0
Generator: deploy/build_wheel.sh
Root-Is-Purelib: false
Tag: py3-none-manylinux_2_36_x86_64
TEXT
cat >"$info/entry_points.txt" <<TEXT
[console_scripts]
nereusctl = nereus._programs:nereusctl
nereus-server = nereus._programs:server
TEXT
"$python" -m wheel pack --dest-dir "$out" "$tree"
