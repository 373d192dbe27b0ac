#!/usr/bin/env python3
"""Compares a synchronisation through Nereus with all-reduces of other systems.

  bazel build //server:nereus-server //tests/benchmarks:nereus_sync
  apt-get install libgloo-dev openmpi-bin libopenmpi-dev python3-torch iperf3
  tests/benchmarks/sync_benchmark.py --processes=2,4 --bytes=64M
  sudo tests/benchmarks/sync_benchmark.py --rate=1gbit --processes=2,4 --json

Each process sums up a float32 array with all others (Nereus averages it), again
and again without a pause. Seconds are of one round on rank 0: median, minimum
and maximum. Bandwidths are defined as in nccl-tests: the algorithm bandwidth is
bytes / seconds, the bus bandwidth is that times 2 (P - 1) / P. CPU seconds are
of all processes during all rounds, the untimed ones included, per GB of the
array; those of Nereus' servers count from their start of listening. Peak memory
is the sum over all processes. It includes 14 MB per process of this script,
which each child begins with.

Nereus leaves the mean in its own memory (Client::Mean). nereus-ring-in-place
also copies it to the gradient's memory. Nereus searches its data for NaNs, and
sends checksums, except through shared memory.

All processes are on this machine, over loopback: one host to Nereus, whose
workers add up their gradients among themselves. With --rate, each is in its
own network namespace with such a link (hosts.py). Then the share is the rate
that a ring or P servers must send, divided by the rate of iperf3 on the link.
A run of another system that fails is a line that says so ("error" in JSON).

Systems that are not installed are left out with a message. All contenders run
in turn, --runs times; the figures are of all runs.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from hosts import Hosts

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
LIMIT = 600  # Upper bound of a run, in seconds.
WARM_UP = 3
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
DEFAULT_BYTES = "4K,64K,1M,16M,64M,256M"
ROWS = 32  # Number of rows of each worker's factors.


def program(path):
    """Returns a built program, or None if it is not built.

    The program is below the top (in a test) or in bazel-bin.
    """
    for folder in (TOP, os.path.join(TOP, "bazel-bin")):
        found = os.path.join(folder, path)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    return None


def cpu_seconds(process):
    """Returns the CPU time of a child by now, from Linux' process clock."""
    return time.clock_gettime((~process.pid << 3) | 2)


def text_of(file):
    file.seek(0)
    return file.read()


def size(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


class Place:
    """Runs all processes on this machine. HostsPlace gives each a host."""

    interface = "lo"

    def address(self, _):
        return "127.0.0.1"

    def command(self, _, arguments):
        return arguments

    def control_port(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]


class HostsPlace:
    interface = "eth0"

    def __init__(self, hosts):
        self.address = hosts.address
        self.command = hosts.command

    def control_port(self):
        return 7700


class Run:
    """The processes of one run. Their output goes to files in `folder`.

    The processes in `ranks` print the times of their rounds.
    """

    def __init__(self, folder):
        self.folder = folder
        self.servers = []
        self.started = 0.0  # CPU seconds of the servers until they listen.
        self.ranks = []
        self.deadline = time.monotonic() + LIMIT

    def serve(self, command):
        server = self.start(command)
        self.servers.append(server)
        while not text_of(server.out):
            self.check(server)
            time.sleep(0.001)
        self.started += cpu_seconds(server)

    def start(self, command, **environment):
        files = [tempfile.TemporaryFile(mode="a+", dir=self.folder)
                 for _ in range(2)]
        process = subprocess.Popen(
            command, stdout=files[0], stderr=files[1],
            env={**os.environ, **environment}, start_new_session=True)
        process.out, process.err = files
        return process

    def check(self, *processes):
        """Raises OSError if a process has failed or the time is over."""
        for process in processes:
            if process.poll() not in (None, 0):
                raise OSError(f"{process.args}: {text_of(process.err)[-2000:]}")
        if time.monotonic() > self.deadline:
            raise OSError(f"{self.ranks[0].args}: not done in {LIMIT} s")

    def finish(self):
        """Returns (times, CPU seconds, peak bytes) of all processes."""
        times, cpu, peak = [], -self.started, 0
        while any(process.poll() is None for process in self.ranks):
            self.check(*self.ranks)
            time.sleep(0.01)
        self.check(*self.ranks)
        for process in self.ranks:
            for line in text_of(process.out).splitlines():
                words = line.split()
                if words[:1] == ["time"]:
                    times.append(float(words[1]))
                elif words[:1] == ["process"]:
                    cpu += float(words[1])
                    peak += int(words[2])
        for process in self.servers:
            usage = self.await_server(process)
            cpu += usage.ru_utime + usage.ru_stime
            peak += usage.ru_maxrss * 1024
        return times, cpu, peak

    def await_server(self, process):
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid != 0:
                process.returncode = os.waitstatus_to_exitcode(status)
                return usage
            self.check()
            time.sleep(0.01)

    def stop(self):
        running = [process for process in self.servers + self.ranks
                   if process.poll() is None]
        # On SIGTERM, mpirun removes its files.
        for end in (signal.SIGTERM, signal.SIGKILL):
            for process in running:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, end)
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
        for process in self.servers + self.ranks:
            process.out.close()
            process.err.close()


