#!/usr/bin/env python3
"""Runs all tests and measurements of Nereus that need a GPU, once.

  tests/gpu/first_run.sh                      in a bundle (tests/gpu/bundle.sh), 40 minutes
  tests/gpu/first_run.sh --quick              the same in 8 minutes
  tests/gpu/first_run.sh --quick --emulated   the script itself, without a GPU

The machine needs Python 3, a driver, and cuBLAS 13 in Python's packages or in a toolkit.
The steps: limits of the machine (gpu_ceilings), kernels, tests of the client,
compute-sanitizer, whole jobs, replays of ResNet-50 and VGG19. Each program has a timeout.
After a failure the script goes on. It leaves three files in the folder of --out:

  first_run.md     the table: step, value, unit, threshold, and pass, fail, skipped, or
                   noted for a value without a threshold
  first_run.json   the same
  first_run.log    the output of all programs

Without a GPU the table says what was skipped, and why. Exits with 0 if no row failed, with 1
if a row failed, and with 2 for a wrong command line.
"""

import argparse
import json
import os
import re
import statistics
import sys

from first_run_machine import Machine, ProgramFailed, Table, memory_used

# Thresholds of gpu_ceilings, by the name of its line. A link with lower rates is not PCIe 5 x16,
# and copies then take longer than estimated. The staging thread waits for an event once for each
# layer.
CEILINGS = {
    "copy to the host, whole": (">=", 40), "copy to the GPU, whole": (">=", 40),
    "copies both ways at once": (">=", 80), "pinning": (">=", 2),
    "small task and wait, blocking event": ("<=", 100)}
# Smallest percent of the rate of a copy on the GPU, by kernel.
KERNELS = {"look for NaNs": 80, "norms of blocks": 80, "hold blocks back": 80, "sgd": 80,
           "adam": 80, "to bf16": 65, "gather half of the blocks": 70}
# Smallest percent of the time of copies to the host in which the GPU computes. Copies of the last
# layers' results to the GPU come after the backward pass, so nothing can hide them.
HIDDEN_PERCENT = 80  # In training, which has small layers.
HIDDEN_OUT_PERCENT = 95  # In a replay.

# Two numbers for each model: the seconds of computing in a step of 64 images, about those of an
# H100; and the milliseconds that a step may take longer on a GPU than on the CPU.
MODELS = {"resnet-50": (0.030, 1), "vgg19": (0.080, 10)}
# Model of emulated replays: a table of layers as in docs/models.md.
SMALL_MODEL = """name,kind,m,n,parameters,rows_per_sample
conv,conv,32,288,9248,16
fc1,fc,256,1024,262400,1
fc2,fc,10,256,2570,1
"""


def json_lines(text):
    """The JSON objects of a program's output, one per line. A line may begin with the name of
    its worker, in brackets."""
    return [json.loads(line) for line in
            re.findall(r"^(?:\[worker-\d+\] )?(\{\".*\})$", text, re.MULTILINE)]


def checked(outcome):
    """The output of a program that has ended well."""
    if outcome.code != 0:
        raise ProgramFailed(outcome.why())
    return outcome.output


def run_ceilings(machine, table, options):
    size = ["--bytes=8388608"] if options.emulated else []
    outcome = machine.run([machine.test("gpu_ceilings"), *size], 60 if options.quick else 180)
    values = {line["name"]: line for line in json_lines(outcome.output)}
    busy = values.get("expected busy time", {}).get("value", 0)
    for name, line in values.items():
        note = ""
        if name.startswith("while a stream is busy"):
            note = "waits" if line["value"] >= busy / 2 else "does not wait"
        table.add(name, line["value"], line["unit"], CEILINGS.get(name), note, speed=True)
    for place in ("host", "GPU"):
        piece, whole = (values.get(f"copy to the {place}, {part}", {}).get("value")
                        for part in ("pieces of 1 MiB", "whole"))
        if piece and whole:
            table.add(f"copy to the {place}, pieces of 1 MiB against whole",
                      100 * piece / whole, "%", (">=", 85), speed=True)
    checked(outcome)


def run_tests(machine, table, name, limit_s, wanted="*", **variables):
    """Runs a test program, and adds a row with the number of its tests that failed. A test that
    was running at the timeout is one of them."""
    outcome = machine.run([machine.test(name), f"--gtest_filter={wanted}"], limit_s, **variables)
    names = {label: set(re.findall(r"^\[ +%s +\] ([^\s,.]+\.[^\s,]+)" % label, outcome.output,
                                   re.MULTILINE))
             for label in ("RUN", "OK", "FAILED", "SKIPPED")}
    hanging = names["RUN"] - names["OK"] - names["FAILED"] - names["SKIPPED"]
    notes = [f"{len(names['OK'])} passed"]
    for what, found in (("failed", names["FAILED"]), ("did not end", hanging)):
        if found:
            notes.append(f"{what}: {', '.join(sorted(found))}")
    if outcome.code != 0:
        notes.append(outcome.why())
    if names["SKIPPED"]:
        notes.append(f"{len(names['SKIPPED'])} skipped by themselves")
    failed = max(len(names["FAILED"] | hanging), int(outcome.code != 0))
    if not failed and not names["OK"]:
        table.skip(name, "the program skipped all tests; see first_run.log")
    else:
        table.add(name, failed, "failed", ("<=", 0), "; ".join(notes))


