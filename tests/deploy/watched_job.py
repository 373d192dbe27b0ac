"""A job of processes on this machine that replays the times of a small model, with its pages."""

import contextlib
import json
import socket
import subprocess
import urllib.request

import jobs

# 4.2 MB of gradients. A step computes for 30 ms.
MODEL = """name,kind,m,n,parameters,rows_per_sample
first,fc,1024,511,524288,1
second,fc,1024,511,524288,1
"""
TIMES = {"layers": [{"name": name, "forward_seconds": 0.005, "backward_seconds": 0.01}
                    for name in ("first", "second")]}


held = []  # Sockets.


def free_port():
    """Returns a port that the kernel gives to no process that asks for a free one, until this
    process ends. Programs that set SO_REUSEADDR can listen there."""
    held.append(socket.socket())
    held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held[-1].bind(("127.0.0.1", 0))
    return held[-1].getsockname()[1]


class ThisMachine:
    """The only host of a job. Hosts of tests/benchmarks/hosts.py take its place."""

    def address(self, _):
        return "127.0.0.1"

    def command(self, _, arguments):
        return arguments


class WatchedJob:
    """A coordinator, servers and workers. Each has a page; `ports` has the ports by name.

    `options` are those of the coordinator, `server_options` those of all servers. Member N of
    a role is on host N % hosts_count. `worker_program`: a name in jobs.PROGRAMS;
    `worker_options`: options of all workers."""

    def __init__(self, folder, workers, servers, options=(), server_options=(), steps=1000000,
                 hosts=None, hosts_count=1, worker_program="nereus-worker",
                 worker_options=()):
        self.folder = folder
        self.workers = workers
        self.servers = servers
        self.options = [*options, *server_options]
        self.server_options = list(server_options)
        self.steps = steps
        self.hosts = hosts or ThisMachine()
        self.hosts_count = hosts_count
        self.worker_program = worker_program
        self.worker_options = list(worker_options)
        self.ports = {}
        self.processes = {}
        self.exits = contextlib.ExitStack()

    def __enter__(self):
        (self.folder / "model.csv").write_text(MODEL)
        (self.folder / "times.json").write_text(json.dumps(TIMES))
        try:
            self.control = free_port()
            self.run("coordinator", 0, "nereus-server", "--coordinate-only",
                     f"--workers={self.workers}", f"--servers={self.servers}",
                     f"--control-port={self.control}", f"--state={self.folder / 'job.db'}",
                     *self.options)
            for shard in range(self.servers):
                self.start_server(shard)
            for worker in range(self.workers):
                self.start_worker(worker)
            return self
        except BaseException:
            self.exits.close()
            raise

    def __exit__(self, *error):
        self.exits.close()
        if error[0] is not None:
            for path in sorted(self.folder.glob("*.log")):
                print(f"== {path.name}\n{path.read_text()[-3000:]}")

    @property
    def coordinator(self):
        return f"{self.hosts.address(0)}:{self.control}"

    def run(self, name, host, program, *arguments):
        self.ports[name] = free_port()
        log = self.exits.enter_context(open(self.folder / f"{name}.log", "w", encoding="utf-8"))
        process = subprocess.Popen(
            self.hosts.command(host, [jobs.PROGRAMS[program],
                                      f"--host={self.hosts.address(host)}",
                                      f"--http-port={self.ports[name]}", *arguments]),
            stdout=log, stderr=log)
        self.processes[name] = process
        self.exits.callback(process.wait)
        self.exits.callback(process.kill)

    def start_server(self, shard):
        self.run(f"server {shard}", shard % self.hosts_count, "nereus-server",
                 f"--shard={shard}", f"--coordinator={self.coordinator}", *self.server_options)

    def start_worker(self, number, *options):
        self.run(f"worker {number}", number % self.hosts_count, self.worker_program,
                 f"--name={number}", f"--coordinator={self.coordinator}",
                 f"--model={self.folder / 'model.csv'}",
                 f"--replay={self.folder / 'times.json'}", f"--steps={self.steps}", "--batch=32",
                 *self.worker_options, *options)

    def url(self, name, path):
        return f"http://{self.hosts.address(0)}:{self.ports[name]}{path}"

    def get(self, name, path):
        with urllib.request.urlopen(self.url(name, path), timeout=5) as answer:
            return answer.read().decode()

    def status(self):
        return jobs.status(self.coordinator, lambda command, **options: subprocess.run(
            self.hosts.command(0, command), **options))

    def until(self, what, is_true):
        """Waits until `is_true` of the job's status. Returns the status."""
        return jobs.until(what, self.status, is_true, timeout=40)

    def until_running(self):
        """Waits until the job runs for so long that its speed is known."""
        return self.until("the job runs", lambda status: status["health"] in ("good", "at risk") and
                          all(worker["step_seconds"] for worker in status["workers"]))
