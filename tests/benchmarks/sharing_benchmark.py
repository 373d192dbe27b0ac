#!/usr/bin/env python3
"""Measures jobs that share the devices of their hosts (docs/sharing.md).

  bazel build //server:nereus-server //server/admin:nereusctl \\
      //worker/trainer:nereus-worker
  sudo tests/benchmarks/sharing_benchmark.py
  sudo tests/benchmarks/sharing_benchmark.py --only=0.5 --json

Two hosts are network namespaces on a bridge (hosts.py). Each job has a server and
a worker on each host. A worker replays a step: it uses a core for the computing
time (nereus-worker --replay --spin), pinned to a core of its host as to a device,
and gradients travel. The job's own communication, which no computing hides, is a
part of its computing time: steps wait for it at their end (--waits-at-end). In the
case "early", some more begins in the middle of backward: then jobs that take turns
need the link at the same time.

Seconds are of a step of each job: median of all steps of worker 0 but the first
ones and those after another job's end, with the 5th and 95th percentile, of

  alone        the first job without the others
  one by one   the sum of the jobs' times alone
  at once      all jobs at the same time, without turns
  turns        all jobs at the same time, with --share

Beside `turns` stands the time of the model: the largest of the sum of all
computing times, and of each job's time alone.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile

from hosts import Hosts
from replay_job import CONTROL_PORT, Job, Layer, percentile, program, write_inputs

HOSTS = 2
COMPUTES = 0.1  # Seconds of a step.
FORWARD = 0.3  # Part of it before the first push.
WARM_UP = 25  # Steps that do not count: the workers measure themselves first.
# Jobs: (computing time, weight) of each.
CASES = {
    "0.2": [(1, 1), (1, 1)],
    "0.5": [(1, 1), (1, 1)],
    "0.6": [(1, 1), (1, 1)],
    "1.0": [(1, 1), (1, 1)],
    "three": [(1, 1), (1, 1), (1, 1)],
    "weights": [(1, 2), (1, 1), (1, 1)],
    "sizes": [(0.2, 1), (1, 1)],
    "early": [(1, 1), (1, 1)],
}
# Communication that no computing hides, as a part of the computing time.
EXPOSED = {"0.2": 0.2, "0.5": 0.5, "0.6": 0.6, "1.0": 1.0, "three": 0.5, "weights": 0.05,
           "sizes": 0.05, "early": 0.5}
# Communication that begins in the middle of backward, while the other job's is under way.
EARLY = {"early": 0.35}


class SharedJob(Job):
    """A job beside others: with ports of its own, and pinned to its hosts' cores."""

    def __init__(self, hosts, folder, number):
        super().__init__(hosts, folder)
        self.port = CONTROL_PORT + number
        self.name = f"job{number}"

    def launch(self, inputs, steps, shares, weight):
        """`shares`: folder of the shared device of each host, or nothing."""
        model, trace = inputs
        address = f"{self.hosts.address(0)}:{self.port}"
        for host in range(HOSTS):
            self.start(host, "server", [
                program("server/nereus-server"), f"--shard={host}",
                f"--host={self.hosts.address(host)}", f"--job-name={self.name}",
                *([f"--servers={HOSTS}", f"--workers={HOSTS}", f"--control-port={self.port}",
                   "--scheme=server"] if host == 0 else [f"--coordinator={address}"])])
        for host in range(HOSTS):
            self.start_worker(host, [
                "taskset", "-c", str(host % os.cpu_count()),
                program("worker/trainer/nereus-worker"), f"--coordinator={address}",
                f"--host={self.hosts.address(host)}", f"--job-name={self.name}",
                f"--model={model}", "--batch=1", f"--replay={trace}", "--spin",
                "--waits-at-end", f"--steps={steps}", "--json",
                *([f"--share={shares[host]}", f"--share-weight={weight}"] if shares else [])])


