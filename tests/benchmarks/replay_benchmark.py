#!/usr/bin/env python3
"""Measures step times with replayed compute on hosts with limited links.

  bazel build //server:nereus-server //server/admin:nereusctl \\
      //worker/trainer:nereus-worker
  sudo tests/benchmarks/replay_benchmark.py
  sudo tests/benchmarks/replay_benchmark.py --only=fusion --json

Hosts are network namespaces on a bridge (hosts.py). Each has a server and a
worker of a job of real processes. Workers sleep for the layers' times
(nereus-worker --replay); gradients of the real sizes travel. Beside each run
stands the step time that `nereusctl simulate` predicts.

Seconds are medians over all steps of all workers but the first few, with the
5th and the 95th percentile; they are means if workers are late in turn. The
variants of a case run one after the other on the same hosts, several times.
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile

from hosts import Hosts
from replay_job import Job, Layer, WARM_UP, percentile, program, write_inputs

# Number of first steps that do not count:
TUNING = 400  # in variants that tune fusion;
PLANNING = 30  # in variants whose plan uses the workers' measurements.

# A model of `layers`. `forward` and `backward` are seconds, split evenly over
# the layers. `variants` maps names to flags of the job. In each step another
# worker is late by `delay` seconds.
Case = collections.namedtuple(
    "Case", "what layers batch forward backward variants delay")


def dense(name, m, n):
    return Layer(name, "fc", m, n, m * n + m, 1)


def vector(name, elements):
    return Layer(name, "vector", 1, elements, elements, 1)


# VGG19's fully connected layers, every matrix's sides divided by 4: 31 MB.
VGG19_DENSE = [dense("fc6", 1024, 6272), dense("fc7", 1024, 1024),
               dense("fc8", 250, 1024)]
# 20 equal layers, 32 MB: all-reduce of 4 takes 2 * 3/4 * 32 MB = 0.384 s at
# 1 Gbit/s, four times the forward of the case below.
EQUAL = [vector(f"layer{i}", 400_000) for i in range(20)]
SMALL = [vector(f"layer{i}", 1024) for i in range(160)]


# Of two chunks: two of four servers have something to do.
ONE = [vector("layer", 1_048_576)]
FEW = [vector(f"layer{i}", 100_000) for i in range(8)]


def cases():
    return {
        "hybrid": Case(
            "VGG19's fully connected layers, sides divided by 4", VGG19_DENSE,
            8, 0.01, 0.02,
            {"server": ["--scheme=server"], "auto": ["--cost=bytes"]}, 0),
        "dear": Case(
            "20 equal layers, all-reduce four times forward", EQUAL, 1, 0.096,
            0.192,
            {f"{scheme} {waits}":
             [f"--scheme={scheme}", *(["--waits-at-end"] if waits == "at-end" else [])]
             for scheme in ("ring", "server")
             for waits in ("at-end", "in-forward")}, 0),
        "fusion": Case(
            "160 layers of 4 KB", SMALL, 1, 0.002, 0.004,
            {f"{scheme} {fusion}":
             [f"--scheme={scheme}", f"--fusion={fusion}"]
             for scheme in ("server", "ring")
             for fusion in ("off", "0", "16384", "65536", "262144", "1048576",
                            "auto")}, 0),
        "wire": Case(
            "20 equal layers, little compute", EQUAL, 1, 0.01, 0.02,
            {f"{scheme} {wire}": [f"--scheme={scheme}", f"--wire={wire}"]
             for scheme in ("server", "ring")
             for wire in ("fp32", "bf16", "fp16")} |
            {"server auto": ["--scheme=server", "--cost=time", "--wire=auto"],
             "ring auto": ["--scheme=ring", "--cost=time", "--wire=auto"]},
            0),
        "sparsity": Case(
            "20 equal layers, little compute", EQUAL, 1, 0.01, 0.02,
            {f"{scheme} {sparsity}": [f"--scheme={scheme}",
                                      f"--sparsity={sparsity}",
                                      "--dense-steps=0", "--block=32768"]
             for scheme in ("server", "ring")
             for sparsity in (0, 0.5, 0.9)}, 0),
        "plan": Case(
            "one layer of 4 MB, of two chunks", ONE, 1, 0.01, 0.02,
            {"server": ["--scheme=server"], "ring": ["--scheme=ring"],
             "by-bytes": ["--cost=bytes"], "by-time": ["--cost=time"]}, 0),
        "quorum": Case(
            "8 layers of 400 KB, another worker 0.3 s late in each step", FEW,
            1, 0.1, 0.2,
            {quorum: [f"--quorum={quorum}", "--staleness=8"]
             for quorum in ("all", "majority", "solo", "each")}, 0.3),
    }


def write_case(case, folder):
    """The model's table and its times."""
    count = len(case.layers)
    times = [(case.forward / count, case.backward / count)] * count
    return write_inputs(case.layers, times, folder)


