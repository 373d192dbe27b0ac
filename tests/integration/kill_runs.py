#!/usr/bin/env python3
"""Trains on MNIST while processes of the job are killed, run after run.

  bazel build //server/admin:nereusctl //server:nereus-server \\
      //worker/trainer:nereus-worker //tests/testing:slow_disk_preload.so
  tests/integration/kill_runs.py --data=DIR [--runs=20] [--backup=1]
  tests/integration/kill_runs.py --data=DIR --stop-seconds=10
  tests/integration/kill_runs.py --data=DIR --mixed --runs=50
  tests/integration/kill_runs.py --data=DIR --hosts=2 --backup=1

Run 0 has no faults; with --expect=ACCURACY it is left out, and that is its
accuracy. In each of the --runs later runs the script strikes a worker, then a
server, then the coordinator, at random times: it kills the process by SIGKILL,
and nereusctl restarts it. With --stop-seconds it stops the process for this
time instead. Each run is `nereusctl local` with 4 workers and 2 servers. With
--hosts=2 they play two hosts, and the script also strikes all processes of a
host at once.

With --mixed the order is random; each process is killed, or stopped for 1.5
times the lease. More is struck:

  disk    For 1.5 times the lease no fsync ends, of the coordinator's state or of
          checkpoints. Needs tests/testing/slow_disk_preload.so.
  file    One byte of the newest checkpoint changes, and all servers are killed:
          the job must go back to the checkpoint before. Not with --backup.
  link    For 1.5 times the lease a connection of a worker to a server lets
          nothing through, while both reach the coordinator. Needs root and
          iptables: the job runs in a network namespace of its own, without
          shared memory.

A run is good if it ends by itself with a complete report, equal replicas, and
an accuracy that is at most half a percentage point below that of run 0. Without
--backup the servers have checkpoints to go back to, and the last step must be
saved too; with --backup they have none. A run that ends before all kinds were
struck is done again with twice as many epochs, and is not good if that happens
three times.

Prints a line for each run, and at the end the number of good runs. Exits with 0
if all runs were good.
"""

import argparse
import contextlib
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
ACCURACY_MARGIN = 0.005
LIMIT = 900  # Seconds after which a job counts as hanging.
TRIES_MAX = 3  # Number of jobs of a run, until one lasts for all strikes.
# Fields that each report must have.
REPORTED = ["test_accuracy", "replicas_equal", "images_per_second", "seconds",
            "last_step", "phases", "plan", "settings", "workers"]


def find_built(name):
    """Returns a built file, below the repository's root (in a test) or in its
    bazel-bin; None if there is none."""
    for folder in (TOP, os.path.join(TOP, "bazel-bin")):
        built = os.path.join(folder, name)
        if os.access(built, os.X_OK):
            return built
    return None


def find_nereusctl():
    program = find_built("server/admin/nereusctl")
    return program or sys.exit("server/admin/nereusctl is not built")


def slow_disk():
    return find_built("tests/testing/slow_disk_preload.so")


def may_cut_links():
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "ss", "iptables")))


def kind_of(command):
    """Returns what a process of a job is; "" if it has not become its program
    yet."""
    if command[0].endswith("nereus-worker"):
        return "worker"
    if not command[0].endswith("nereus-server"):
        return ""
    return "coordinator" if "--coordinate-only" in command else "server"