def run_kernels(machine, table, options):
    values = {"NEREUS_GPU_TEST_VALUES": "1000003"} if options.quick else {}
    table.guard("kernel_test", run_tests, machine, table, "kernel_test",
                60 if options.quick else 240, **values)
    table.guard("factor_test", run_tests, machine, table, "factor_test", 60)
    size = ["--values=2048"] if options.emulated else []
    outcome = machine.run([machine.test("kernel_benchmark"), "--json", *size], 90)
    for line in json_lines(outcome.output):
        name, rate = line["name"], line["gigabytes_per_second"]
        if name in KERNELS:
            table.add(name + ", of a copy", line["percent_of_copy"], "%",
                      (">=", KERNELS[name]), f"{rate:.0f} GB/s", speed=True)
        else:
            table.add("copy on the GPU" if name == "copy" else name, rate, "GB/s")
    checked(outcome)


def run_clients(machine, table, options):
    """Runs the tests of clients. Quick runs leave out tests with many jobs."""
    few = "*EqualBlocks*:*Bfloat16*:*Timeline*:*ErrorBehind*:*StayEqual*"
    names = ["staging_test", "device_network_test", "gpu_client_test"]
    if not options.quick:
        names += [name for name in machine.tests()
                  if name not in names + ["kernel_test", "factor_test"]]
    for name in names:
        wanted = (few if name == "gpu_client_test" and options.quick and options.emulated
                  else "*")
        table.guard(name, run_tests, machine, table, name, 60 if options.quick else 120, wanted)


def sanitize(machine, table, options, tool, name, flags):
    sanitizer = machine.sanitizer()
    if not sanitizer:
        table.skip(f"{tool} {name}", "compute-sanitizer needs a GPU, and this one is emulated"
                   if options.emulated else "there is no compute-sanitizer")
        return
    wanted = "*Sparse*:*Factor*:*Bfloat16*" if name == "gpu_job_kinds_test" else "*"
    outcome = machine.run(
        [sanitizer, "--tool", tool, "--error-exitcode=9", *flags, machine.test(name),
         f"--gtest_filter={wanted}"], 60 if options.quick else 80,
        NEREUS_GPU_TEST_EXACT="1", NEREUS_GPU_TEST_VALUES="100003")
    errors = re.findall(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard",
                        outcome.output)
    if re.search(r"[Nn]ot supported", outcome.output):
        table.skip(f"{tool} {name}", "compute-sanitizer does not support this machine")
    elif outcome.timed_out():
        table.skip(f"{tool} {name}", outcome.why())
    elif not errors:
        table.fail(f"{tool} {name}", outcome.why())
    else:
        table.add(f"{tool} {name}", int("".join(errors[-1])), "errors", ("<=", 0))


def run_sanitizers(machine, table, options):
    """Runs tests under compute-sanitizer. initcheck and racecheck do not run on programs that use
    cuBLAS, because they report its kernels. Tests of clients cause errors of CUDA calls, so
    memcheck must not report these errors."""
    allow_errors = ["--report-api-errors", "no"]
    runs = [("memcheck", "kernel_test", []), ("racecheck", "kernel_test", [])]
    if not options.quick:
        runs += [("synccheck", "kernel_test", []), ("initcheck", "kernel_test", []),
                 ("memcheck", "factor_test", []), ("memcheck", "staging_test", allow_errors),
                 ("memcheck", "gpu_job_kinds_test", allow_errors)]
    for tool, name, flags in runs:
        table.guard(f"{tool} {name}", sanitize, machine, table, options, tool, name, flags)


def train(machine, options, name, flags):
    """Runs `nereusctl local` and returns its report."""
    report = os.path.join(options.out, f"job_{re.sub('[^a-z0-9]+', '_', name)}.json")
    usual = (["--model=mlp", "--limit=2000", "--epochs=2"] if options.emulated
             else [f"--epochs={2 if options.quick else 4}"])
    if options.data:
        usual.append(f"--data={options.data}")
    given = {flag.split("=")[0] for flag in flags}
    checked(machine.run(
        [machine.program("server/admin/nereusctl"), "local", f"--json={report}",
         f"--worker-binary={machine.worker()}",
         *(flag for flag in usual if flag.split("=")[0] not in given), *flags], 120))
    with open(report, encoding="utf-8") as file:
        return json.load(file)


