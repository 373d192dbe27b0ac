#!/bin/bash
# Packs the programs, the tests for a GPU and first_run.sh into a file, for another machine
# that cannot build them. The programs have gRPC, Protocol Buffers and nearly all other
# libraries within them. The other machine needs a GPU, its driver, cuBLAS 13, Python 3 and
# glibc 2.36 or newer.
#
#   tests/gpu/bundle.sh nereus-gpu.tar.xz                    on this machine
#   tar xJf nereus-gpu.tar.xz                                on the other one; without xz:
#   python3 -m tarfile -e nereus-gpu.tar.xz
#   nereus-gpu/tests/gpu/first_run.sh [--quick]              on the other one
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
# Adds libraries that have no archive to link, and the libraries of the compiler.
# first_run.sh uses the latter only if those of the machine are missing or too old.
mkdir -p "$top/lib/compiler"
libraries() { ldd "$top/worker/trainer/nereus-worker" | awk -v name="$1" '$1 ~ name { print $3 }'; }
libraries '^lib(isal|civetweb|prometheus)' | xargs cp -t "$top/lib"
libraries '^(libstdc\+\+|libgcc_s)' | xargs cp -t "$top/lib/compiler"
# The programs have most of their code in common, so the dictionary of xz must hold several
# programs.
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
