#!/bin/bash
# Packs the programs and the GPU's tests, with gRPC, Protocol Buffers and nearly all
# other libraries within them, for a machine that has a GPU, its driver, cuBLAS 13 and
# glibc 2.36 or newer, but not what it takes to build them:
#
#   tests/gpu/bundle.sh bundle.tgz                           here
#   tar xzf bundle.tgz && nereus-gpu/run.sh [FLAGS]          there
#
# which runs the tests and then the main job, with four workers on one GPU. FLAGS are
# nereusctl local's, such as --data=FOLDER.
set -euo pipefail
case ${1:-} in
  "" | -h | --help)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit $([ -n "${1:-}" ] && echo 0 || echo 2)
    ;;
esac
file=$(realpath -m "$1")
cd "$(dirname "$0")/../.."

programs=(server/nereus-server server/admin/nereusctl worker/trainer/nereus-worker)
tests=(staging_test device_network_test gpu_client_test gpu_job_kinds_test gpu_job_test)
built=("${programs[@]}" "${tests[@]/#/tests/gpu/}")
bazel build --config=cuda --config=static \
  $(printf '//%s\n' "${built[@]}" | sed 's|/\([^/]*\)$|:\1|')

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
top=$folder/nereus-gpu
bin=$(bazel info --config=cuda --config=static bazel-bin)
for name in "${built[@]}"; do
  mkdir -p "$top/$(dirname "$name")"
  strip -o "$top/$name" "$bin/$name"
done
mkdir "$top/lib"
# Of these there is no archive, or another version may be there.
ldd "$top"/*/*/nereus-worker | awk '/libisal|libstdc\+\+|libgcc_s/ { print $3 }' |
  xargs cp -t "$top/lib"
cp tests/gpu/run_bundle.sh "$top/run.sh"
tar czf "$file" -C "$folder" nereus-gpu
echo "$file: $(($(stat -c %s "$file") >> 20)) MiB"