def run_workers(machine, workers, job_flags, worker_flags):
    """Runs nereus-worker as the workers of a job. Returns the last JSON object that each worker
    printed. Each worker plays a host of its own: workers of one host would exchange float32
    whatever --wire says."""
    outcome = machine.run(
        [machine.program("server/admin/nereusctl"), "run", f"--workers={workers}",
         f"--hosts={workers}", "--servers=2", "--restarts=0", *job_flags, "--",
         machine.worker(), "--json", *worker_flags], 90)
    last = {line.get("rank"): line for line in json_lines(checked(outcome))}
    if len(last) != workers:
        raise ProgramFailed(f"{len(last)} of {workers} workers have reported")
    return list(last.values())


def compare_with_cpu(machine, table, options, name, flags):
    two = ["--workers=2", "--servers=2", *flags]
    on_gpu = train(machine, options, name + "_gpu", [*two, "--device=cuda:0"])
    table.add(f"{name}: replicas equal", on_gpu["replicas_equal"], "", ("=", True))
    on_cpu = train(machine, options, name + "_cpu", [*two, "--device=cpu"])
    accuracies = [report["test_accuracy"] for report in (on_gpu, on_cpu)]
    table.add(f"{name}: accuracy, difference from the CPU's", abs(accuracies[0] - accuracies[1]),
              "", ("<=", 0.02), f"{accuracies[0]:.4f} on the GPU, {accuracies[1]:.4f} on the CPU")


def compare_speed(machine, table, options):
    """Compares the speeds of jobs with one worker, because several workers on one GPU take
    turns."""
    rates = [train(machine, options, "one_" + device, [f"--device={device}"])["images_per_second"]
             for device in ("cuda:0", "cpu")]
    table.add("one worker: rate against the CPU's", rates[0] / rates[1], "times", (">=", 1),
              f"{rates[0]:.0f} and {rates[1]:.0f} images/s", speed=True)


def share_four(machine, table, options):
    report = train(machine, options, "four",
                   ["--workers=4", "--servers=2", "--device=cuda:0"])
    table.add("4 workers on one GPU: replicas equal", report["replicas_equal"], "", ("=", True),
              f"accuracy {report['test_accuracy']:.4f}, "
              f"{report['images_per_second']:.0f} images/s")


def repeat_factor_job(machine, table, options):
    flags = ["--workers=2", "--servers=2", "--scheme=factor", "--optimizer=worker",
             "--deterministic", "--model=mlp", "--limit=2000", "--device=cuda:0"]
    sums = [train(machine, options, f"repeat_{run}", flags)["workers"][0]["parameter_checksum"]
            for run in (1, 2)]
    table.add("two runs of one factor job: equal bits", sums[0] == sums[1], "", ("=", True),
              f"checksums {sums[0]} and {sums[1]}")


def trace_copies(machine, table, options):
    """Adds the percent of the time of copies in which the GPU computed."""
    path = os.path.join(options.out, "trace.json")
    small = ["--model=mlp", "--limit=2000"] if options.emulated else ["--limit=4000"]
    run_workers(machine, 1, [], [*small, "--epochs=1", "--device=cuda:0", f"--trace={path}"])
    spans = {"compute": [], "copy out": [], "copy in": []}
    with open(path, encoding="utf-8") as file:
        for event in json.load(file)["traceEvents"]:
            if event.get("ph") == "X" and event["cat"] in spans:
                spans[event["cat"]].append((event["ts"], event["ts"] + event["dur"]))
    for copy, name, limit in (("copy out", "copies out", (">=", HIDDEN_PERCENT)),
                              ("copy in", "copies in", None)):
        hidden = sum(max(0.0, min(end, to) - max(begin, since))
                     for begin, end in spans[copy] for since, to in spans["compute"])
        total = sum(end - begin for begin, end in spans[copy])
        table.add(f"{name} beside computing", 100 * hidden / total, "%", limit, speed=True)


def run_jobs(machine, table, options):
    before = None if options.emulated else memory_used()
    kinds = [["--optimizer=server"], ["--optimizer=worker"],
             ["--scheme=factor", "--optimizer=worker"],
             ["--scheme=factor", "--optimizer=server"], ["--scheme=ring"], ["--wire=bf16"]]
    for flags in kinds[:(2 if options.emulated else 3) if options.quick else None]:
        name = ", ".join(flags).replace("--", "")
        table.guard(name, compare_with_cpu, machine, table, options, name, flags)
    for name, function in (("one worker", compare_speed), ("4 workers on one GPU", share_four),
                           ("two runs of one factor job", repeat_factor_job),
                           ("copies beside computing", trace_copies)):
        table.guard(name, function, machine, table, options)
    after = None if before is None else memory_used()
    if after is None:
        table.skip("memory left behind on the GPU", "the driver does not say it")
    else:
        table.add("memory left behind on the GPU", after - before, "MiB", ("<=", 2))


