"""Checks an installation: python3 -m nereus.check.

Prints versions, and runs a small job of two workers through shared memory and over sockets.
Exits with 0 if all works, otherwise with 1 and the reason.
"""

import array
import os
import platform
import subprocess
import sys

from . import Client, Layer, LibraryError, _native, _programs

STEPS = 50
LIMIT_S = 60


def work():
    """Trains as a worker of the job."""
    values, gradient = array.array("f", bytes(4000)), array.array("f", bytes(4000))
    with Client([Layer("check", "vector", values)]) as client:
        while (step := client.begin_step()).step < STEPS:
            gradient[0] = -1.0
            client.push(0, step, gradient)
            client.wait_all(step)
    if not values[0] > 0:
        sys.exit(f"the value after {STEPS} steps is {values[0]}, must be above 0")


def print_versions():
    library = _native.library()
    print(f"Python {platform.python_version()}, {platform.platform()}")
    print(f"libnereus.so {library.nereus_version().decode()}, version "
          f"{library.nereus_abi_version()} of its C interface: {library._name}")
    try:
        import torch
        print(f"torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
    except ImportError:
        print("torch: not installed")


def train(control, shared_memory):
    """Runs the job. Returns the reason why it failed; empty if it did not."""
    flags = ["-np", "2", "--restarts=0", f"--shared-memory={shared_memory}"]
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        result = subprocess.run(
            [control, "run", *flags, "--", sys.executable, "-m", "nereus.check", "--worker"],
            timeout=LIMIT_S, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
    except subprocess.TimeoutExpired as error:
        output = b"".join(filter(None, [error.stdout, error.stderr])).decode(errors="replace")
        return f"the job did not end within {LIMIT_S} seconds\n{output}"
    return "" if result.returncode == 0 else result.stdout + result.stderr


def main():
    if sys.argv[1:] == ["--worker"]:
        work()
        return 0
    if sys.argv[1:]:
        print(__doc__.strip())
        return 0 if sys.argv[1:] in (["--help"], ["-h"]) else 2
    try:
        print_versions()
    except LibraryError as error:
        print(error, file=sys.stderr)
        return 1
    control = _programs.find("nereusctl")
    if control is None:
        print("nereusctl is not on the PATH: a job cannot be tried", file=sys.stderr)
        return 1
    for shared_memory, way in (("auto", "through shared memory"), ("off", "over sockets")):
        failure = train(control, shared_memory)
        if failure:
            print(f"a job {way} failed:\n{failure}", file=sys.stderr)
            return 1
        print(f"a job of two workers {way}: works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
