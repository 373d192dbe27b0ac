#!/usr/bin/env bash
# Builds Nereus and installs its programs, its C library, the library's header
# and pkg-config files below one folder. Safe to run again.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

usage() {
  cat <<'TEXT'
Usage: deploy/install.sh --prefix=DIR [--cuda]

Builds Nereus and installs into DIR:

  bin/      nereus-server, nereus-worker, nereusctl
  lib/      libnereus.so; with --cuda, libnereus_cuda.so too
  include/  nereus.h
  lib/pkgconfig/nereus.pc; with --cuda, nereus_cuda.pc too
  share/doc/nereus/own_loop.c, an example

The programs and libraries use shared libraries of Debian 12, which
deploy/install_packages.sh installs. --cuda needs the CUDA Toolkit and also
builds nereus-worker for GPUs. The folder may be moved afterwards.
TEXT
}

prefix=""
config=()
targets=(//server:nereus-server //server/admin:nereusctl
  //worker/trainer:nereus-worker //worker/c_api:libnereus.so)
libraries=(libnereus.so)
for argument in "$@"; do
  case "$argument" in
    --prefix=?*) prefix="${argument#--prefix=}" ;;
    --cuda)
      config=(--config=cuda)
      targets+=(//worker/c_api:libnereus_cuda.so)
      libraries+=(libnereus_cuda.so)
      ;;
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
if [[ -z "$prefix" ]]; then
  echo "--prefix=DIR is missing" >&2
  usage >&2
  exit 2
fi
mkdir -p "$prefix"
prefix="$(cd "$prefix" && pwd)"

cd "$root"
bazel build ${config[@]+"${config[@]}"} "${targets[@]}"

# install replaces a file by a new one: a program that runs goes on with the old one.
install -D -m 755 -t "$prefix/bin" bazel-bin/server/nereus-server \
  bazel-bin/server/admin/nereusctl bazel-bin/worker/trainer/nereus-worker
install -D -m 755 -t "$prefix/lib" "${libraries[@]/#/bazel-bin/worker/c_api/}"
install -D -m 644 -t "$prefix/include" worker/c_api/nereus.h
install -D -m 644 -t "$prefix/share/doc/nereus" worker/examples/c/own_loop.c

version="$(sed -n 's/.*kVersion\[\] = "\(.*\)".*/\1/p' common/base/version.h)"
mkdir -p "$prefix/lib/pkgconfig"
for library in "${libraries[@]}"; do
  name="${library#lib}"
  name="${name%.so}"
  cat >"$prefix/lib/pkgconfig/$name.pc" <<TEXT
prefix=\${pcfiledir}/../..

Name: $name
Description: Parameter server for data-parallel training: the client of a worker
Version: $version
Cflags: -I\${prefix}/include
Libs: -L\${prefix}/lib -l$name
TEXT
done
echo "installed Nereus $version in $prefix"
