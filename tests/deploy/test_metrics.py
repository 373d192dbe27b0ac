"""Debian's Prometheus reads the metrics of a live job, and has every metric of the alerts."""

import json
import os
import re
import subprocess

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
                lambda values: len(values) == 4 and 1.5 < sum(values.values()) < 2.5)
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


def test_promtool_accepts_the_metrics(tmp_path):
    need("promtool")
    with WatchedJob(tmp_path, workers=2, servers=1) as job:
        job.until_running()
        for name in job.ports:
            done = subprocess.run(["promtool", "check", "metrics"], input=job.get(name, "/metrics"),
                                  capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