def inputs_of(folder, computes, exposed, early, rate):
    """Writes a model. Its last gradient, which no computing hides, would take `exposed` seconds
    to travel there and back at `rate` bytes per second if each server had half of it. One has
    more, so that each direction of a link is idle for a part of the longer time that it takes.
    The middle gradient takes `early` seconds."""
    backward = computes * (1 - FORWARD) / 2
    layers, times = [], []
    for name, seconds, before in (("last", exposed, backward), ("early", early, backward),
                                  ("first", 0, 0.0)):
        values = max(1, int(seconds * rate / 4))
        layers.append(Layer(name, "vector", 1, values, values, 1))
        times.append((computes * FORWARD / 3, before))
    os.makedirs(folder, exist_ok=True)
    return write_inputs(layers, times, folder)


def run(hosts, cases, inputs, steps, share):
    """Runs jobs at once. Returns the step times of each, of worker 0, while all are at work."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = [SharedJob(hosts, folder, number) for number in range(len(cases))]
        try:
            for job, (_, weight), files, count in zip(jobs, cases, inputs, steps):
                job.launch(files, count, [f"{share}/{host}" for host in range(HOSTS)]
                           if share else [], weight)
            found = [job.finish()[0]["step_seconds"] for job in jobs]
        finally:
            for job in jobs:
                job.__exit__()
    end = min(sum(times) for times in found)
    common = [list(itertools.takewhile(lambda item: item[1] <= end, zip(
        times, itertools.accumulate(times))))[WARM_UP:] for times in found]
    return [[seconds for seconds, _ in times] for times in common]


def summary(times):
    return {"median": statistics.median(times), "p5": percentile(times, 0.05),
            "p95": percentile(times, 0.95), "steps": len(times)}


def measure(hosts, name, steps, rate):
    cases, exposed = CASES[name], EXPOSED[name]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chmod(folder, 0o700)
        early = COMPUTES * EARLY.get(name, 0)
        inputs = [inputs_of(f"{folder}/in{number}", COMPUTES * size, COMPUTES * exposed, early,
                            rate)
                  for number, (size, _) in enumerate(cases)]
        counts = [int(steps / size) for size, _ in cases]
        alone = [summary(run(hosts, [case], [files], [count], "")[0])
                 for case, files, count in zip(cases, inputs, counts)]
        at_once = [summary(times) for times in run(hosts, cases, inputs, counts, "")]
        share = f"{folder}/share"
        os.mkdir(share, 0o700)
        turns = [summary(times) for times in run(hosts, cases, inputs, counts, share)]
        shutil.rmtree(share)
    model = max([sum(COMPUTES * size for size, _ in cases), *(each["median"] for each in alone)])
    return {"case": name, "jobs": cases, "exposed": exposed, "alone": alone,
            "at_once": at_once, "turns": turns,
            "one_by_one": sum(each["median"] for each in alone), "model": model}


def show(found):
    alone, once, turns = (found[key] for key in ("alone", "at_once", "turns"))
    exposed = alone[0]["median"] / (COMPUTES * found["jobs"][0][0]) - 1
    print(f"\n{found['case']}: exposed {exposed:.2f} of computing, jobs {found['jobs']}")
    for number, (one, two, three) in enumerate(zip(alone, once, turns)):
        print(f"  job {number}: " + ", ".join(
            f"{what} {1000 * each['median']:.1f} ms ({1000 * each['p5']:.1f} to "
            f"{1000 * each['p95']:.1f})"
            for what, each in (("alone", one), ("at once", two), ("turns", three))))
    pair = max(each["median"] for each in turns)
    print(f"  one by one {1000 * found['one_by_one']:.1f} ms, at once "
          f"{1000 * max(each['median'] for each in once):.1f} ms, turns {1000 * pair:.1f} ms "
          f"({found['one_by_one'] / pair:.2f} times one by one), model "
          f"{1000 * found['model']:.1f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="one case: " + ", ".join(CASES))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s of each host's link")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.only and options.only not in CASES:
        sys.exit(f"there is no case {options.only}; there are " + ", ".join(CASES))
    with Hosts(HOSTS, f"{options.rate}mbit") as hosts:
        found = []
        for name in [options.only] if options.only else CASES:
            found.append(measure(hosts, name, options.steps, options.rate * 1e6 / 8))
            if not options.json:
                show(found[-1])
    if options.json:
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