def children(parent):
    """Returns (process, kind, node) of each running child of a process. The node
    is its flag --node, or ""."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii") as stat:
                state, its_parent = stat.read().rsplit(")", 1)[1].split()[:2]
            with open(f"/proc/{name}/cmdline", encoding="utf-8") as line:
                command = line.read().split("\0")
        except OSError:
            continue  # The process has just ended.
        if int(its_parent) == parent and state != "Z":
            node = "".join(word for word in command
                           if word.startswith("--node="))
            found.append((int(name), kind_of(command), node))
    return found


def choose(local, kind, chance):
    """Returns the processes to strike: a random process of `kind`, or all
    processes of a random node if `kind` is "host"."""
    running = children(local.pid)
    if kind == "host":
        nodes = sorted({node for _, _, node in running if node})
        node = chance.choice(nodes) if nodes else "none"
        return [process for process, _, its_node in running if its_node == node]
    processes = [process for process, its_kind, _ in running if its_kind == kind]
    return [chance.choice(processes)] if processes else []


def send(processes, number):
    """Sends a signal to each process that still runs; returns how many do."""
    running = 0
    for process in processes:
        try:
            os.kill(process, number)
            running += 1
        except ProcessLookupError:
            pass
    return running


def strike(local, kind, chance, options):
    """Kills or stops a random process of `kind` of the job `local`, or those of
    a host.

    Returns "killed" or "stopped", or "" if no such process runs.
    """
    processes = choose(local, kind, chance)
    stop_seconds = options.stop_seconds
    if options.mixed and chance.random() < 0.5:
        stop_seconds = 1.5 * options.lease
    if not send(processes,
                signal.SIGSTOP if stop_seconds else signal.SIGKILL):
        return ""
    if not stop_seconds:
        return "killed"
    time.sleep(stop_seconds)
    send(processes, signal.SIGCONT)  # Some may have been killed meanwhile.
    return "stopped"


def hang_disk(job, chance, options):
    """Lets no fsync end for a while, of the coordinator's state or of
    checkpoints. Returns "hung"."""
    files = "state" if options.backup else chance.choice(["state", "checkpoints"])
    with open(job.slow_disk, "w", encoding="ascii") as control:
        control.write(f"fsync {files}\n")
    time.sleep(1.5 * options.lease)
    os.remove(job.slow_disk)
    return f"hung ({files})"


def damage_file(job, chance):
    """Changes a byte of the newest checkpoint, and kills all servers. Returns
    "damaged", or "" if there are fewer than two checkpoints."""
    manifests = glob.glob(os.path.join(job.folder, "checkpoints", "round-*",
                                       "manifest*"))
    folders = sorted({os.path.dirname(name) for name in manifests})
    if len(folders) < 2:
        return ""
    parts = glob.glob(os.path.join(folders[-1], "*.safetensors"))
    try:
        with open(chance.choice(sorted(parts)), "r+b") as file:
            at = os.fstat(file.fileno()).st_size * 3 // 4
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))
    except OSError:
        return ""  # The job has removed this checkpoint.
    servers = [process for process, kind, _ in children(job.process.pid)
               if kind == "server"]
    return "damaged" if send(servers, signal.SIGKILL) else ""


def find_link(job, chance):
    """Returns the two ports of a random connection of a worker to the data port
    of a server, or None."""
    kinds = {process: kind for process, kind, _ in children(job.process.pid)}
    listed = subprocess.run([*job.inside, "ss", "-tnpHO", "state", "established"],
                            check=True, stdout=subprocess.PIPE, text=True).stdout
    ends = {}  # Ports of each connection, and the process of its first port.
    for line in listed.splitlines():
        ports = re.findall(r":(\d+)\s", line + " ")
        process = re.search(r"pid=(\d+)", line)
        if len(ports) >= 2 and process:
            ends[ports[0], ports[1]] = kinds.get(int(process.group(1)))
    links = sorted(ports for ports, kind in ends.items() if kind == "worker" and
                   ends.get((ports[1], ports[0])) == "server")
    return chance.choice(links) if links else None


def cut_link(job, chance, options):
    """Drops all packets of a connection of a worker to a server for a while.
    Returns "cut", or "" if there is no such connection."""
    link = find_link(job, chance)
    if link is None:
        return ""
    rules = [["INPUT", "-p", "tcp", "--sport", one, "--dport", other, "-j", "DROP"]
             for one, other in (link, link[::-1])]
    for rule in rules:
        subprocess.run([*job.inside, "iptables", "-A", *rule], check=True)
    time.sleep(1.5 * options.lease)
    for rule in rules:
        subprocess.run([*job.inside, "iptables", "-D", *rule], check=True)
    return "cut"


def strike_thing(job, kind, chance, options):
    """Strikes a thing of `kind`. Returns how, or "" if there is none."""
    if kind == "disk":
        return hang_disk(job, chance, options)
    if kind == "file":
        return damage_file(job, chance)
    if kind == "link":
        return cut_link(job, chance, options)
    return strike(job.process, kind, chance, options)


def strike_when_it_runs(job, kind, chance, options, deadline):
    """Strikes a thing of `kind` as soon as there is one: after a strike,
    nereusctl may still be restarting a process.

    Returns how, such as "killed", or "" if the job ended or the deadline passed
    before.
    """
    while job.process.poll() is None and time.monotonic() < deadline:
        how = strike_thing(job, kind, chance, options)
        if how:
            return how
        time.sleep(0.05)
    return ""


def await_backups(local, log, begin, deadline):
    """Waits until the coordinator has logged, behind byte `begin`, that the
    backup of every shard is current again. Returns False if the job ended, or
    the deadline passed, before."""
    while local.poll() is None and time.monotonic() < deadline:
        with open(log, "rb") as lines:
            lines.seek(begin)
            if b"the backup of every shard is current again" in lines.read():
                return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def network(kinds):
    """Makes a network namespace, if links are cut. Yields the command that runs
    others inside it."""
    if "link" not in kinds:
        yield []
        return
    name = f"nereus-kill-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        inside = ["ip", "netns", "exec", name]
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        yield inside
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


class Job:
    """A job that runs: its process `nereusctl local`, its folder, the command
    that runs others in its network, and the control file of its disk."""

    def __init__(self, process, folder, inside, slow_disk_file):
        self.process = process
        self.folder = folder
        self.inside = inside
        self.slow_disk = slow_disk_file


def train(folder, kinds, epochs, chance, options):
    with network(kinds) as inside:
        return train_inside(inside, folder, kinds, epochs, chance, options)


def train_inside(inside, folder, kinds, epochs, chance, options):
    """Does a job, and strikes a process of each of `kinds` in turn.

    Returns two values: the report, or the reason why there is none; and a list
    of the struck processes, which is short if the job ended early.
    """
    report = os.path.join(folder, "report.json")
    command = [*inside, find_nereusctl(), "local", f"--data={options.data}",
               "--workers=4", "--servers=2", f"--epochs={epochs}",
               f"--lease={options.lease}", f"--json={report}",
               "--restarts=30", "--log-level=info"]
    if options.hosts:
        command.append(f"--hosts={options.hosts}")
    if options.backup:
        command.append("--backup=1")
    else:
        command += [f"--checkpoint-dir={folder}/checkpoints",
                    "--checkpoint-every=20"]
    environment = dict(os.environ)
    slow_disk_file = os.path.join(folder, "slow_disk")
    if "disk" in kinds:
        environment.update(LD_PRELOAD=slow_disk(), SLOW_DISK=slow_disk_file)
    if "link" in kinds:
        command.append("--shared-memory=off")
    struck = []
    deadline = time.monotonic() + LIMIT
    log_path = os.path.join(folder, "log")
    begin = None  # Length of the log before the last strike at a whole host.
    with open(log_path, "wb") as log:
        local = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        job = Job(local, folder, inside, slow_disk_file)
        try:
            for kind in kinds:
                time.sleep(chance.uniform(1.5, 4))
                # Two servers at once may be lost for good, so the second strike
                # waits for the copies.
                if (options.backup and begin is not None and
                        not await_backups(local, log_path, begin, deadline)):
                    break
                begin = os.path.getsize(log_path) if kind == "host" else None
                how = strike_when_it_runs(job, kind, chance, options, deadline)
                if not how:
                    break
                struck.append(f"{kind} {how}")
            code = local.wait(timeout=max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return f"not over after {LIMIT} s", struck
        finally:
            if local.poll() is None:
                local.send_signal(signal.SIGINT)
                local.wait()
    if code != 0:
        return f"exit code {code}", struck
    with open(report, encoding="utf-8") as file:
        return json.load(file), struck


def describe_defect(result, expected, options):
    """Returns why a job is not good, or "" if it is good."""
    if isinstance(result, str):
        return result
    missing = [name for name in REPORTED if result.get(name) is None]
    if missing:
        return f"the report lacks {', '.join(missing)}"
    # "lost" counts workers that did not finish: they are not in "workers".
    reported = len(result["workers"]) + result["lost"]
    if reported != 4:
        return f"the report has {reported} workers, not 4"
    if not options.backup and result["saved_round"] != result["last_step"]:
        return f"round {result['saved_round']} is saved, not the last step"
    if not result["replicas_equal"]:
        return "replicas differ"
    if result["test_accuracy"] < expected - ACCURACY_MARGIN:
        return f"accuracy {result['test_accuracy']}, not {expected}"
    return ""


def train_until_struck(folder, kinds, expected, chance, options):
    """Does jobs, each with twice as many epochs as the one before, until one
    lasts for all strikes or is not good.

    Returns the values of `train`, and why the run is not good, or "".
    """
    epochs = options.epochs
    for number in range(TRIES_MAX):
        part = os.path.join(folder, f"job-{number}")
        os.mkdir(part)
        result, struck = train(part, kinds, epochs, chance, options)
        defect = describe_defect(result, expected, options)
        if defect or len(struck) == len(kinds):
            return result, struck, defect
        early = (f"the job of {epochs} epochs ended before the "
                 f"{kinds[len(struck)]} was struck")
        print(early, flush=True)
        epochs *= 2
    return result, struck, early


def run_once(number, kinds, expected, options):
    """Does a run and prints its line.

    Returns the accuracy, or None if the run was not good.
    """
    folder = tempfile.mkdtemp(prefix="nereus-kill-")
    chance = random.Random(options.seed + number)
    begun = time.monotonic()
    if options.mixed:
        kinds = chance.sample(kinds, len(kinds))
    result, struck, defect = train_until_struck(folder, kinds, expected, chance,
                                                options)
    seconds = time.monotonic() - begun
    print(f"run {number}: {seconds:.1f} s, struck {', '.join(struck) or 'none'}"
          f", {defect + ', see ' + folder if defect else 'good'}", flush=True)
    if defect:
        return None
    shutil.rmtree(folder, ignore_errors=True)
    return result["test_accuracy"]


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a folder with MNIST")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--expect", type=float)
    parser.add_argument("--backup", type=int, choices=(0, 1), default=0)
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--stop-seconds", type=float, default=0)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lease", type=float, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.hosts == 1 and options.backup:
        parser.error("--hosts=1 --backup=1: both servers are on the host that is "
                     "struck")
    return options


def main():
    options = parse_arguments()
    # SIGTERM raises an exception, so that train() ends the job's processes.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    expected = options.expect
    if expected is None:
        expected = run_once(0, [], 0.0, options)
    if expected is None:
        return 1
    kinds = ["worker", *(["host"] if options.hosts else []), "server",
             "coordinator"]
    if options.mixed:
        more = {"disk": slow_disk() is not None, "file": not options.backup,
                "link": may_cut_links()}
        kinds += [kind for kind, may in more.items() if may]
    good = sum(run_once(number, kinds, expected, options) is not None
               for number in range(1, options.runs + 1))
    print(f"{good} of {options.runs} runs were good; accuracy without faults "
          f"{expected:.4f}")
    return 0 if good == options.runs else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
