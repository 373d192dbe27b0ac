#!/bin/bash
# Packs the programs, the GPU's tests and first_run.sh, with gRPC, Protocol Buffers and
# nearly all other libraries within them, for a machine that has a GPU, its driver, cuBLAS
# 13, Python 3 and glibc 2.36 or newer, but not what it takes to build them:
#
#   tests/gpu/bundle.sh nereus-gpu.tar.xz                    here
#   tar xJf nereus-gpu.tar.xz                                there; without xz:
#   python3 -m tarfile -e nereus-gpu.tar.xz
#   nereus-gpu/tests/gpu/first_run.sh [--quick]              there
#
# Needs the CUDA Toolkit; builds with --config=cuda --config=static. Fails if the file has
# more than 55 MB.
set -euo pipefail
case ${1:-} in
  "" | -h | --help)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"
    [ -n "${1:-}" ] || exit 2
    exit
    ;;
esac
readonly limit=55000000
file=$(realpath -m "$1")
cd "$(dirname "$0")/../.."

programs=(server/nereus-server server/admin/nereusctl worker/trainer/nereus-worker
  tests/gpu/kernel_benchmark tests/gpu/gpu_ceilings)
mapfile -t tests < <(bazel query 'attr(tags, "\bgpu\b", tests(//tests/gpu:all))' |
  sed -n 's|^//tests/gpu:|tests/gpu/|p')
if [ ${#tests[@]} -eq 0 ]; then
  echo "bundle.sh: bazel query found no tests with the tag gpu" >&2
  exit 1
fi
built=("${programs[@]}" "${tests[@]}")
mapfile -t targets < <(printf '//%s\n' "${built[@]}" | sed 's|/\([^/]*\)$|:\1|')
bazel build --config=cuda --config=static "${targets[@]}"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
top=$folder/nereus-gpu
bin=$(bazel info --config=cuda --config=static bazel-bin)
for name in "${built[@]}"; do
  mkdir -p "$top/$(dirname "$name")"
  strip -o "$top/$name" "$bin/$name"
done
cp tests/gpu/first_run.sh tests/gpu/first_run*.py "$top/tests/gpu"
# Libraries without an archive, and those of the compiler, which first_run.sh uses only if
# the machine's own ones are too old.
mkdir -p "$top/lib/compiler"
libraries() { ldd "$top/worker/trainer/nereus-worker" | awk -v name="$1" '$1 ~ name { print $3 }'; }
libraries '^libisal' | xargs cp -t "$top/lib"
libraries '^(libstdc\+\+|libgcc_s)' | xargs cp -t "$top/lib/compiler"
# The programs have most of their code in common: the dictionary must hold several of them.
tar cf - -C "$folder" nereus-gpu | xz -T1 --lzma2=preset=6,dict=128MiB >"$file"
size=$(stat -c %s "$file")
echo "$file: $((size / 1000000)).$((size / 100000 % 10)) MB"
if [ "$size" -gt "$limit" ]; then
  {
    echo "bundle.sh: $file has $size bytes, the limit is $limit. The largest files, in bytes:"
    find "$top" -type f -printf '%s %P\n' | sort -rn | head -n 5
    echo "Leave out a test: device_network_test has OpenBLAS within it."
  } >&2
  exit 1
fi
