"""Debian's Prometheus reads the metrics of a live job, and has every metric of the alerts."""

import json
import os
import re
import subprocess

import jobs
import pytest
from conftest import KUBERNETES, ROOT, load, need
from prometheus import Prometheus
from watched_job import WatchedJob

MONITORING = os.path.join(KUBERNETES, "components", "monitoring")
with open(os.path.join(MONITORING, "alerts.yaml"), encoding="utf-8") as _file:
    ALERTS = load(_file.read())[0]["spec"]["groups"][0]["rules"]
with open(os.path.join(MONITORING, "dashboard.json"), encoding="utf-8") as _file:
    PANELS = json.load(_file)["panels"]


def names_of(text):
    """The names of metrics in an expression, or in a page of documentation."""
    return {re.sub("_(bucket|sum|count)$", "", name)
            for name in re.findall(r"\b(?:nereus|process)_[a-z_]+", text)}


def values_of(job, process, name):
    """The values of a metric of a process, by the rest of their names, labels included."""
    return {label[len(name):]: float(value) for label, value in
            (line.rsplit(" ", 1) for line in job.get(process, "/metrics").splitlines())
            if label.startswith(name)}


def test_prometheus_reads_all_processes_and_has_all_metrics(tmp_path):
    need("prometheus")
    with WatchedJob(tmp_path, workers=2, servers=2, options=["--backup=1"],
                    server_options=[f"--checkpoint-dir={tmp_path / 'checkpoints'}"]) as job:
        job.until_running()
        with Prometheus(job, tmp_path) as prometheus:
            prometheus.until("sum(up)", lambda values: list(values.values()) == [5])
            prometheus.until("sum(rate(nereus_worker_steps_total[5s]))",
                             lambda values: values and min(values.values()) > 10)
            shares = prometheus.until(
                "sum by (phase) (rate(nereus_worker_phase_seconds_total[5s]))",
                # Two workers, each of which is in one phase at any time.
                lambda values: len(values) == 5 and 1.5 < sum(values.values()) < 2.5)
            assert "forward" in " ".join(shares)
            [step] = prometheus.query("nereus_step_measured_seconds").values()
            assert 0.03 < step < 1
            assert prometheus.query('nereus_members{role="server",state="live"}')
            assert list(prometheus.query("min(nereus_shard_backup_current)").values()) == [1]

            # Each value is stored once as primary and once as backup, 4.2 MB in all.
            stored = prometheus.query("sum by (kind) (nereus_shard_bytes)")
            assert len(stored) == 3
            for kind in ("primary", "backup"):
                assert stored[json.dumps({"kind": kind})] >= 8 * 524288
            assert min(prometheus.query("sum by (process) (nereus_connections)").values()) >= 2
            assert list(prometheus.query(
                "sum(nereus_connections_refused_total)").values()) == [0]

            # nereusctl has the same figures.
            status = job.until("layers are measured", lambda status: all(
                layer["sync_seconds"] for layer in status["layers"]))
            synced = prometheus.until("nereus_layer_sync_seconds", lambda values: len(values) == 2)
            assert max(synced.values()) < 1
            assert status["counts"]["epochs_by_reason"]["start"] == 1
            assert "epoch" in {event["event"] for event in status["events"]}

            # The first step is a checkpoint.
            prometheus.until("nereus_checkpoint_last_success_timestamp_seconds", bool)

            # A worker comes back.
            job.processes["worker 1"].kill()
            job.start_worker(1)
            replaced = prometheus.until(
                'nereus_member_replacement_seconds_sum{role="worker"}',
                lambda values: values and min(values.values()) > 0)
            assert max(replaced.values()) < 30

            # Each metric of the alerts exists, and each is documented.
            found = names_of(" ".join(prometheus.query('{job="nereus"}')))
            with open(os.path.join(ROOT, "docs", "operating.md"), encoding="utf-8") as file:
                documented = names_of(file.read())
            for alert in ALERTS:
                assert names_of(alert["expr"]) <= found, alert["alert"]
            assert found <= documented, found - documented

            # Each panel of the dashboard shows something. Without a cluster there is no namespace.
            for panel in PANELS:
                for target in panel.get("targets", []):
                    expression = target["expr"].replace("$namespace", "")
                    assert prometheus.until(expression, bool, timeout=90), panel["title"]


def test_a_gpu_and_a_server_tell_how_long_they_wait(tmp_path):
    if not os.path.exists(jobs.PROGRAMS["emulated_gpu_worker"]):
        pytest.skip("emulated_gpu_worker is not built: it needs the headers of the CUDA Toolkit")
    with WatchedJob(tmp_path, workers=2, servers=1, options=["--scheme=server", "--chunk=2097152"],
                    worker_program="emulated_gpu_worker",
                    worker_options=["--device=cuda:0"]) as job:
        job.until_running()
        prefix = "nereus_gpu_copy_seconds_total"
        assert set(values_of(job, "worker 0", prefix).values()) == {0}  # It measures from now on.

        # Each of two reads counts a step. 2.1 MB of gradients go out and 2.1 MB come back.
        copies = jobs.until("copies are measured", lambda: values_of(job, "worker 0", prefix),
                            lambda values: len(values) == 4 and sum(values.values()) > 0)
        assert sum(time for labels, time in copies.items() if 'direction="out"' in labels) > 0
        assert sum(time for labels, time in copies.items() if 'direction="in"' in labels) > 0
        again = jobs.until("copies grow", lambda: values_of(job, "worker 0", prefix),
                           lambda values: sum(values.values()) > sum(copies.values()))
        assert all(again[labels] >= time for labels, time in copies.items())

        # 2 chunks of 8 frames in each round. Both workers compute for as long.
        rounds = jobs.until(
            "rounds are closed", lambda: values_of(job, "server 0", "nereus_shard_round_seconds"),
            lambda values: values['_bucket{le="+Inf"}'] > 40)
        assert 0 < rounds["_sum"] / rounds["_count"] < 0.5
        assert rounds["_count"] == rounds['_bucket{le="+Inf"}']


def test_promtool_accepts_the_metrics(tmp_path):
    need("promtool")
    with WatchedJob(tmp_path, workers=2, servers=1) as job:
        job.until_running()
        for name in job.ports:
            done = subprocess.run(["promtool", "check", "metrics"], input=job.get(name, "/metrics"),
                                  capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
