#!/usr/bin/env python3
"""Counts test cases of one `bazel test` run.

Usage: count_results.py EVENTS, the file of --build_event_json_file.

Prints the cases that were skipped, with reasons, and the cases that failed. The
last line is two numbers for the caller: `PASSED FAILED`. The cases are those of
GoogleTest, not Bazel's targets. If a target failed but none of its cases did (a
crash, a timeout, a build error), it counts as one failure.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree


def read_events(path):
    """Three values: the labels of all requested test targets; the labels of targets that
    this configuration cannot build; and the label, status and XML of each run."""
    targets = set()
    left_out = set()
    runs = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            event = json.loads(line)
            key = event.get("id", {})
            if "targetConfigured" in key and "configured" in event:
                if "testSize" in event["configured"]:
                    targets.add(key["targetConfigured"]["label"])
            if "targetCompleted" in key and (
                    event.get("aborted", {}).get("reason") == "SKIPPED"):
                left_out.add(key["targetCompleted"]["label"])
            if "testResult" in key and "testResult" in event:
                result = event["testResult"]
                xml_uri = next((output["uri"]
                                for output in result.get("testActionOutput", [])
                                if output["name"] == "test.xml"), None)
                runs.append((key["testResult"]["label"],
                             result.get("status", "NO_STATUS"), xml_uri))
    return targets, left_out, runs


def read_cases(uri):
    """The test cases of one XML file: (name, failure or None, skip or None)."""
    path = urllib.parse.unquote(urllib.parse.urlparse(uri).path)
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return []
    cases = []
    for case in root.iter("testcase"):
        name = ".".join(filter(None, [case.get("classname"), case.get("name")]))
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        skipped = case.find("skipped")
        reason = None
        if skipped is not None:
            reason = skipped.get("message") or skipped.text or "no reason given"
        elif case.get("status") == "notrun":
            reason = "disabled"
        cases.append((name, failure is not None, reason))
    return cases


def main():
    targets, left_out, runs = read_events(sys.argv[1])
    passed = 0
    failures = []
    skips = []
    for label, status, uri in runs:
        failed_here = 0
        for name, is_failed, skip in read_cases(uri) if uri else []:
            if is_failed:
                failed_here += 1
                failures.append(f"{label} {name}")
            elif skip is not None:
                skips.append(f"{label} {name}: {' '.join(skip.split())}")
            else:
                passed += 1
        if status not in ("PASSED", "FLAKY") and failed_here == 0:
            failures.append(f"{label} as a whole: {status}")
    for label in sorted(targets & left_out):
        skips.append(f"{label}: not for this configuration (target_compatible_with)")
    for label in sorted(targets - left_out - {label for label, _, _ in runs}):
        failures.append(f"{label} was not built or not run")
    for skip in skips:
        print(f"skipped: {skip}")
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"{passed} {len(failures)}")


if __name__ == "__main__":
    main()
