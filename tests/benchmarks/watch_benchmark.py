#!/usr/bin/env python3
"""Measures what it costs to watch a job: its metrics, and a trace of it.

  bazel build //server:nereus-server //server/admin:nereusctl \\
      //worker/trainer:nereus-worker
  tests/benchmarks/watch_benchmark.py

Two workers and two servers on this machine replay a model over sockets. Variants:
  off      nobody watches
  metrics  the coordinator and the workers serve /metrics, which are read every second
  trace    the counted steps are traced (nereusctl trace)

Variants run in turn. Of each run the steps from a third to two thirds count. Seconds are of
these steps, of all workers and of all runs.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request

from hosts import OneMachine
from replay_job import Job, Layer, percentile, program, write_inputs

HTTP_PORT = 7800
HOSTS = 2
# Layers, the seconds of forward and of backward, and the number of steps. In the first two
# cases the processes have nearly nothing to do but to handle small frames.
CASES = {
    "160 layers of 4 KB, 15 ms of computing": ([Layer(f"layer{i}", "vector", 1, 1024, 1024, 1)
                                                for i in range(160)], 0.005, 0.010, 900),
    "160 layers of 4 KB, no computing": ([Layer(f"layer{i}", "vector", 1, 1024, 1024, 1)
                                          for i in range(160)], 0.0, 0.0, 3000),
    "20 layers of 1.6 MB, 30 ms of computing": ([
        Layer(f"layer{i}", "vector", 1, 400_000, 400_000, 1) for i in range(20)],
                                                0.010, 0.020, 240)}
VARIANTS = ("off", "metrics", "trace")


class Scraper(threading.Thread):
    """Reads the metrics of all processes every second."""

    def __init__(self):
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.count = 0

    def run(self):
        while not self.over.wait(1.0):
            for port in range(HTTP_PORT, HTTP_PORT + 1 + HOSTS):
                try:
                    with urllib.request.urlopen(
                            f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                        self.count += len(page.read()) > 0
                except OSError:
                    pass  # The process has not begun, or is over.


def run(variant, case):
    """Returns the seconds of the counted steps of all workers."""
    layers, forward, backward, steps = CASES[case]
    first, end = steps // 3, 2 * steps // 3
    with OneMachine(HOSTS) as hosts, tempfile.TemporaryDirectory() as folder, \
            Job(hosts, folder) as job:
        model, times = write_inputs(
            layers, [(forward / len(layers), backward / len(layers))] * len(layers), folder)
        watched = variant == "metrics"
        coordinator = job.start_servers([
            "--shared-memory=off", "--cost=bytes",
            *([f"--http-port={HTTP_PORT}"] if watched else [])])
        for host in range(HOSTS):
            job.start_worker(host, [
                program("worker/trainer/nereus-worker"), f"--coordinator={coordinator}",
                f"--node=host-{host}", f"--model={model}", f"--replay={times}",
                f"--steps={steps}", "--shared-memory=off", "--json",
                *([f"--http-port={HTTP_PORT + 1 + host}"] if watched else [])])
        scraper, tracer = Scraper(), None
        if watched:
            scraper.start()
        if variant == "trace":
            out = os.path.join(folder, "trace.tar")
            tracer = subprocess.Popen(
                ["sh", "-c", f"until {program('server/admin/nereusctl')} status "
                 f"--server={coordinator} --json 2>/dev/null | grep -q '\"running\"'; do "
                 f"sleep 0.05; done; exec {program('server/admin/nereusctl')} trace "
                 f"--server={coordinator} --steps={first}:{end} --max-spans=4000000 --out={out}"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        results = job.finish()
        scraper.over.set()
        if tracer is not None:
            text, _ = tracer.communicate()
            if tracer.returncode or "were not kept" in text:
                sys.exit(f"the job was not traced: {text}")
        if watched and scraper.count == 0:
            sys.exit("no metrics were read")
    return [seconds for result in results for seconds in result["step_seconds"][first:end]]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    for case in CASES:
        found = {variant: [] for variant in VARIANTS}
        medians = {variant: [] for variant in VARIANTS}
        for _ in range(arguments.runs):
            for variant in VARIANTS:
                seconds = run(variant, case)
                found[variant] += seconds
                medians[variant].append(statistics.median(seconds))
        print(f"\n{case}\n{'variant':<9} {'median':>9} {'5 %':>9} {'95 %':>9}  against off; "
              "medians of the runs", flush=True)
        base = statistics.median(found["off"])
        for variant, seconds in found.items():
            median = statistics.median(seconds)
            print(f"{variant:<9} {median:9.5f} {percentile(seconds, 0.05):9.5f} "
                  f"{percentile(seconds, 0.95):9.5f}  {100 * (median / base - 1):+.1f} %;  "
                  + " ".join(f"{each:.5f}" for each in medians[variant]), flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
