"""Debian's Prometheus watches a live job: each alert fires for its cause, and not without.

All times of the alerts are an eightieth: a minute is 0.75 s."""

import copy
import re
import signal
import threading
import time

import jobs
import pytest
from conftest import need
from prometheus import Prometheus
from test_alerts import GROUP
from watched_job import WatchedJob

SPEED = 80
SCRAPED_EVERY = "500ms"


def short(match):
    """An eightieth of a duration of Prometheus, such as 10m, in milliseconds."""
    return f"{int(match[1]) * 60000 // SPEED}ms"


def quick(rule):
    rule = copy.deepcopy(rule)
    if "for" in rule:
        rule["for"] = re.sub(r"^(\d+)m$", short, rule["for"])
    # Ranges such as [10m], and ages in seconds.
    rule["expr"] = re.sub(r"(?<=\[)(\d+)m(?=\])", short, rule["expr"])
    rule["expr"] = re.sub(r"> (\d{3,})", lambda age: f"> {int(age[1]) / SPEED}", rule["expr"])
    return rule


class Pauses:
    """Stops a process for half of each second."""

    def __init__(self, process):
        self.process = process
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.wait(0.5):
            self.process.send_signal(signal.SIGSTOP)
            self.over.wait(0.5)
            self.process.send_signal(signal.SIGCONT)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *error):
        self.over.set()
        self.thread.join()


@pytest.fixture
def job(tmp_path):
    need("prometheus")
    # A worker that stops for longer than the lease counts as dead.
    with WatchedJob(tmp_path, workers=2, servers=2,
                    options=["--backup=1", "--checkpoint-every=20", "--lease=20"],
                    server_options=[f"--checkpoint-dir={tmp_path / 'checkpoints'}"]) as made:
        made.until_running()
        yield made


def test_each_alert_fires_for_its_cause(job, tmp_path):
    rules = [quick(rule) for rule in GROUP["rules"]]
    with Prometheus(job, tmp_path, SCRAPED_EVERY, rules) as prometheus:
        def until_firing(*names):
            jobs.until(f"these fire: {names}", lambda: [prometheus.firing()],
                       lambda firing: set(names) <= firing[0], timeout=60)

        def until_quiet(*names):
            jobs.until(f"these are silent again: {names}", lambda: [prometheus.firing()],
                       lambda firing: not set(names) & firing[0], timeout=60)

        prometheus.until("count(up == 1)", lambda values: list(values.values()) == [5])
        job.until("all backups are current", jobs.has_backups)
        # As long as the longest alert waits. The step of a busy machine may be slower than
        # predicted, and its workers may differ.
        end = time.monotonic() + 23
        while time.monotonic() < end:
            assert prometheus.firing() <= {"NereusSlowerThanForecast", "NereusStraggler"}
            time.sleep(0.5)

        job.processes["server 1"].kill()
        until_firing("NereusNoBackup", "NereusMembersMissing")
        job.start_server(1)
        until_quiet("NereusNoBackup", "NereusMembersMissing")

        job.processes["worker 1"].send_signal(signal.SIGSTOP)
        until_firing("NereusNoProgress")
        job.processes["worker 1"].send_signal(signal.SIGCONT)
        until_quiet("NereusNoProgress")

        until_quiet("NereusStraggler", "NereusSlowerThanForecast")
        with Pauses(job.processes["worker 1"]):
            until_firing("NereusStraggler", "NereusSlowerThanForecast")
        until_quiet("NereusStraggler", "NereusSlowerThanForecast")

        folder = tmp_path / "checkpoints"
        folder.rename(tmp_path / "moved")
        folder.write_text("not a folder")
        until_firing("NereusCheckpointStale")
        folder.unlink()
        (tmp_path / "moved").rename(folder)
        until_quiet("NereusCheckpointStale")
