"""Debian's Prometheus reads the metrics of a live job, and has every metric of the alerts."""

import json
import os
import re
import subprocess
import time
import urllib.parse
import urllib.request

import yaml
from conftest import KUBERNETES, ROOT, load, need
from watched_job import WatchedJob, free_port

MONITORING = os.path.join(KUBERNETES, "components", "monitoring")
with open(os.path.join(MONITORING, "alerts.yaml"), encoding="utf-8") as _file:
    ALERTS = load(_file.read())[0]["spec"]["groups"][0]["rules"]
with open(os.path.join(MONITORING, "dashboard.json"), encoding="utf-8") as _file:
    PANELS = json.load(_file)["panels"]


class Prometheus:
    """Debian's Prometheus, which reads all pages of a job each second."""

    def __init__(self, job, folder):
        self.port = free_port()
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "nereus", "static_configs": [
                {"targets": [f"127.0.0.1:{port}"], "labels": {"process": name}}
                for name, port in job.ports.items()]}]}
        path = folder / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config))
        self.log = open(folder / "prometheus.log", "w", encoding="utf-8")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self.log, stderr=self.log)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def query(self, expression):
        """The values of an instant query: {labels as text: value}."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{query}",
                                    timeout=5) as answer:
            result = json.loads(answer.read())["data"]["result"]
        return {json.dumps(entry["metric"], sort_keys=True): float(entry["value"][1])
                for entry in result}

    def until(self, expression, is_true, timeout=30):
        end = time.monotonic() + timeout
        values = None
        while time.monotonic() < end:
            try:
                values = self.query(expression)
                if is_true(values):
                    return values
            except OSError:
                pass
            time.sleep(0.5)
        raise AssertionError(f"{expression}: {values}")


def names_of(text):
    """The names of metrics in an expression, or in a page of documentation."""
    return set(re.findall(r"\b(?:nereus|process)_[a-z_]+", text))


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

            # The first step is a checkpoint.
            prometheus.until("nereus_checkpoint_last_success_timestamp_seconds", bool)

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