class Nereus:
    system = "nereus"

    def __init__(self, transport, scheme, *flags):
        self.transport, self.algorithm = transport, scheme
        self.flags = flags

    def missing(self):
        for path in ("server/nereus-server", "tests/benchmarks/nereus_sync"):
            if not program(path):
                return f"{path} is not built"
        return None

    def prepare(self, _):
        pass

    def start(self, run, place, processes, count, repeats, _):
        port = place.control_port()
        servers = processes if self.algorithm == "server" else 1
        coordinator = f"--coordinator={place.address(0)}:{port}"
        common = {"socket": ["--shared-memory=off"],
                  "shm": []}[self.transport]
        for shard in range(servers):
            where = ([f"--control-port={port}", f"--workers={processes}",
                      f"--servers={servers}",
                      f"--scheme={self.algorithm}", "--optimizer=worker"]
                     if shard == 0 else [coordinator])
            run.serve(place.command(shard, [
                program("server/nereus-server"), *common, *where,
                "--log-level=warning",
                f"--host={place.address(shard)}", f"--shard={shard}"]))
        rows = ROWS if self.algorithm == "factor" else 0
        for rank in range(processes):
            run.ranks.append(run.start(place.command(rank, [
                program("tests/benchmarks/nereus_sync"), *common, coordinator,
                *self.flags,
                f"--host={place.address(rank)}", f"--bytes={count}",
                f"--rows={rows}", f"--warmup={WARM_UP}",
                f"--repeats={repeats}"])))


class Gloo:
    system = "gloo"
    transport = "tcp"

    def __init__(self, algorithm):
        self.algorithm = algorithm

    def missing(self):
        found = os.path.exists("/usr/include/gloo/allreduce.h")
        return None if found else "no libgloo-dev"

    def prepare(self, folder):
        compile_once(["g++", "-std=c++17"], "gloo_sync.cc",
                     ["-lgloo", "-lpthread"], folder)

    def start(self, run, place, processes, count, repeats, folder):
        meet = tempfile.mkdtemp(dir=folder)
        for rank in range(processes):
            run.ranks.append(run.start(place.command(rank, [
                os.path.join(folder, "gloo_sync"), str(rank), str(processes),
                str(count), str(WARM_UP), str(repeats), self.algorithm,
                place.address(rank), meet])))


class OpenMpi:
    system = "openmpi"
    algorithm = "allreduce"

    def __init__(self, transport):
        self.transport = transport

    def missing(self):
        found = shutil.which("mpicc") and shutil.which("mpirun")
        return None if found else "no openmpi-bin, libopenmpi-dev"

    def prepare(self, folder):
        compile_once(["mpicc"], "openmpi_sync.c", [], folder)

    def start(self, run, place, processes, count, repeats, folder):
        ob1 = ["--mca", "pml", "ob1", "--mca", "btl_tcp_if_include",
               place.interface, "--mca", "btl"]
        ucx = ["--mca", "pml", "ucx", "--mca", "osc", "^ucx", "--mca",
               "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any", "-x"]
        layer = {"tcp": [*ob1, "tcp,self"], "shm": [*ob1, "vader,self"],
                 "ucx-tcp": [*ucx, "UCX_TLS=tcp,self", "-x",
                             f"UCX_NET_DEVICES={place.interface}"],
                 "ucx-shm": [*ucx, "UCX_TLS=posix,self"]}[self.transport]
        run.ranks.append(run.start([
            "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to",
            "none", "-np", str(processes), *layer,
            os.path.join(folder, "openmpi_sync"), str(count), str(WARM_UP),
            str(repeats)]))


