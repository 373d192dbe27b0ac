"""Steps of first_run.py that run one program at a time: limits of the machine, kernels,
tests of the client, compute-sanitizer."""

import json
import re

from first_run_machine import find_sanitizer, timed_out
from first_run_table import at_least, at_most

CEILING_PARTS = ["rates of copies and of pinning", "small tasks", "calls while a stream is busy"]
KERNEL_PARTS = ["kernel_test", "factor_test", "kernel_benchmark"]
CLIENT_PARTS = ["staging_test", "device_network_test", "gpu_client_test",
                "gpu_job_kinds_test", "gpu_job_test"]
SANITIZER_PARTS = ["memcheck", "racecheck", "synccheck", "initcheck"]

# A call that takes at least this share of a stream's busy time counts as waiting for the stream.
WAITS_SHARE = 0.5

# Thresholds of gpu_ceilings, by the name of its line.
CEILINGS = {
    # A link with lower rates is not PCIe 5 x16, and copies then take longer than estimated.
    "copy to the host, whole": at_least(40),
    "copy to the GPU, whole": at_least(40),
    "copies both ways at once": at_least(80),
    "pinning": at_least(2),
    # The staging thread waits for an event once for each layer.
    "small task and wait, blocking event": at_most(100),
}
# Smallest percent of the rate of a whole copy that copies in pieces of 1 MiB must have. Stager
# copies in such pieces.
PIECE_PERCENT = 85

# Smallest percent of the rate of a copy on the GPU, by kernel.
KERNELS = {"look for NaNs": 80, "norms of blocks": 80, "hold blocks back": 80, "sgd": 80,
           "adam": 80, "to bf16": 65, "gather half of the blocks": 70}


def json_lines(text):
    """The JSON objects of a program's output, one per line."""
    found = []
    for line in text.split("\n"):
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                pass  # The program was ended while it wrote the line.
    return found


def why_failed(outcome):
    if timed_out(outcome):
        return f"the timeout ended it after {outcome.seconds:.0f} s; see first_run.log"
    lines = [line for line in outcome.output.strip().split("\n") if line.strip()]
    return f"exit code {outcome.code}: {lines[-1][:160] if lines else 'no output'}"


def run_ceilings(machine, table, options):
    program = machine.test("gpu_ceilings")
    if not program:
        table.skip("ceilings", "gpu_ceilings", "the program is not here")
        return
    limit_s = 60 if options.quick else 180
    size = ["--bytes=8388608"] if machine.emulated else []
    outcome = machine.run([program, *size], limit_s)
    values = {line["name"]: line for line in json_lines(outcome.output)}
    busy = values.get("expected busy time", {}).get("value", 0)
    for name, line in values.items():
        value, note = line["value"], ""
        if name.startswith("while a stream is busy"):
            note = "waits" if value >= WAITS_SHARE * busy else "does not wait"
        table.add("ceilings", name, value, line["unit"], CEILINGS.get(name), note, speed=True)
    for place in ("host", "GPU"):
        names = [f"copy to the {place}, pieces of 1 MiB", f"copy to the {place}, whole"]
        if all(name in values for name in names):
            piece, whole = (values[name]["value"] for name in names)
            table.add("ceilings", f"copy to the {place}, pieces of 1 MiB against whole",
                      100 * piece / whole, "%", at_least(PIECE_PERCENT), speed=True)
    if outcome.code != 0:
        table.fail("ceilings", "gpu_ceilings", why_failed(outcome))


def tests_with(text, label):
    """The names of the tests for which GoogleTest printed this label: RUN, OK, FAILED or
    SKIPPED."""
    return set(re.findall(r"^\[ +%s +\] ([^\s,.]+\.[^\s,]+)" % label, text, re.MULTILINE))


def run_tests(machine, table, step, name, limit_s, wanted="*", label="", **variables):
    """Runs a test program and adds a row with the number of tests that failed. After a
    timeout the test that was running counts as failed, and the program runs again with the
    tests that have not run yet. There are at most three such runs."""
    program = machine.test(name)
    row = name + label
    if not program:
        table.skip(step, row, "the program is not here")
        return
    done = {"OK": set(), "FAILED": set(), "SKIPPED": set()}
    ended = set()  # Tests that a timeout ended.
    notes = []
    for _ in range(3):
        begun = ended.union(*done.values())
        without = "-" + ":".join(sorted(begun)) if begun else ""
        outcome = machine.run([program, f"--gtest_filter={wanted}{without}"], limit_s,
                              **variables)
        for result, names in done.items():
            names |= tests_with(outcome.output, result)
        running = tests_with(outcome.output, "RUN") - ended.union(*done.values())
        if not timed_out(outcome) or not running:
            break
        ended |= running
    if outcome.code != 0 and not done["FAILED"]:
        notes.append(why_failed(outcome))
    if ended:
        notes.append("the timeout ended " + ", ".join(sorted(ended)))
    if done["FAILED"]:
        notes.append("failed: " + ", ".join(sorted(done["FAILED"])))
    if done["SKIPPED"]:
        notes.append(f"{len(done['SKIPPED'])} skipped by themselves")
    failed = max(len(done["FAILED"] | ended), int(outcome.code != 0))
    if not done["OK"] and not failed:
        table.skip(step, row, "the program skipped all tests; see first_run.log")
        return
    table.add(step, row, failed, "failed", at_most(0),
              "; ".join([f"{len(done['OK'])} passed"] + notes))


