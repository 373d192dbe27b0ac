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

# submit WORD...: submits the job of a program, with its variables before it. Sets `job` to its
# number.
submit() {
  local variables=()
  while [[ "${1:-}" =~ ^[A-Za-z_][A-Za-z_0-9]*= ]]; do
    variables+=("$1")
    shift
  done
  (($#)) || fail "a program is missing after --" 2
  job="$(env "${variables[@]}" sbatch --parsable "${options[@]}" "$folder/train.sbatch" "$@")"
  job="${job%%;*}"  # The name of a cluster may follow.
  echo "job $job: $*"
}

# Finds the nodes of a job, and adds them to the options of the next ones.
follow() {
  local state="" count nodes=""
  while [[ "$state" != RUNNING ]]; do
    [[ -z "$state" ]] || sleep 2
    read -r state count nodes < <(squeue --noheader --jobs="$1" --format='%T %D %N') ||
      fail "job $1 has ended before other jobs could join it"
  done
  options+=("--nodes=$count" "--nodelist=$nodes")
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
is_first=1
while (($#)); do
  shift  # --
  program=()
  while (($#)) && [[ "$1" != -- ]]; do
    program+=("$1")
    shift
  done
  submit "${program[@]}"
  if ((is_first && $#)); then follow "$job"; fi
  is_first=0
done
