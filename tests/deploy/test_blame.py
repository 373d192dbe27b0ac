"""A slow member is named, and the cause is right: its computing, or its link."""

import contextlib
import importlib.util
import json
import os
import subprocess
import time

import jobs
import pytest
from conftest import ROOT, need, need_root
from watched_job import WatchedJob

specification = importlib.util.spec_from_file_location(
    "hosts", os.path.join(ROOT, "tests", "benchmarks", "hosts.py"))
hosts = importlib.util.module_from_spec(specification)
specification.loader.exec_module(hosts)


def causes(status):
    """Why each member is late: the workers by name, then the servers."""
    late = {worker["name"]: worker["late"]["cause"] for worker in status["workers"]
            if not worker["left"]}
    return {**late, "shards": [server["late"]["cause"] for server in status["shards"]]}


def test_a_worker_that_computes_longer_is_named(tmp_path):
    with WatchedJob(tmp_path, workers=4, servers=1) as job:
        job.until_running()
        job.processes["worker 2"].terminate()
        job.processes["worker 2"].wait()
        job.start_worker(2, "--delay=0.03")
        late = {"0": None, "1": None, "2": "computing", "3": None, "shards": [None]}
        status = job.until("worker 2 is late, and nobody else",
                           lambda status: causes(status) == late)
        assert "worker 2 (" in status["summary"] and "computes longer" in status["summary"]
        # It computes for 60 ms, the others for 30.
        status = job.until("by about 30 ms", lambda status: any(
            0.02 < worker["late"]["seconds"] < 0.06 for worker in status["workers"]))
        done = subprocess.run([jobs.NEREUSCTL, "status", f"--server={job.coordinator}"],
                              capture_output=True, text=True, check=True)
        first = done.stdout.split("\n")[3]
        assert first.startswith("2 ") and first.endswith("computing"), done.stdout


@pytest.fixture
def machines():
    """Four hosts, whose links have 1 Gbit/s."""
    need("ip", "tc")
    need_root("network namespaces")
    with contextlib.ExitStack() as exits:
        try:
            made = exits.enter_context(hosts.Hosts(4, "1gbit"))
        except OSError as error:
            pytest.skip(f"no network namespaces with limited links: {error}")
        yield made


@pytest.mark.parametrize("scheme", ["server", "ring"])
def test_a_worker_with_a_slow_link_is_named(tmp_path, machines, scheme):
    # Host 3 has a worker alone; host 0 has the server and the coordinator, too.
    with WatchedJob(tmp_path, workers=4, servers=1, hosts=machines, hosts_count=4,
                    options=[f"--scheme={scheme}"]) as job:
        try:
            job.until_running()
        except AssertionError as error:
            raise AssertionError("not all is well before a link is slow") from error
        slow = ["root", "tbf", "rate", "100mbit", "burst", "256kb", "latency", "50ms"]
        for where in (["ip", "netns", "exec", machines.name(3), "tc", "qdisc", "replace",
                       "dev", "eth0"], ["tc", "qdisc", "replace", "dev", f"{machines.tag}v3"]):
            subprocess.run(where + slow, check=True)
        late = {"0": None, "1": None, "2": None, "3": "link", "shards": [None]}
        # Shares are means over ten seconds, in some of which the link was fast. Then it is named
        # for five seconds on end.
        end = time.monotonic() + 60
        looks = 0
        while looks < 10:
            time.sleep(0.5)
            status = job.status()
            looks = looks + 1 if causes(status) == late else 0
            assert looks or time.monotonic() < end, json.dumps(
                [status["summary"], *status["workers"], *status["shards"]], indent=1)
        assert "worker 3 (" in status["summary"] and "link is slow" in status["summary"]
