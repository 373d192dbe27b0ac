#!/usr/bin/env python3
"""Step times of the planner's choices, in the simulator.

  bazel build //server/admin:nereusctl
  tests/benchmarks/plan_benchmark.py

For each model, bandwidth and number of machines (each with a server and a
worker), prints the seconds of a step:
  - with a single scheme for all layers that support it,
  - with Poseidon's rule (--cost=bytes),
  - with the planner that minimises time (--cost=time).
At the end, prints the worst case of the last planner against the best single
scheme, and its best case against Poseidon's rule.
"""

import argparse
import json
import os
import subprocess
import sys

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
NEREUSCTL = os.path.join(TOP, "bazel-bin/server/admin/nereusctl")

# Seconds of forward and backward for a batch of 32 on one machine.
MODELS = {"alexnet": 0.1, "vgg19": 0.5, "resnet-50": 0.3, "bert-base": 0.5}
PLANS = {"server": ["--scheme=server"], "factor": ["--scheme=factor"],
         "ring": ["--scheme=ring"], "bytes": ["--cost=bytes"],
         "time": ["--cost=time"]}


def simulate(model, compute, rate, workers, flags):
    command = [NEREUSCTL, "simulate", f"--model={model}",
               f"--workers={workers}", f"--bandwidth={rate}Gbit",
               f"--compute={compute}s", "--iterations=2", "--json"] + flags
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["iteration_seconds"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 16, 64])
    parser.add_argument("--rates", type=int, nargs="+", default=[1, 10],
                        help="Gbit/s of each machine, in each direction")
    parser.add_argument("--models", nargs="+", default=list(MODELS),
                        choices=MODELS)
    parser.add_argument("--waits-at-end", action="store_true",
                        help="of programs that wait at the end of a step")
    parser.add_argument("--json", action="store_true",
                        help="prints a JSON object per line, without a summary")
    args = parser.parse_args()
    if not os.access(NEREUSCTL, os.X_OK):
        sys.exit("nereusctl is not built: see --help")
    waits = ["--waits-at-end"] if args.waits_at_end else []
    against_single = []
    against_bytes = []
    if not args.json:
        print(f"{'model':<10} {'Gbit/s':>6} {'workers':>7} " +
              " ".join(f"{plan:>8}" for plan in PLANS) +
              "  time / best single, bytes / time")
    for model in args.models:
        for rate in args.rates:
            for workers in args.workers:
                seconds = {plan: simulate(model, MODELS[model], rate, workers,
                                          flags + waits)
                           for plan, flags in PLANS.items()}
                single = min(seconds[plan]
                             for plan in ("server", "factor", "ring"))
                against_single.append(seconds["time"] / single)
                against_bytes.append(seconds["bytes"] / seconds["time"])
                if args.json:
                    print(json.dumps({"model": model, "rate": rate,
                                      "workers": workers, "seconds": seconds}),
                          flush=True)
                    continue
                print(f"{model:<10} {rate:>6} {workers:>7} " +
                      " ".join(f"{each:8.4f}" for each in seconds.values()) +
                      f"  {against_single[-1]:.3f} {against_bytes[-1]:.3f}",
                      flush=True)
    if not args.json:
        print(f"at worst {max(against_single):.3f} of the best single scheme, "
              f"at best {max(against_bytes):.3f} times faster than by bytes")


if __name__ == "__main__":
    main()
