#!/usr/bin/env python3
"""Compares whole steps with replayed compute: Nereus, and DDP over Gloo.

  bazel build //server:nereus-server //worker/trainer:nereus-worker
  apt-get install iproute2 python3-torch
  sudo tests/benchmarks/step_benchmark.py
  sudo tests/benchmarks/step_benchmark.py --only=vgg19/4 --runs=5 --json
  sudo tests/benchmarks/step_benchmark.py --hosts=2 --per-host=4 --order=turns

Hosts are network namespaces on a bridge (hosts.py; needs root). Each has
--per-host workers, and with Nereus also a server, of a job of real processes. Workers sleep
for the layers' times, which are equal in both systems; gradients of the real
sizes travel. Nereus runs nereus-worker --replay. DDP runs a module in PyTorch's
DistributedDataParallel (peers/torch_step.py). A step is forward and backward.
It ends in Nereus, which runs the optimizer, with the parameters for the next
forward; it ends in DDP, which has no optimizer here, with the mean gradients.

Cases are models of common/plan/models with divided sides of all matrices, and a
batch of 8 rows per worker. A layer's share of forward and of backward is its
share of multiply-accumulate operations in the original model:
m * n * rows_per_sample.

Nereus plans by its workers' measurements during training. The plan changes once
or twice in the first half minute, which does not count. Variants:
  fp32            the defaults
  wire=auto       may send bf16 where this is faster
  ring, server    all layers that way (--scheme=ring), without a search
  at-end          waits for all layers at the end of a step (--waits-at-end), as
                  DDP does
Seconds are of all counted steps, of all workers and of all runs; variants run
in turn. Many workers need more of the processor than one machine has: --slower
gives them time. CPU seconds are of all processes, per step of the whole job; those of
Nereus count from the start of its processes. "MB" are the bytes that the
busiest host's link sent and received, by the counters of its interface, divided
by all steps: first values, measurements and TCP count too. "Times faster" is
DDP's median divided by the variant's. --order says in which order the workers
of Nereus start; those of DDP have their ranks host by host.
"""

import argparse
import collections
import csv
import json
import math
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

from hosts import Hosts
from replay_job import (Job, Layer, TOP, WARM_UP, percentile, places, program,
                        write_inputs)

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3"  # The interpreter of python3-torch.
BATCH = 8
# Seconds in which plans change, if steps take no longer than their compute.
SETTLING = 20

# A model of common/plan/models; the sides of its matrices are divided by `by`.
# `forward` and `backward` are seconds of a step.
Case = collections.namedtuple("Case", "what model by forward backward")

CASES = {
    "vgg19/4": Case("VGG19, sides divided by 4", "vgg19", 4, 0.04, 0.08),
    "resnet-50/4": Case("ResNet-50, a quarter of its parameters", "resnet-50",
                        2, 0.08, 0.16),
}


def divided(case):
    """Returns the case's layers, and (forward, backward) of each."""
    path = os.path.join(TOP, "common/plan/models", case.model + ".csv")
    layers, work = [], []
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file
                                  if not line.startswith("#")):
            m, n, parameters, rows = (int(row[name]) for name in (
                "m", "n", "parameters", "rows_per_sample"))
            vectors = (parameters - m * n) // m  # Bias, or scale and shift.
            work.append(m * n * rows)
            m, n = math.ceil(m / case.by), math.ceil(n / case.by)
            layers.append(Layer(row["name"], row["kind"], m, n,
                                m * (n + vectors), rows))
    return layers, [(case.forward * each / sum(work),
                     case.backward * each / sum(work)) for each in work]


class Nereus:
    system = "nereus"
    transport = "socket"
    settling = SETTLING

    def __init__(self, *flags, waits_at_end=False):
        self.flags = flags
        self.worker_flags = ["--waits-at-end"] if waits_at_end else []

    def start(self, job, model, trace, steps):
        job.start_nereus(model, trace, BATCH, steps,
                         ["--log-level=warning", *self.flags],
                         ["--log-level=warning", *self.worker_flags])


class Torch:
    system = "torch"
    transport = "gloo"
    settling = 0

    def start(self, job, model, trace, steps):
        for rank, host in enumerate(sorted(job.places)):
            job.start_worker(host, [
                PYTHON, os.path.join(HERE, "peers/torch_step.py"), str(rank),
                str(len(job.places)), str(steps), model, trace, job.folder],
                GLOO_SOCKET_IFNAME="eth0")


VARIANTS = {
    "ddp": Torch(),
    "fp32": Nereus(),
    "wire=auto": Nereus("--wire=auto"),
    "ring": Nereus("--scheme=ring"),
    "server": Nereus("--scheme=server"),
    "at-end": Nereus(waits_at_end=True),
}


def cpu_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(hosts, case, variant, count, workers):
    """Does a run. `workers`: host of each worker.

    Returns the seconds of all counted steps, the CPU seconds of a step, the
    number of layers for each scheme and wire type at the end, and the bytes of
    the busiest link in a step.
    """
    layers, times = divided(case)
    first_steps = WARM_UP + math.ceil(variant.settling /
                                      (case.forward + case.backward))
    steps = first_steps + count + 1  # The first step has no start time.
    cpu = cpu_of_children()
    before = hosts.link_bytes()
    with tempfile.TemporaryDirectory() as folder:
        model, trace = write_inputs(layers, times, folder)
        with Job(hosts, folder, workers) as job:
            variant.start(job, model, trace, steps)
            results = job.finish()
    cpu = (cpu_of_children() - cpu) / steps
    sent = max(after - first for first, after
               in zip(before, hosts.link_bytes())) / steps
    if "cpu_seconds_per_step" in results[0]:
        # The time to load PyTorch does not count.
        cpu = sum(result["cpu_seconds_per_step"] for result in results)
    ways = collections.Counter(f"{layer['scheme']} {layer['wire']}"
                               for layer in results[0].get("layers", []))
    return ([seconds for result in results
             for seconds in result["step_seconds"][first_steps:]],
            cpu, dict(ways), sent)