def measure(hosts, case, flags, steps):
    """Seconds of all steps that count."""
    warm_up = WARM_UP
    for flag, more in (("--fusion=auto", TUNING), ("--cost=time", PLANNING)):
        if flag in flags:
            steps += more
            warm_up += more
    with tempfile.TemporaryDirectory() as folder:
        model, trace = write_case(case, folder)
        with Job(hosts, folder) as job:
            of_worker = [flag for flag in flags if flag == "--waits-at-end"]
            job.start_nereus(
                model, trace, case.batch, steps,
                [flag for flag in flags if flag not in of_worker],
                [f"--delay-in-turn={case.delay}", *of_worker])
            results = job.finish()
    return [seconds for result in results
            for seconds in result["step_seconds"][warm_up:]]


def predict(hosts, case, flags, message_time):
    """Returns the seconds of a step in the simulator."""
    with tempfile.TemporaryDirectory() as folder:
        model, trace = write_case(case, folder)
        command = [program("server/admin/nereusctl"), "simulate",
                   f"--model={model}", f"--batch={case.batch}",
                   f"--workers={hosts.count}",
                   f"--bandwidth={hosts.rate // 10**6}Mbit", "--latency=50us",
                   f"--message-time={message_time}",
                   f"--compute-trace={trace}", "--iterations=8", "--json"]
        if case.delay:
            command.append(f"--delay=turn:{case.delay}s")
        command += flags
        done = subprocess.run(command, capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return json.loads(done.stdout)["iteration_seconds"]


def report(name, case, seconds, predicted, args):
    first = next(iter(case.variants))
    if not args.json:
        print(f"\n{name}: {case.what}\n{'variant':<16} {'median':>8} {'5 %':>8} "
              f"{'95 %':>8} {'model':>8}  times faster, measured and model")
    # With late workers, steps differ, so the mean counts.
    middle = statistics.fmean if case.delay else statistics.median
    for variant, flags in case.variants.items():
        median = middle(seconds[variant])
        # Compares with the first variant of the group: "ring off", "ring 0".
        group = variant.split(" ")[0] if " " in variant else ""
        base = next((v for v in case.variants if group and
                     v.startswith(group + " ")), first)
        row = {"case": name, "variant": variant, "flags": flags,
               "hosts": args.hosts, "rate": args.rate,
               "seconds_median": median,
               "seconds_5": percentile(seconds[variant], 0.05),
               "seconds_95": percentile(seconds[variant], 0.95),
               "seconds_model": predicted[variant],
               "times_faster": middle(seconds[base]) / median,
               "times_faster_model": predicted[base] / predicted[variant]}
        if args.json:
            print(json.dumps(row), flush=True)
        else:
            print(f"{variant:<16} {median:8.4f} {row['seconds_5']:8.4f} "
                  f"{row['seconds_95']:8.4f} {predicted[variant]:8.4f}  "
                  f"{row['times_faster']:6.2f} {row['times_faster_model']:6.2f}",
                  flush=True)


def main():
    known = cases()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=known, action="append",
                        help="measures only this case; repeatable")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=int, default=10**9,
                        help="bits/s of each link and direction")
    parser.add_argument("--steps", type=int, default=23)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--message-time", default="30us",
                        help="cost of a message in the simulator")
    parser.add_argument("--json", action="store_true",
                        help="prints a JSON object per line")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    with Hosts(args.hosts, args.rate) as hosts:
        for name in args.only or known:
            case = known[name]
            seconds = {variant: [] for variant in case.variants}
            for _ in range(args.runs):
                for variant, flags in case.variants.items():
                    seconds[variant] += measure(hosts, case, flags, args.steps)
            predicted = {variant: predict(hosts, case, flags, args.message_time)
                         for variant, flags in case.variants.items()}
            report(name, case, seconds, predicted, args)


if __name__ == "__main__":
    main()
