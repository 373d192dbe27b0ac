#!/usr/bin/env python3
"""Runs all tests and measurements of Nereus that need a GPU, once.

  tests/gpu/first_run.sh                      in a bundle (tests/gpu/bundle.sh), 40 minutes
  tests/gpu/first_run.sh --quick              the same in 8 minutes
  tests/gpu/first_run.sh --quick --emulated   the script itself, without a GPU

The machine needs Python 3, a driver, and cuBLAS 13 in Python's packages or in a toolkit.
The steps: limits of the machine (gpu_ceilings), kernels, tests of the client,
compute-sanitizer, whole jobs, replays of ResNet-50 and VGG19, experiments. Each program has
a timeout. After a failure the script goes on. It leaves three files in the folder of --out:

  first_run.md     the table: step, value, unit, threshold, and pass, fail, skipped, or
                   noted for a value without a threshold
  first_run.json   the same
  first_run.log    the output of all programs

Without a GPU the table says what was skipped, and why. Exits with 0 if no row failed, with 1
if a row failed, and with 2 for a wrong command line.
"""

import argparse
import os
import platform
import signal
import sys
import traceback

import first_run_machine
from first_run_jobs import (EXPERIMENT_PARTS, JOB_PARTS, REPLAY_PARTS, run_experiments,
                            run_jobs, run_replays)
from first_run_machine import Machine, OutOfTime
from first_run_programs import (CEILING_PARTS, CLIENT_PARTS, KERNEL_PARTS, SANITIZER_PARTS,
                                run_ceilings, run_clients, run_kernels, run_sanitizers)
from first_run_table import Table

# Seconds that a run may take. They are less than 40 and 8 minutes, because programs take a while
# to end after a timeout.
LIMIT_S = 2340
QUICK_LIMIT_S = 450

# Name and function of each step, and the names of the rows that are skipped without a GPU.
STEPS = [
    ("ceilings", run_ceilings, CEILING_PARTS),
    ("kernels", run_kernels, KERNEL_PARTS),
    ("client", run_clients, CLIENT_PARTS),
    ("sanitizers", run_sanitizers, SANITIZER_PARTS),
    ("jobs", run_jobs, JOB_PARTS),
    ("replay", run_replays, REPLAY_PARTS),
    ("experiments", run_experiments, EXPERIMENT_PARTS),
]


def describe(machine, table, why_not):
    """Notes facts about the machine above the table, because values depend on them."""
    facts = table.machine
    facts["GPU"] = "emulated" if machine.emulated else why_not or "there is one"
    facts["cuBLAS 13"] = ("emulated" if machine.emulated else
                          machine.cublas or "not found: factor products cannot run")
    facts["CPU cores"] = str(os.cpu_count())
    facts["system"] = platform.platform()
    if machine.emulated or why_not:
        return
    asked = machine.run(
        ["nvidia-smi", "--query-gpu=name,driver_version,pcie.link.gen.current,"
         "pcie.link.gen.max,pcie.link.width.current,memory.total,compute_mode",
         "--format=csv,noheader"], 60)
    if asked.code == 0:
        lines = [line for line in asked.output.split("\n") if line.count(",") >= 6]
        facts["GPU"] = "; ".join(lines[:8])


def run_step(machine, table, step, why_not, options):
    name, function, parts = step
    if why_not:
        for part in parts:
            table.skip(name, part, "no GPU: " + why_not)
        return
    machine.note(f"\n===== step {name}")
    try:
        function(machine, table, options)
    except OutOfTime:
        table.skip(name, "rest of the step", "the time of the whole run is over")
    except Exception as error:  # pylint: disable=broad-except
        # The script has a defect, or does not expect a program's output. The later steps can
        # still give values.
        machine.note(traceback.format_exc())
        table.fail(name, "script", f"{type(error).__name__}: {error}; see first_run.log")


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="first_run.sh", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true",
                        help="a selection of the steps' programs, within 8 minutes")
    parser.add_argument("--emulated", action="store_true",
                        help="run the emulated programs; speeds are not judged")
    parser.add_argument("--only", action="append", choices=[step[0] for step in STEPS],
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
    # SIGTERM raises an exception, so that the table is written even then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    why_not = "" if options.emulated else first_run_machine.why_no_gpu()
    table = Table(options.out, options.emulated, options.quick)
    machine = Machine(options.out, options.emulated,
                      QUICK_LIMIT_S if options.quick else LIMIT_S,
                      options.timeout_factor)
    try:
        describe(machine, table, why_not)
        for step in STEPS:
            if not options.only or step[0] in options.only:
                run_step(machine, table, step, why_not, options)
    finally:
        machine.stop_all()
        table.finish()
    return 1 if table.count("fail") else 0


if __name__ == "__main__":
    sys.exit(main())