class Torch:
    system = "torch"
    transport = "gloo"
    algorithm = "all_reduce"

    def missing(self):
        done = subprocess.run(["/usr/bin/python3", "-c", "import torch"],
                              capture_output=True, check=False)
        return None if done.returncode == 0 else "no python3-torch"

    def prepare(self, _):
        pass

    def start(self, run, place, processes, count, repeats, folder):
        meet = tempfile.mkdtemp(dir=folder)
        for rank in range(processes):
            run.ranks.append(run.start(place.command(rank, [
                "/usr/bin/python3", os.path.join(HERE, "peers/torch_sync.py"),
                str(rank), str(processes), str(count), str(WARM_UP),
                str(repeats), meet]), GLOO_SOCKET_IFNAME=place.interface))


def compile_once(compiler, source, libraries, folder):
    output = os.path.join(folder, os.path.splitext(source)[0])
    if not os.path.exists(output):
        subprocess.run([*compiler, "-O3", "-march=native",
                        os.path.join(HERE, "peers", source), "-o", output,
                        *libraries], check=True)


CONTENDERS = {
    "nereus-ring": Nereus("socket", "ring"),
    "nereus-server": Nereus("socket", "server"),
    "nereus-factor": Nereus("socket", "factor"),
    "nereus-direct": Nereus("socket", "direct"),
    "nereus-ring-in-place": Nereus("socket", "ring", "--in-place"),
    "nereus-ring-shm": Nereus("shm", "ring"),
    "nereus-direct-shm": Nereus("shm", "direct"),
    "nereus-server-shm": Nereus("shm", "server"),
    "nereus-factor-shm": Nereus("shm", "factor"),
    "gloo-ring-chunked": Gloo("ring-chunked"),
    "gloo-halving-doubling": Gloo("halving-doubling"),
    "gloo-allreduce": Gloo("allreduce"),
    "openmpi-tcp": OpenMpi("tcp"),
    "openmpi-shm": OpenMpi("shm"),
    "openmpi-ucx-tcp": OpenMpi("ucx-tcp"),
    "openmpi-ucx-shm": OpenMpi("ucx-shm"),
    "torch": Torch(),
}


def measure(contender, place, processes, count, repeats, folder):
    run = Run(folder)
    try:
        contender.start(run, place, processes, count, repeats, folder)
        times, cpu, peak = run.finish()
    finally:
        run.stop()
    if len(times) != repeats:
        raise OSError(f"{len(times)} times of {repeats}")
    return times, cpu / ((WARM_UP + repeats) * count / 1e9), peak


def named(contender, processes, count):
    return {"system": contender.system, "transport": contender.transport,
            "algorithm": contender.algorithm, "processes": processes,
            "bytes": count}


def summary(contender, processes, count, results, link):
    times = sorted(t for result in results for t in result[0])
    median = statistics.median(times)
    around = 2 * (processes - 1) / processes
    row = {"seconds_median": median, "seconds_min": times[0],
           "seconds_max": times[-1], "rounds": len(times),
           "algorithm_bytes_per_second": count / median,
           "bus_bytes_per_second": count / median * around,
           "cpu_seconds_per_gb": statistics.median(r[1] for r in results),
           "peak_bytes": int(statistics.median(r[2] for r in results))}
    if link:
        row["link_bytes_per_second"] = link
        if contender.algorithm != "factor":
            row["link_share"] = row["bus_bytes_per_second"] / link
    return row


