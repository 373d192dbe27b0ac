"""Table of first_run.py: one row for each value, with its threshold and result."""

import json
import os
import time

# Results of a row.
PASS = "pass"
FAIL = "fail"
SKIPPED = "skipped"  # There is no value; the note says why.
NOTED = "noted"  # A value without a threshold, or a speed that is not judged.


class Limit:
    """Threshold of a value."""

    def __init__(self, relation, bound):
        self.relation = relation
        self.bound = bound

    def holds(self, value):
        if self.relation == ">=":
            return value >= self.bound
        if self.relation == "<=":
            return value <= self.bound
        return value == self.bound

    def __str__(self):
        return f"{self.relation} {show(self.bound)}"


def at_least(bound):
    return Limit(">=", bound)


def at_most(bound):
    return Limit("<=", bound)


def equals(bound):
    return Limit("=", bound)


def show(value):
    """A value as text. Numbers with a fraction have three digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


class Table:
    """Rows in the order of their steps. Each row is written to first_run.json in `folder` at
    once, so that an interrupted run leaves its values."""

    def __init__(self, folder, emulated, quick):
        self.folder = folder
        self.emulated = emulated
        self.quick = quick
        self.machine = {}  # Facts about the machine.
        self.rows = []
        self.began = time.monotonic()

    def add(self, step, name, value, unit="", limit=None, note="", speed=False):
        """Adds a row. `limit`: threshold of the value. `speed`: the value depends on the speed
        of the GPU, so it is not judged if the GPU is emulated."""
        if value is None:
            result = SKIPPED
        elif limit is None:
            result = NOTED
        elif speed and self.emulated:
            result = NOTED
            note = note or "not judged, since the GPU is emulated"
        else:
            result = PASS if limit.holds(value) else FAIL
        self._append(step, name, value, unit, str(limit or ""), result, note)

    def skip(self, step, name, why):
        self._append(step, name, None, "", "", SKIPPED, why)

    def fail(self, step, name, why):
        self._append(step, name, None, "", "", FAIL, why)

    def _append(self, step, name, value, unit, threshold, result, note):
        row = {"step": step, "name": name, "value": value, "unit": unit,
               "threshold": threshold, "result": result, "note": note}
        self.rows.append(row)
        print(f"{result:8} {step}: {name} {show(value)} {unit} {threshold} {note}".rstrip(),
              flush=True)
        self.write_json()

    def count(self, result):
        return sum(row["result"] == result for row in self.rows)

    def summary(self):
        counts = [f"{self.count(PASS)} passed", f"{self.count(FAIL)} failed",
                  f"{self.count(SKIPPED)} skipped", f"{self.count(NOTED)} noted"]
        return f"{', '.join(counts)} in {time.monotonic() - self.began:.0f} s"

    def write_json(self):
        report = {"emulated": self.emulated, "quick": self.quick, "machine": self.machine,
                  "seconds": round(time.monotonic() - self.began, 1),
                  "passed": self.count(PASS), "failed": self.count(FAIL),
                  "skipped": self.count(SKIPPED), "noted": self.count(NOTED),
                  "rows": self.rows}
        path = os.path.join(self.folder, "first_run.json")
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
        os.replace(path + ".new", path)

    def markdown(self):
        lines = [f"{name}: {value}" for name, value in self.machine.items()]
        lines += ["", "| step | what | value | unit | threshold | result | note |",
                  "| --- | --- | --- | --- | --- | --- | --- |"]
        for row in self.rows:
            cells = [row["step"], row["name"], show(row["value"]), row["unit"],
                     row["threshold"], row["result"], row["note"]]
            lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
        return "\n".join(lines + ["", self.summary()]) + "\n"

    def finish(self):
        """Prints the table, and writes first_run.md and first_run.json."""
        self.write_json()
        text = self.markdown()
        with open(os.path.join(self.folder, "first_run.md"), "w", encoding="utf-8") as file:
            file.write(text)
        print("\n" + text, end="", flush=True)
