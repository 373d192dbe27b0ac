#!/usr/bin/env python3
"""Compares training in PyTorch: nereus.torch, and DDP over Gloo.

  bazel build //server:nereus-server //worker/c_api:libnereus.so
  apt-get install iproute2 python3-torch
  sudo tests/benchmarks/torch_benchmark.py
  tests/benchmarks/torch_benchmark.py --hosts=2 --rate=none --only=vgg
  tests/benchmarks/torch_benchmark.py --hosts=1 --rate=none --variants=torch,alone,nereus
  tests/benchmarks/torch_benchmark.py --hosts=2 --rate=none --device=cuda:0 \\
      --only=torchvision.vgg16 --batch=16

Hosts are network namespaces on a bridge (hosts.py; needs root), or with --rate=none processes
of this machine, which then use sockets alone. Each has a worker and, with Nereus, a server.
Workers train a model of peers/torch_train.py on random images or tokens, with one thread each;
all systems have the same parameters and examples. A step is forward, backward and the update.

Variants:
  ddp       DistributedDataParallel with its defaults, over Gloo
  ddp-best  with gradient_as_bucket_view and static_graph
  nereus    the defaults: factors of Linears where they are faster
  dear      with overlap="dear": parameters are updated in the next forward
  dense     without factors
  torch     PyTorch alone, in each process by itself
  alone     nereus.torch without a job, in each process by itself

Seconds are of all counted steps, of all workers and of all runs; variants run in turn. "MB" are
the bytes that the busiest host's link sent and received in a step. "Times faster" is the median
of the first variant divided by the variant's. "us a parameter" is what a step takes longer than
with the first variant, for each tensor that is trained.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile

from hosts import Hosts, OneMachine
from replay_job import Job, TOP, percentile

HERE = os.path.dirname(os.path.abspath(__file__))
VARIANTS = ("ddp", "ddp-best", "nereus", "dear", "dense", "torch", "alone")
DEFAULT_VARIANTS = VARIANTS[:5]
# Those that join a job of Nereus.
JOINING = ("nereus", "dear", "dense")
MODELS = ("vgg", "resnet18", "gpt")


def measure(hosts, variant, model, arguments):
    """Does a run. Returns the results of the workers, and the bytes of the busiest link in a
    step."""
    before = hosts.link_bytes()
    # The plan of Nereus changes during the first steps.
    steps = arguments.steps + arguments.warm_up
    with tempfile.TemporaryDirectory() as folder, Job(hosts, folder) as job:
        environment = {"GLOO_SOCKET_IFNAME": "lo" if arguments.rate == "none" else "eth0",
                       "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if variant in JOINING:
            environment |= {
                "NEREUS_COORDINATOR": job.start_servers(
                    ["--log-level=warning",
                     *(["--shared-memory=off"] if arguments.rate == "none" else [])]),
                "NEREUS_SHARED_MEMORY": "off" if arguments.rate == "none" else "auto"}
        if variant in (*JOINING, "alone"):
            cuda = arguments.device != "cpu"
            environment |= {
                "NEREUS_LIBRARY": os.environ.get("NEREUS_LIBRARY") or os.path.join(
                    TOP, "bazel-bin/worker/c_api",
                    "libnereus_cuda.so" if cuda else "libnereus.so"),
                "PYTHONPATH": os.path.join(TOP, "worker/python")}
        for rank in range(hosts.count):
            own = {"NEREUS_HOST": hosts.address(rank), "NEREUS_NODE": f"host-{rank}",
                   "NEREUS_NAME": str(rank), "NEREUS_LOCAL_RANK": "0"}
            job.start_worker(rank, [
                arguments.python, os.path.join(HERE, "peers/torch_train.py"), variant, model,
                str(rank), str(hosts.count), str(steps), str(arguments.batch),
                arguments.device, folder], **environment,
                **(own if variant in JOINING else {}))
        results = job.finish()
    sent = max(after - first for first, after in zip(before, hosts.link_bytes())) / steps
    return results, sent


def compare(hosts, model, arguments):
    found = {variant: [] for variant in arguments.variants.split(",")}
    for _ in range(arguments.runs):
        for variant, runs in found.items():
            runs.append(measure(hosts, variant, model, arguments))
    of_model = found[next(iter(found))][0][0][0]
    print(f"\n{model}, batch {arguments.batch}, {hosts.count} hosts, {hosts.rate}, "
          f"{of_model['megabytes']:.1f} MB in {of_model['parameters']} parameters\n"
          f"{'variant':<9} {'median':>8} {'5 %':>8} {'95 %':>8} {'MB':>8} times faster, "
          "us a parameter, layers' ways, checksum", flush=True)
    base = None
    for variant, runs in found.items():
        times = [seconds for results, _ in runs for result in results
                 for seconds in result["step_seconds"][arguments.warm_up:]]
        median = statistics.median(times)
        base = base or median
        first = runs[0][0][0]
        print(f"{variant:<9} {median:8.4f} {percentile(times, 0.05):8.4f} "
              f"{percentile(times, 0.95):8.4f} "
              f"{statistics.median(sent for _, sent in runs) / 1e6:8.2f} {base / median:6.2f} "
              f"{(median - base) * 1e6 / of_model['parameters']:8.1f}  "
              f"{first['ways']} {first['checksum']}", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="MODEL",
                        help="one of " + ", ".join(MODELS) + ", or torchvision.NAME; may be "
                             "repeated")
    parser.add_argument("--variants", default=",".join(DEFAULT_VARIANTS),
                        help="default: %(default)s")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit",
                        help="rate of each link and direction for tc; none: this machine")
    parser.add_argument("--batch", type=int, default=8, help="examples of a worker in a step")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=15, help="counted steps of each run")
    parser.add_argument("--warm-up", type=int, default=8, help="steps that do not count")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter with torch")
    arguments = parser.parse_args()
    for variant in arguments.variants.split(","):
        if variant not in VARIANTS:
            sys.exit(f"no variant {variant}; there are: {', '.join(VARIANTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    hosts = (OneMachine(arguments.hosts) if arguments.rate == "none"
             else Hosts(arguments.hosts, arguments.rate))
    with hosts:
        for model in arguments.only or MODELS:
            compare(hosts, model, arguments)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"torch_benchmark: {error}")