def run_kernels(machine, table, options):
    values = {"NEREUS_GPU_TEST_VALUES": "1000003"} if options.quick else {}
    run_tests(machine, table, "kernels", "kernel_test", 60 if options.quick else 240, **values)
    run_tests(machine, table, "kernels", "factor_test", 60)
    program = machine.test("kernel_benchmark")
    if not program:
        table.skip("kernels", "kernel_benchmark", "the program is not here")
        return
    limit_s = 90
    size = ["--values=2048"] if machine.emulated else []
    outcome = machine.run([program, "--json", *size], limit_s)
    for line in json_lines(outcome.output):
        if line["name"] == "copy":
            table.add("kernels", "copy on the GPU", line["gigabytes_per_second"], "GB/s")
        elif line["name"] in KERNELS:
            table.add("kernels", line["name"] + ", of a copy", line["percent_of_copy"], "%",
                      at_least(KERNELS[line["name"]]),
                      f"{line['gigabytes_per_second']:.0f} GB/s", speed=True)
        else:
            table.add("kernels", line["name"], line["gigabytes_per_second"], "GB/s")
    if outcome.code != 0:
        table.fail("kernels", "kernel_benchmark", why_failed(outcome))


def run_clients(machine, table, options):
    """Runs the tests of clients. Quick runs leave out tests with many jobs."""
    run_tests(machine, table, "client", "staging_test", 60)
    run_tests(machine, table, "client", "device_network_test", 60)
    few = "*EqualBlocks*:*Bfloat16*:*Timeline*:*ErrorBehind*:*StayEqual*"
    run_tests(machine, table, "client", "gpu_client_test", 60 if options.quick else 100,
              few if options.quick and machine.emulated else "*")
    for name in ("gpu_job_kinds_test", "gpu_job_test"):
        if options.quick:
            table.skip("client", name, "left out by --quick")
        else:
            run_tests(machine, table, "client", name, 120)
    if not options.quick:
        for name in machine.tests():
            if name not in CLIENT_PARTS + KERNEL_PARTS:
                run_tests(machine, table, "client", name, 120)


def sanitizer_runs(options):
    """Tool, program, and flags of the tool, for each run. initcheck and racecheck do not run on
    programs that use cuBLAS, because they report its kernels. Tests of clients cause errors of
    CUDA calls, so memcheck must not report these errors."""
    runs = [("memcheck", "kernel_test", []), ("racecheck", "kernel_test", [])]
    if options.quick:
        return runs
    return runs + [
        ("synccheck", "kernel_test", []), ("initcheck", "kernel_test", []),
        ("memcheck", "factor_test", []),
        ("memcheck", "staging_test", ["--report-api-errors", "no"]),
        ("memcheck", "gpu_job_kinds_test", ["--report-api-errors", "no"])]


def run_sanitizers(machine, table, options):
    runs = sanitizer_runs(options)
    sanitizer = "" if machine.emulated else find_sanitizer()
    for tool, name, flags in runs:
        row = f"{tool} {name}"
        program = machine.test(name)
        if not sanitizer or not program:
            why = ("compute-sanitizer needs a GPU, and this one is emulated"
                   if machine.emulated else "there is no compute-sanitizer" if not sanitizer
                   else "the program is not here")
            table.skip("sanitizers", row, why)
            continue
        wanted = "*Sparse*:*Factor*:*Bfloat16*" if name == "gpu_job_kinds_test" else "*"
        limit_s = 60 if options.quick else 80
        outcome = machine.run(
            [sanitizer, "--tool", tool, "--error-exitcode=9", *flags, program,
             f"--gtest_filter={wanted}"], limit_s,
            NEREUS_GPU_TEST_EXACT="1", NEREUS_GPU_TEST_VALUES="100003")
        errors = re.findall(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard",
                            outcome.output)
        if re.search(r"[Nn]ot supported", outcome.output):
            table.skip("sanitizers", row, "compute-sanitizer does not support this machine")
        elif timed_out(outcome):
            table.skip("sanitizers", row, f"not done after {outcome.seconds:.0f} s")
        elif not errors:
            table.fail("sanitizers", row, why_failed(outcome))
        else:
            table.add("sanitizers", row, int("".join(errors[-1])), "errors", at_most(0))
