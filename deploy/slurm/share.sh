#!/usr/bin/env bash
# Submits jobs that take turns at the devices of the same nodes (docs/sharing.md).
set -euo pipefail
folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

usage() {
  cat <<'TEXT'
Usage: deploy/slurm/share.sh SBATCH_OPTION... -- [NAME=VALUE]... PROGRAM [ARGUMENT]...
                                             [-- [NAME=VALUE]... PROGRAM [ARGUMENT]...]...

Submits a job of train.sbatch for each PROGRAM, all with the same options. Waits until the first
job has nodes, and submits the others to these nodes. NAME=VALUE is a variable of one job.

Two jobs that share GPUs, which the cluster offers as shards (docs/sharing.md):

  share.sh --nodes=8 --gres=shard:1 --time=4:00:00 \
    -- NEREUS_JOB_NAME=one NEREUS_CHECKPOINT_DIR=/shared/one python3 one.py \
    -- NEREUS_JOB_NAME=two NEREUS_CHECKPOINT_DIR=/shared/two python3 two.py

Two jobs that share cores, in a partition with OverSubscribe=YES:

  share.sh --nodes=8 --cpus-per-task=16 --oversubscribe -- ./one -- ./two

NEREUS_SHARE names a folder in the memory, or on a disk, of each node: by default
/dev/shm/nereus-USER. It must be one that the jobs of a node have in common. A job that Slurm
requeues may get other nodes, unless --nodelist is among the options.
TEXT
}

fail() {
  echo "share.sh: $1" >&2
  exit "${2:-1}"
}

# each_job COMMAND [-- WORD...]...: calls COMMAND with the words of each job.
each_job() {
  local command="$1" words
  shift
  while (($#)); do
    shift  # --
    words=()
    while (($#)) && [[ "$1" != -- ]]; do
      words+=("$1")
      shift
    done
    "$command" ${words[@]+"${words[@]}"}
  done
}

is_variable() { [[ "${1:-}" =~ ^[A-Za-z_][A-Za-z_0-9]*= ]]; }

# check WORD...: fails unless the words of a job have a program.
check() {
  while is_variable "${1:-}"; do shift; done
  [[ -n "${1:-}" && "$1" != -* ]] || fail "a program is missing after --" 2
}

# submit WORD...: submits the job of a program, with its variables before it, to the nodes of the
# first job.
submit() {
  local variables=() job
  while is_variable "$1"; do
    variables+=("$1")
    shift
  done
  if [[ -n "$first" && -z "$has_nodes" ]]; then follow; fi
  if ! job="$(env ${variables[@]+"${variables[@]}"} \
    sbatch --parsable "${options[@]}" "$folder/train.sbatch" "$@")"; then
    fail "the job of $* was not submitted${first:+; job ${first%%;*} goes on without it}"
  fi
  first="${first:-$job}"
  echo "job ${job%%;*}: $*"
}

# follow: waits until the first job has nodes, and adds them to the options of the next ones.
follow() {
  local id="${first%%;*}" state="" line failures=0 count nodes
  local query=(squeue --noheader --jobs="$id" --format='%T %D %N')
  # The name of a cluster may follow the number.
  [[ "$first" != *";"* ]] || query+=(--clusters="${first#*;}")
  while [[ "$state" != RUNNING ]]; do
    [[ -z "$state" ]] || sleep 2
    if ! line="$("${query[@]}")"; then
      ((++failures < 30)) || fail "job $id cannot be found any more; no other job was submitted"
      state=unknown
      continue
    fi
    failures=0
    [[ -n "$line" ]] || fail "job $id has ended before other jobs could join it"
    read -r state count nodes <<<"$line"
  done
  options+=("--nodes=$count" "--nodelist=$nodes")
  has_nodes=1
}

case "${1:-}" in
  --help | -h)
    usage
    exit 0
    ;;
esac
options=()
while (($#)) && [[ "$1" != -- ]]; do
  options+=("$1")
  shift
done
if ((!$#)); then
  usage >&2
  exit 2
fi

export NEREUS_SHARE="${NEREUS_SHARE:-/dev/shm/nereus-$(id -un)}"
first=""
has_nodes=""
each_job check "$@"
each_job submit "$@"
