"""Checks the alerts with promtool, and that its tests would find a wrong alert."""

import copy
import os
import shutil
import subprocess

import pytest
import yaml
from conftest import KUBERNETES, ROOT, load, need

with open(os.path.join(KUBERNETES, "components/monitoring/alerts.yaml"), encoding="utf-8") as _file:
    [GROUP] = load(_file.read())[0]["spec"]["groups"]
ALERTS = [rule["alert"] for rule in GROUP["rules"]]


@pytest.fixture
def promtool(tmp_path):
    """A function: promtool's result for these rules, and its tests'."""
    need("promtool")
    shutil.copy(os.path.join(ROOT, "tests/deploy/alerts_test.yaml"), tmp_path)

    def run(rules):
        for rule in rules:
            rule.pop("annotations", None)
        with open(tmp_path / "rules.yaml", "w", encoding="utf-8") as file:
            yaml.safe_dump({"groups": [{"name": "nereus", "rules": rules}]}, file)
        return [subprocess.run(["promtool", what, "rules", name], cwd=tmp_path,
                               capture_output=True, text=True, check=False)
                for what, name in (("check", "rules.yaml"), ("test", "alerts_test.yaml"))]

    return run


def test_alerts_fire_when_they_should(promtool):
    for done in promtool(copy.deepcopy(GROUP["rules"])):
        assert done.returncode == 0, done.stdout + done.stderr


# An alert, a part of its rule, and what a wrong rule has in its place.
FAULTS = [
    ("NereusNoProgress", "> 300", "> 30"),
    ("NereusNoProgress", "> 300", "> 3000"),
    ("NereusNoProgress", "== 1", ">= 0"),
    ("NereusMembersMissing", "> 0", "> 1"),
    ("NereusMembersMissing", "expected", "live"),
    ("NereusMembersMissing", "10m", "1m"),
    ("NereusNoBackup", "min by", "max by"),
    ("NereusNoBackup", "5m", "1m"),
    ("NereusCheckpointStale", "> 3600", "> 600"),
    ("NereusCheckpointStale", "> 3600", "> 36000"),
    ("NereusCheckpointStale", "> 0", ">= 0"),
    ("NereusCheckpointStale", "failures", "errors"),
    ("NereusStraggler", "> 0.25", "> 0.05"),
    ("NereusStraggler", "> 0.25", "> 0.75"),
    ("NereusStraggler", "15m", "1m"),
    ("NereusSlowerThanForecast", "1.5", "1.3"),
    ("NereusSlowerThanForecast", "1.5", "1.7"),
    ("NereusSlowerThanForecast", "30m", "1m"),
]


@pytest.mark.parametrize("alert, right, wrong", FAULTS)
def test_a_wrong_alert_is_found(promtool, alert, right, wrong):
    rules = copy.deepcopy(GROUP["rules"])
    rule = next(rule for rule in rules if rule["alert"] == alert)
    key = "for" if rule.get("for") == right else "expr"
    assert right in rule[key]
    rule[key] = rule[key].replace(right, wrong)
    check, test = promtool(rules)
    assert check.returncode == 0 and test.returncode != 0


@pytest.mark.parametrize("alert", ALERTS)
def test_annotations_say_what_to_do_next(alert):
    rule = next(rule for rule in GROUP["rules"] if rule["alert"] == alert)
    assert rule["annotations"]["summary"].endswith(".")
    assert "nereusctl status" in rule["annotations"]["description"]
