#!/usr/bin/env bash
# Installs Nereus into an empty folder, moves that folder, and builds the example in
# C against it: by pkg-config, and by CMake if it is there. Each program trains with
# the installed server. With --cuda, installs and checks the library for GPUs, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
scratch="$(mktemp -d)"
server=""
cleanup() {
  [[ -z "$server" ]] || kill "$server" 2>/dev/null || true
  rm -rf "$scratch"
}
trap cleanup EXIT

deploy/install.sh --prefix="$scratch/first" "$@"
mv "$scratch/first" "$scratch/nereus"
prefix="$scratch/nereus"
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"

# train PROGRAM: runs a job of one worker and looks at what it has learnt.
train() {
  "$prefix/bin/nereus-server" --servers=1 --workers=1 >"$scratch/server" 2>&1 &
  server=$!
  local control=""
  while [[ -z "$control" ]]; do
    kill -0 "$server"
    sleep 0.1
    control="$(sed -n 's/.*listening.*control=\([^ ]*\).*/\1/p' "$scratch/server")"
  done
  "$1" "$control" | tee "$scratch/output"
  grep -q '^y = 3.00 x + 1.00$' "$scratch/output"
  wait "$server" || true  # Nothing is saved, which its exit code says.
  server=""
}

example="$prefix/share/doc/nereus/own_loop.c"
for library in nereus ${1:+nereus_cuda}; do
  read -r -a flags <<<"$(pkg-config --cflags --libs "$library")"
  cc -std=c99 -Wall -Wextra -Werror -pedantic "$example" -o "$scratch/by_cc" \
    "${flags[@]}" "-Wl,-rpath,$prefix/lib"
  train "$scratch/by_cc"
  echo "cc with pkg-config, $library: passed"
done

if ! command -v cmake >/dev/null; then
  echo "CMake project: skipped, there is no cmake"
  exit 0
fi
cp -r tests/deploy/cmake_project "$scratch/project"
cp "$example" "$scratch/project/train.c"
cmake -S "$scratch/project" -B "$scratch/project/build" >/dev/null
cmake --build "$scratch/project/build" >/dev/null
train "$scratch/project/build/train"
echo "CMake project: passed"
