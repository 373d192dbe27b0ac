#!/usr/bin/env bash
# Installs the Debian 12 packages that Nereus is built with, and with --test
# those that its checks need as well. Safe to run again: it calls apt only for
# packages that are missing.
set -euo pipefail

build_packages=(
  g++ bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-platforms
  bazel-skylib libgrpc++-dev libgrpc-dev protobuf-compiler
  protobuf-compiler-grpc libprotobuf-dev libabsl-dev libopenblas-dev
  libgtest-dev libgmock-dev libbenchmark-dev zlib1g-dev libssl-dev
  nlohmann-json3-dev libcli11-dev libisal-dev libsqlite3-dev
  libcivetweb-dev prometheus-cpp-dev
  python3
)
test_packages=(clang clang-format clang-tidy cmake iproute2 patchelf pkg-config
  python3-numpy python3-pytest python3-pytest-xdist python3-torch python3-venv python3-wheel)
# For tests of images, of alerts, of the page, and of jobs in pods, in Slurm and under systemd.
cluster_test_packages=(aardvark-dns buildah catatonit chromium iptables mmdebstrap munge
  netavark podman prometheus python3-pip python3-yaml runc slurm-client slurmctld slurmd systemd)

usage() {
  cat <<'TEXT'
Usage: deploy/install_packages.sh [--test]

Installs the packages that the build needs and, with --test, those of
tests/run.sh too. Needs root, or sudo, if any is missing.
TEXT
}

is_installed() {
  [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

packages=("${build_packages[@]}")
for argument in "$@"; do
  case "$argument" in
    --test) packages+=("${test_packages[@]}" "${cluster_test_packages[@]}") ;;
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

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "Nereus is built with Debian's packages, and this system has no" \
    "dpkg and apt-get. These are needed: ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "packages: all ${#packages[@]} are installed"
  exit 0
fi

as_root=()
if [[ "$(id -u)" -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "packages are missing, and installing them needs root or sudo." \
      "As root: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "packages: installing ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get --yes
  -o DPkg::Lock::Timeout=300)
"${apt[@]}" update
"${apt[@]}" install --no-install-recommends "${missing[@]}"
