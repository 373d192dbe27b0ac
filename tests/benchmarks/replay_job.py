"""Processes that replay a model on hosts, and their input files.

For replay_benchmark.py and step_benchmark.py.
"""

import collections
import json
import os
import random
import subprocess
import sys
import time

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
CONTROL_PORT = 7700
WARM_UP = 3  # Number of first steps that do not count.
LIMIT = 300  # Upper bound of a run, in seconds.

# name, kind, m, n, parameters, rows per sample: a line of a model's table.
Layer = collections.namedtuple("Layer", "name kind m n parameters rows")


def program(path):
    found = os.path.join(TOP, "bazel-bin", path)
    if not os.access(found, os.X_OK):
        sys.exit(f"{path} is not built: see --help")
    return found


def write_inputs(layers, times, folder):
    """Writes the model's table and the (forward, backward) times of its layers.

    Returns the paths of both files.
    """
    model = os.path.join(folder, "model.csv")
    with open(model, "w", encoding="utf-8") as file:
        file.write("name,kind,m,n,parameters,rows_per_sample\n")
        for layer in layers:
            file.write(",".join(map(str, layer)) + "\n")
    trace = os.path.join(folder, "times.json")
    with open(trace, "w", encoding="utf-8") as file:
        json.dump({"layers": [{"name": layer.name,
                               "forward_seconds": forward,
                               "backward_seconds": backward}
                              for layer, (forward, backward)
                              in zip(layers, times)]}, file)
    return model, trace


def places(hosts, per_host, order):
    """Returns the host of each worker, in the order in which workers start.

    `order`: "hosts" starts all workers of a host and then those of the next,
    "turns" one on each host in turn, "mixed" is a fixed mixture.
    """
    by_host = [host for host in range(hosts) for _ in range(per_host)]
    if order == "hosts":
        return by_host
    if order == "turns":
        return [host for _ in range(per_host) for host in range(hosts)]
    random.Random(7).shuffle(by_host)
    return by_host


class Job:
    """The processes of one run. Each worker prints a result.

    `places`: host of each worker. A context manager: all processes have ended
    after the `with` block.
    """

    def __init__(self, hosts, folder, places=None):
        self.hosts = hosts
        self.places = places or list(range(hosts.count))
        self.folder = folder
        self.processes = []
        self.workers = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            process.stdout.close()

    def start(self, host, name, command, **environment):
        log = os.path.join(self.folder, f"{name}{len(self.processes)}.log")
        with open(log, "wb") as errors:
            process = subprocess.Popen(
                self.hosts.command(host, command), stdout=subprocess.PIPE,
                stderr=errors, text=True, env={**os.environ, **environment})
        process.name, process.log = f"{name} {host}", log
        self.processes.append(process)
        return process

    def start_worker(self, host, command, **environment):
        self.workers.append(self.start(host, "worker", command, **environment))

    def start_servers(self, flags):
        """Starts a server on each host. Returns the address of the coordinator."""
        hosts = self.hosts
        coordinator = f"{hosts.address(0)}:{CONTROL_PORT}"
        for host in range(hosts.count):
            self.start(host, "server", [
                program("server/nereus-server"), f"--shard={host}",
                f"--host={hosts.address(host)}",
                *([f"--servers={hosts.count}", f"--workers={len(self.places)}",
                   f"--control-port={CONTROL_PORT}", *flags]
                  if host == 0 else
                  [f"--coordinator={coordinator}"])])
        return coordinator

    def start_nereus(self, model, trace, batch, steps, server_flags,
                     worker_flags):
        """Starts a server on each host, and the workers on theirs."""
        coordinator = f"--coordinator={self.start_servers(server_flags)}"
        for host in self.places:
            self.start_worker(host, [
                program("worker/trainer/nereus-worker"), coordinator,
                f"--host={self.hosts.address(host)}", f"--model={model}",
                f"--batch={batch}", f"--replay={trace}", f"--steps={steps}",
                "--json", *worker_flags])

    def finish(self):
        """Waits for the workers; returns their results."""
        deadline = time.monotonic() + LIMIT
        results = []
        for worker in self.workers:
            text = None
            while text is None:
                try:
                    text, _ = worker.communicate(timeout=1)
                except subprocess.TimeoutExpired:
                    if time.monotonic() > deadline:
                        sys.exit(f"a run took more than {LIMIT} s")
                self._check()
            results.append(json.loads(text))
        return results

    def _check(self):
        for process in self.processes:
            if process.poll():
                with open(process.log, encoding="utf-8") as log:
                    sys.exit(f"{process.name} failed:\n{log.read()[-2000:]}")


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
