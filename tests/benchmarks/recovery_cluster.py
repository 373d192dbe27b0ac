"""A job of real processes for recovery_benchmark.py.

The classes start, kill, stop and restart processes, and collect the output of
the workers. Each process writes its standard error to its own file. No code in
this file measures.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time

# With these options, recovery_worker.cc knows the value of each parameter.
EXACT_UPDATES = ["--update=sgd", "--learning-rate=0.0009765625",
                 "--momentum=0", "--weight-decay=0"]


class Failure(Exception):
    """An error of the system under test; the message describes it."""


def find_program(top, path):
    """Returns a built program, below `top` (in a test) or in bazel-bin."""
    for folder in (top, os.path.join(top, "bazel-bin")):
        program = os.path.join(folder, path)
        if os.access(program, os.X_OK):
            return program
    raise Failure(f"{path} is not built")


class Process:
    """The process of a member, and its successors."""

    def __init__(self, cluster, name, command):
        self.cluster = cluster
        self.name = name
        self.command = command
        self.lives = 0
        self.steps = []   # (seconds, step) of all lives, in order.
        self.joins = []   # Seconds of each join.
        self.address = None  # Control address of a server.
        self.popen = None
        self.is_killed = False

    def start(self):
        self.lives += 1
        self.is_killed = False
        with open(self._log_path(), "wb") as errors:
            self.popen = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=self.cluster.environment)
        threading.Thread(target=self._read, args=(self.popen.stdout,),
                         daemon=True).start()

    def kill(self):
        """Kills the process; returns the time of the signal."""
        self.is_killed = True
        sent = time.monotonic()
        self.popen.kill()
        self.popen.wait()
        return sent

    def send_signal(self, number):
        sent = time.monotonic()
        self.popen.send_signal(number)
        return sent

    def steps_after(self, since):
        return [event for event in self.steps if event[0] > since]

    def log_text(self):
        """Returns the log of the last life."""
        with open(self._log_path(), encoding="utf-8") as log:
            return log.read()

    def memory_kib(self):
        """Returns the resident memory in KiB."""
        path = f"/proc/{self.popen.pid}/status"
        with open(path, encoding="ascii") as lines:
            for line in lines:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1])
        raise Failure(f"{self.name} has ended")

    def _log_path(self):
        return os.path.join(self.cluster.folder,
                            f"{self.name}.{self.lives}.log")

    def _read(self, lines):
        for line in lines:
            first, _, rest = line.partition(" ")
            words = dict(w.split("=", 1) for w in line.split() if "=" in w)
            with self.cluster.changed:
                if first == "listening":
                    self.address = words["control"]
                elif first == "joined":
                    self.joins.append(float(words["seconds"]))
                elif rest:
                    self.steps.append((float(words["seconds"]),
                                       int(words["step"])))
                self.cluster.changed.notify_all()


class Cluster:
    """A separate coordinator, servers and workers. A context manager.

    The processes end with the `with` block. `top` is the folder of the
    programs. `options` has workers, servers, backup, lease, layers and
    parameters.
    """

    def __init__(self, top, options):
        self.server_program = find_program(top, "server/nereus-server")
        self.worker_program = find_program(
            top, "tests/benchmarks/recovery_worker")
        self.folder = tempfile.mkdtemp(prefix="nereus-recovery-")
        self.changed = threading.Condition()  # Guards the members' output.
        self.environment = {k: v for k, v in os.environ.items()
                            if not k.startswith("NEREUS_")}
        self.backup = options.backup
        self.shared = [f"--checkpoint-dir={self.folder}/checkpoints"]
        self.job = [f"--servers={options.servers}", "--cost=bytes", f"--backup={options.backup}",
                    f"--workers={options.workers}",
                    f"--max-workers={2 * options.workers}",
                    f"--lease={options.lease}"]
        self.model = [f"--layers={options.layers}",
                      f"--parameters={options.parameters}"]
        self.server_count = options.servers
        self.coordinator = None
        self.servers = []
        self.workers = []
        self.others = []  # Workers that join and leave.

    def __enter__(self):
        self.coordinator = Process(self, "coordinator", [
            self.server_program, "--coordinate-only", "--control-port=0",
            f"--state={self.folder}/state.sqlite", "--checkpoint-every=20",
            *self.shared, *self.job, *EXACT_UPDATES])
        try:
            self.coordinator.start()
            self.wait(lambda: self.coordinator.address, 30, "the coordinator")
            port = self.coordinator.address.rpartition(":")[2]
            self.coordinator.command[2] = f"--control-port={port}"
            for i in range(self.server_count):
                self.servers.append(Process(self, f"server{i}", [
                    self.server_program, f"--shard={i}",
                    f"--coordinator={self.coordinator.address}",
                    *self.shared]))
                self.servers[i].start()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def start_workers(self, sleep_ms):
        """Starts a worker for each of these sleep times."""
        for i, milliseconds in enumerate(sleep_ms):
            self.workers.append(self.make_worker(f"worker{i}", milliseconds))
            self.workers[i].start()

    def make_worker(self, name, sleep_ms, steps=0):
        return Process(self, name, [
            self.worker_program, f"--coordinator={self.coordinator.address}",
            f"--sleep-ms={sleep_ms}", f"--steps={steps}", *self.model])

    def members(self):
        return [m for m in [self.coordinator, *self.servers, *self.workers,
                            *self.others] if m.popen is not None]

    def wait(self, is_done, limit, what):
        """Waits until `is_done()`, for at most `limit` seconds."""
        deadline = time.monotonic() + limit
        with self.changed:
            while not is_done():
                for member in self.members():
                    code = member.popen.poll()
                    if code and not member.is_killed:
                        raise Failure(
                            f"{member.name} ended with {code} while waiting"
                            f" for {what}:\n{member.log_text()[-2000:]}")
                if time.monotonic() > deadline:
                    raise Failure(f"no {what} after {limit} s")
                self.changed.wait(0.2)

    def __exit__(self, kind, error, trace):
        for member in self.members():
            member.is_killed = True
            member.popen.send_signal(signal.SIGCONT)
            member.popen.kill()
        for member in self.members():
            member.popen.wait()
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"the logs are in {self.folder}", flush=True)