def summary(name, variant, hosts, workers, results):
    times = sorted(t for result in results for t in result[0])
    layers, _ = divided(CASES[name])
    return {"case": name, "system": VARIANTS[variant].system,
            "variant": variant, "transport": VARIANTS[variant].transport,
            "hosts": hosts.count, "processes": len(workers),
            "places": workers, "rate": hosts.rate,
            "compute_seconds": CASES[name].forward + CASES[name].backward,
            "bytes": 4 * sum(layer.parameters for layer in layers),
            "seconds_median": statistics.median(times),
            "seconds_min": times[0], "seconds_max": times[-1],
            "seconds_p5": percentile(times, 0.05),
            "seconds_p95": percentile(times, 0.95), "steps": len(times),
            "cpu_seconds_per_step": statistics.median(r[1] for r in results),
            "link_bytes_per_step": statistics.median(r[3] for r in results),
            "runs": [{"seconds_median": statistics.median(result[0]),
                      "schemes": result[2]} for result in results]}


def show(row):
    ways = "; ".join(dict.fromkeys(
        ", ".join(f"{count} {way}" for way, count in one["schemes"].items())
        for one in row["runs"]))
    faster = (f"{row['times_faster']:6.2f}" if "times_faster" in row else
              " " * 6)
    print(f"{row['system']:<7} {row['variant']:<10} "
          f"{row['seconds_median']:8.4f} {row['seconds_p5']:8.4f} "
          f"{row['seconds_p95']:8.4f} {row['cpu_seconds_per_step']:8.3f} "
          f"{row['link_bytes_per_step'] / 1e6:8.2f} {faster}  {ways}".rstrip(), flush=True)


def compare(hosts, name, variants, arguments):
    results = {variant: [] for variant in variants}
    workers = places(hosts.count, arguments.per_host, arguments.order)
    for _ in range(arguments.runs):
        for variant in variants:
            results[variant].append(measure(
                hosts, CASES[name], VARIANTS[variant], arguments.steps,
                workers))
    rows = [summary(name, variant, hosts, workers, results[variant])
            for variant in variants]
    if not arguments.json:
        print(f"\n{name}: {CASES[name].what}, {rows[0]['bytes'] / 1e6:.1f} MB, "
              f"forward {CASES[name].forward} s, backward "
              f"{CASES[name].backward} s\n{'system':<7} {'variant':<10} "
              f"{'median':>8} {'5 %':>8} {'95 %':>8} {'CPU s':>8} {'MB':>8} times "
              "faster, layers' ways")
    for row in rows:
        if rows[0]["system"] == "torch":
            row["times_faster"] = (rows[0]["seconds_median"] /
                                   row["seconds_median"])
        if arguments.json:
            print(json.dumps(row), flush=True)
        else:
            show(row)


def available(names):
    """Returns the variants with installed programs."""
    for path in ("server/nereus-server", "worker/trainer/nereus-worker"):
        program(path)
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    if not (shutil.which("ip") and shutil.which("tc")):
        sys.exit("no iproute2: see --help")
    has_torch = subprocess.run([PYTHON, "-c", "import torch"], check=False,
                               capture_output=True).returncode == 0
    if "ddp" in names and not has_torch:
        print("ddp is left out: no python3-torch", file=sys.stderr)
    left = [name for name in VARIANTS if name in names and
            (has_torch or VARIANTS[name].system != "torch")]
    return left or sys.exit("nothing to measure")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, action="append",
                        help="measures only this case; may be repeated")
    parser.add_argument("--variants", default=",".join(VARIANTS),
                        help="default: %(default)s")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--per-host", type=int, default=1,
                        help="workers on each host")
    parser.add_argument("--order", choices=("hosts", "turns", "mixed"),
                        default="hosts",
                        help="order in which workers start: host by host, one "
                             "on each host in turn, or mixed")
    parser.add_argument("--slower", type=float, default=1,
                        help="multiplies the times of computing by this; with "
                             "a --rate divided by as much, the processor has "
                             "more time for the same work")
    parser.add_argument("--rate", default="1gbit",
                        help="rate of each link and direction for tc: 1gbit")
    parser.add_argument("--steps", type=int, default=20,
                        help="counted steps of each run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true",
                        help="prints a JSON object per line")
    arguments = parser.parse_args()
    if arguments.slower <= 0:
        sys.exit("--slower must be above 0")
    for name in ("hosts", "per_host", "steps", "runs"):
        if getattr(arguments, name) < 1:
            sys.exit(f"--{name.replace('_', '-')} must be at least 1")
    names = arguments.variants.split(",")
    for name in names:
        if name not in VARIANTS:
            sys.exit(f"no variant {name}; there are: {', '.join(VARIANTS)}")
    variants = available(names)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with Hosts(arguments.hosts, arguments.rate) as hosts:
        for name in dict.fromkeys(arguments.only or CASES):
            case = CASES[name]
            CASES[name] = case._replace(
                forward=case.forward * arguments.slower,
                backward=case.backward * arguments.slower)
            compare(hosts, name, variants, arguments)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"step_benchmark: {error}")
