"""Debian's Prometheus beside a job of this machine."""

import json
import subprocess
import time
import urllib.parse
import urllib.request

import yaml
from watched_job import free_port


class Prometheus:
    """Debian's Prometheus, which reads all pages of a job at an interval.

    `rules` are alerts."""

    def __init__(self, job, folder, interval="1s", rules=()):
        self.port = free_port()
        (folder / "rules.yaml").write_text(
            yaml.safe_dump({"groups": [{"name": "nereus", "rules": list(rules)}]}))
        config = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": [str(folder / "rules.yaml")],
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

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}",
                                    timeout=30) as answer:
            return json.loads(answer.read())["data"]

    def firing(self):
        """The names of the alerts that fire."""
        alerts = self.get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def query(self, expression):
        """The values of an instant query: {labels as text: value}."""
        result = self.get("query?" + urllib.parse.urlencode({"query": expression}))["result"]
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
