"""What tests of all launchers ask a job."""

import json
import os
import re
import subprocess
import time

from conftest import ROOT

PROGRAMS = {name: os.path.join(ROOT, "bazel-bin", folder, name) for name, folder in {
    "nereus-server": "server", "nereus-worker": os.path.join("worker", "trainer"),
    "nereusctl": os.path.join("server", "admin"),
    "emulated_gpu_worker": os.path.join("tests", "gpu")}.items()}
NEREUSCTL = PROGRAMS["nereusctl"]


def status(address, run=subprocess.run):
    """What nereusctl says about the job, or None while no coordinator answers."""
    done = run([NEREUSCTL, "status", "--json", "--timeout=0.5", f"--server={address}"],
               capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def until(what, read, is_true, timeout=60):
    """Waits until `is_true` of what `read` returns, and returns it."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = read()
        if value and is_true(value):
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout} s: {what}; {read()}")


def live(status):
    """The names of the workers that are members."""
    return {worker["name"] for worker in status["workers"] if not worker["left"]}


def has_backups(status):
    return (len(status["shards"]) == 2 and len(status["shard_servers"]) == 2
            and all(server["backup_is_current"] and server["primary"] == shard
                    for shard, server in enumerate(status["shard_servers"])))


# A look may miss the moment in which a member is away, so its loss counts, too. Losses are
# counted from the start of the coordinator on.
def has_lost_a_worker(status, others):
    return live(status) == others or status["counts"]["workers_lost"] > 0


def has_lost_a_server(status):
    return not has_backups(status) or status["counts"]["servers_lost"] > 0


def results(log):
    """The test accuracy and the checksum of the parameters in the last lines of workers."""
    return re.findall(r"test accuracy ([\d.]+), parameters (\w+)", log)
