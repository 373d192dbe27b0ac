#!/usr/bin/python3
"""Draws the loss of the GPT example, with and without the kill of a worker.

  bazel build //server:nereus-server //server/admin:nereusctl //worker/c_api:libnereus.so
  apt-get install python3-torch python3-matplotlib
  tests/benchmarks/loss_curves.py --data=FILE --out=PNG

Four workers of this machine train worker/python/examples/gpt_torch.py. In the second run, the
third worker gets SIGKILL half way; nereusctl starts it again. The losses are those that the first
worker prints. Prints them, and what nereusctl says of the kill.
"""

import argparse
import os
import re
import signal
import subprocess
import sys

from replay_job import TOP

WORKERS = 4
VICTIM = "2"


def find_worker(name):
    """Returns the process of a worker, or None."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            with open(f"/proc/{process}/cmdline", "rb") as file:
                command = file.read()
        except OSError:
            continue
        if f"NEREUS_NAME={name}".encode() in variables and b"gpt_torch.py" in command:
            return int(process)
    return None


def train(arguments, kill_at):
    """Trains once. Returns the losses by step."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.path.join(TOP, "worker/python"),
                   "NEREUS_LIBRARY": os.path.join(TOP, "bazel-bin/worker/c_api/libnereus.so")}
    command = [os.path.join(TOP, "bazel-bin/server/admin/nereusctl"), "run", f"-np={WORKERS}",
               "--server-binary=" + os.path.join(TOP, "bazel-bin/server/nereus-server"), "--",
               arguments.python, os.path.join(TOP, "worker/python/examples/gpt_torch.py"),
               f"--data={arguments.data}", f"--steps={arguments.steps}"]
    losses, text = {}, ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment) as job:
        for line in job.stdout:
            text += line
            found = re.search(r"step (\d+) of \d+: loss ([\d.]+)", line)
            if found:
                losses[int(found[1])] = float(found[2])
                print(line.rstrip(), flush=True)
            if kill_at is not None and losses and max(losses) >= kill_at:
                victim = find_worker(VICTIM)
                if victim is None:
                    sys.exit(f"loss_curves: worker {VICTIM} does not run")
                os.kill(victim, signal.SIGKILL)
                kill_at = None
            if "started again" in line or "the job goes on" in line:
                print(line.rstrip(), flush=True)
    if job.returncode != 0:
        sys.exit(f"loss_curves: the job has failed:\n{text[-3000:]}")
    return losses


def draw(pyplot, whole, killed, arguments):
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for axis, losses, title in zip(axes, (whole, killed), (
            f"{WORKERS} workers", f"a worker is killed at step {arguments.steps // 2}")):
        axis.plot(list(losses), list(losses.values()), marker=".")
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.grid(True)
    axes[1].axvline(arguments.steps // 2, color="grey", linestyle="--")
    axes[0].set_ylabel("loss of the first worker")
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=80, metadata={"Software": None})


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="text to learn from")
    parser.add_argument("--out", required=True, metavar="PNG")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter with torch")
    arguments = parser.parse_args()
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    whole = train(arguments, None)
    killed = train(arguments, arguments.steps // 2)
    draw(pyplot, whole, killed, arguments)
    print(f"last losses: {list(whole.values())[-1]} and {list(killed.values())[-1]}")


if __name__ == "__main__":
    main()