def write_times(machine, model, seconds, path):
    """Writes the times of a model's layers. Their sum is `seconds`. The share of a layer is its
    share of the floating-point operations. A backward takes twice as long as a forward."""
    plan = checked(machine.run(
        [machine.program("server/admin/nereusctl"), "plan", f"--model={model}", "--batch=64",
         "--workers=2", "--bandwidth=10Gbit", "--latency=20us", f"--compute={seconds}s",
         "--json"], 30))
    layers = json.JSONDecoder().raw_decode(plan[plan.index("{\n"):])[0]["layers"]
    work = [layer["m"] * layer["n"] * layer["k"] if layer["kind"] in ("conv", "fc") else 0
            for layer in layers]
    times = [{"name": layer["name"], "forward_seconds": seconds * part / sum(work) / 3,
              "backward_seconds": seconds * part / sum(work) * 2 / 3}
             for layer, part in zip(layers, work)]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"layers": times}, file)


def replay(machine, table, options, name):
    """Replays a model on the CPU and on the GPU, with each kind of job. Several workers on one
    GPU take turns, so the times of one worker alone are judged."""
    model, seconds, steps = name, MODELS[name][0], 12 if options.quick else 30
    if options.emulated:
        model, seconds = os.path.join(options.out, f"{name}_small.csv"), 0.004
        with open(model, "w", encoding="utf-8") as file:
            file.write(SMALL_MODEL)
    times = os.path.join(options.out, f"{name}_times.json")
    write_times(machine, model, seconds, times)
    flags = [f"--model={model}", "--batch=64", f"--replay={times}", f"--steps={steps}"]
    kinds = [("1 worker", 1, ["--scheme=server"])]
    if not options.quick:
        kinds += [("2 workers", 2, ["--scheme=server"]),
                  ("2 workers, bf16", 2, ["--scheme=server", "--wire=bf16"]),
                  ("2 workers, optimizer=worker", 2, ["--scheme=server", "--optimizer=worker"]),
                  ("2 workers, auto", 2, ["--scheme=auto", "--cost=bytes"])]
    for label, workers, job_flags in kinds:
        step_ms = []
        for device in ("cpu", "cuda:0"):
            results = run_workers(machine, workers, job_flags, [*flags, f"--device={device}"])
            step_ms.append(1e3 * statistics.median(
                second for result in results for second in result["step_seconds"][4:]))
            table.add(f"{name}, {label}: step on the {device}", step_ms[-1], "ms")
        judged = workers == 1
        table.add(f"{name}, {label}: GPU minus CPU", step_ms[1] - step_ms[0], "ms",
                  ("<=", MODELS[name][1]) if judged else None, speed=True)
        copies = results[0]["copies"]
        table.add(f"{name}, {label}: copies out beside computing",
                  100 * copies["hidden_share_out"], "%",
                  (">=", HIDDEN_OUT_PERCENT) if judged else None,
                  f"{copies['bytes_out_per_step']:.0f} bytes a step", speed=True)


def run_replays(machine, table, options):
    for name in MODELS:
        table.guard(name, replay, machine, table, options, name)


STEPS = {"ceilings": run_ceilings, "kernels": run_kernels, "client": run_clients,
         "sanitizers": run_sanitizers, "jobs": run_jobs, "replay": run_replays}


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="first_run.sh", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true",
                        help="a selection of the steps' programs, within 8 minutes")
    parser.add_argument("--emulated", action="store_true",
                        help="run the emulated programs; speeds are not judged")
    parser.add_argument("--only", action="append", choices=list(STEPS),
                        help="run only this step; repeatable")
    parser.add_argument("--data", metavar="FOLDER", default="",
                        help="folder with the files of MNIST, for whole jobs; without it, "
                        "images are generated")
    parser.add_argument("--timeout-factor", metavar="X", type=float, default=1.0,
                        help="multiply the timeouts of all programs, for a slow machine")
    parser.add_argument("--out", metavar="FOLDER", default="first_run_results",
                        help="folder for the results")
    return parser.parse_args()


def main():
    options = parse_arguments()
    options.out = os.path.abspath(options.out)
    options.data = os.path.abspath(options.data) if options.data else ""
    os.makedirs(options.out, exist_ok=True)
    machine = Machine(options)
    table = Table(options, machine.describe())
    for step, function in STEPS.items():
        if options.only and step not in options.only:
            continue
        table.step = step
        if machine.why_no_gpu:
            table.skip("all", "no GPU: " + machine.why_no_gpu)
        else:
            table.guard("rest of the step", function, machine, table, options)
    table.finish()
    return 1 if table.count("fail") else 0


if __name__ == "__main__":
    sys.exit(main())
