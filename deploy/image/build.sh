#!/usr/bin/env bash
# Builds the images of Nereus with Debian's tools alone, from the programs of this checkout.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"

usage() {
  cat <<'TEXT'
Usage: deploy/image/build.sh [IMAGE...]

Builds nereus-server and nereus-worker in the image store of buildah and podman, from the
last lines of deploy/image/Dockerfile. The tag is the version of Nereus. IMAGE is one of

  server       nereus-server and nereusctl
  worker       nereus-worker, the reference trainer
  worker-cuda  the same for GPUs, with cuBLAS; needs the CUDA Toolkit
  torch        Python, Debian's PyTorch and the package nereus, for programs of your own;
               needs mmdebstrap, root, and the packages of deploy/build_wheel.sh

Two builds from the same commit and the same Debian packages give the same digests, which
the last lines show with the sizes. Needs the package buildah.
TEXT
}

images=()
for argument in "$@"; do
  case "$argument" in
    server | worker | worker-cuda | torch) images+=("$argument") ;;
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
[[ ${#images[@]} -ne 0 ]] || images=(server worker)

version="$(sed -n 's/.*kVersion\[\] = "\(.*\)".*/\1/p' "$root/common/base/version.h")"
revision="$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)"
# The date of the newest file in an image, and of its bill of materials.
SOURCE_DATE_EPOCH="$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)"
export SOURCE_DATE_EPOCH
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

has() { [[ " ${images[*]} " == *" $1 "* ]]; }

# Makes the file system of the image torch, which has dpkg and Python.
make_torch_root() {
  local tree="$1"
  mkdir -p "$(dirname "$tree")"
  # shellcheck disable=SC2016  # $1 is for the hook.
  mmdebstrap --quiet --variant=minbase --include=python3-torch,python3-numpy \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --aptopt='APT::Install-Recommends "false"' \
    --customize-hook='rm -rf "$1"/var/cache/* "$1"/var/log/* "$1"/var/lib/apt/lists/*' \
    bookworm "$tree"
  "$root/deploy/build_wheel.sh" --out="$scratch/wheel"
  local packages=/usr/lib/python3/dist-packages
  python3 -m zipfile -e "$scratch"/wheel/nereus-*.whl "$tree$packages"
  chmod 755 "$tree$packages"/nereus/bin/*
  ln -s "$packages/nereus/bin/nereusctl" "$packages/nereus/bin/nereus-server" "$tree/usr/bin"
  echo 'nonroot:x:65532:65532:nonroot:/:/usr/sbin/nologin' >>"$tree/etc/passwd"
  echo 'nonroot:x:65532:' >>"$tree/etc/group"
  "$root/deploy/image/sbom.py" "$tree" --name=nereus-torch --version="$version"
}

if has server || has worker; then "$root/deploy/image/make_root.sh" --out="$scratch/roots"; fi
if has worker-cuda; then "$root/deploy/image/make_root.sh" --out="$scratch/roots" --cuda; fi
sed -n '/^FROM scratch AS server/,$p' "$root/deploy/image/Dockerfile" |
  sed 's/--from=build\(-cuda\)\? //' >"$scratch/Dockerfile"
if has torch; then
  make_torch_root "$scratch/roots/torch"
  printf '%s\n' 'FROM scratch AS torch' 'COPY /roots/torch /' 'USER 65532:65532' \
    'CMD ["/usr/bin/python3"]' >>"$scratch/Dockerfile"
fi

for image in "${images[@]}"; do
  # One stage alone: buildah would build those before it, too.
  sed -n "/^FROM scratch AS $image\$/,/^FROM/{/^FROM scratch AS $image\$/p;/^FROM/!p}" \
    "$scratch/Dockerfile" >"$scratch/$image"
  buildah bud --quiet --timestamp="$SOURCE_DATE_EPOCH" --file="$scratch/$image" \
    --label="org.opencontainers.image.title=nereus-$image" \
    --label="org.opencontainers.image.version=$version" \
    --label="org.opencontainers.image.revision=$revision" \
    --tag="nereus-$image:$version" "$scratch" >/dev/null
done
for image in "${images[@]}"; do buildah images --digests --noheading "nereus-$image:$version"; done