def show(row):
    share = (f", {row['link_share']:6.1%} of the link"
             if "link_share" in row else "")
    name = f"{row['system']} {row['transport']} {row['algorithm']}"
    head = f"{row['processes']} x {row['bytes']:>9} B  {name:26} "
    if "error" in row:
        last = row["error"].strip().splitlines()[-1]
        print(f"{head}failed in {row['failed_runs']} runs: {last}", flush=True)
    if "seconds_median" not in row:
        return
    print(f"{head}"
          f"{row['seconds_median'] * 1e3:10.3f} ms "
          f"({row['seconds_min'] * 1e3:.3f} to {row['seconds_max'] * 1e3:.3f})"
          f"  bus {row['bus_bytes_per_second'] / 1e9:6.2f} GB/s"
          f"  CPU {row['cpu_seconds_per_gb']:5.2f} s/GB"
          f"  peak {row['peak_bytes'] / 1e6:6.0f} MB{share}", flush=True)


def link_rate(hosts):
    """Returns payload bytes per second from host 0 to host 1, by iperf3."""
    server = subprocess.Popen(hosts.command(1, ["iperf3", "-s", "-1"]),
                              stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        done = subprocess.run(
            hosts.command(0, ["iperf3", "-c", hosts.address(1), "-t", "5", "-O",
                              "1", "-J"]),
            capture_output=True, text=True, check=True)
    finally:
        server.kill()
        server.wait()
    end = json.loads(done.stdout)["end"]
    return end["sum_received"]["bits_per_second"] / 8


def repeats_of(count, given):
    if given:
        return given
    return 500 if count <= 1 << 16 else 100 if count <= 1 << 20 else 20


def compare(arguments, contenders, processes, place, link, folder):
    for count in map(size, arguments.bytes.split(",")):
        repeats = repeats_of(count, arguments.repeats)
        results = {name: [] for name in contenders}
        failures = {name: [] for name in contenders}
        for _ in range(arguments.runs):
            for name, contender in contenders.items():
                try:
                    results[name].append(measure(contender, place, processes,
                                                 count, repeats, folder))
                except OSError as error:
                    if contender.system == "nereus":
                        raise
                    failures[name].append(str(error))
        for name, contender in contenders.items():
            row = named(contender, processes, count)
            if results[name]:
                row.update(summary(contender, processes, count, results[name],
                                   link))
            if failures[name]:
                row.update(failed_runs=len(failures[name]),
                           error=failures[name][0])
            if arguments.json:
                print(json.dumps(row), flush=True)
            else:
                show(row)


def chosen(arguments):
    names = (arguments.systems.split(",") if arguments.systems else
             CONTENDERS)
    contenders = {}
    for name in names:
        if name not in CONTENDERS:
            sys.exit(f"no system {name}; there are: {', '.join(CONTENDERS)}")
        contender = CONTENDERS[name]
        missing = contender.missing()
        if arguments.rate and contender.system == "openmpi":
            missing = "mpirun starts its processes on one host"
        if missing and contender.system == "nereus":
            sys.exit(f"{name}: {missing}: see --help")
        if missing:
            print(f"{name} is left out: {missing}", file=sys.stderr)
        else:
            contenders[name] = contender
    return contenders


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="2,4,8")
    parser.add_argument("--bytes", default=DEFAULT_BYTES,
                        help=f"sizes of the array; default: {DEFAULT_BYTES}")
    parser.add_argument("--systems", help="systems to measure, of "
                        f"{', '.join(CONTENDERS)}; default: all")
    parser.add_argument("--repeats", type=int, default=0,
                        help="timed rounds; default: 20, more for small "
                        "arrays")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--rate", help="rate of the hosts' links for tc: 1gbit")
    parser.add_argument("--json", action="store_true",
                        help="prints a JSON object per line")
    arguments = parser.parse_args()
    contenders = chosen(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as folder:
        for contender in contenders.values():
            contender.prepare(folder)
        for processes in map(int, arguments.processes.split(",")):
            if not arguments.rate:
                compare(arguments, contenders, processes, Place(), None, folder)
                continue
            with Hosts(processes, arguments.rate) as hosts:
                compare(arguments, contenders, processes, HostsPlace(hosts),
                        link_rate(hosts), folder)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"sync_benchmark: {error}")
