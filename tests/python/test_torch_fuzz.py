"""Random training programs in jobs equal one process (torch_fuzz.py)."""

import os
import re
import subprocess
import sys

import pytest

from conftest import path_of
from jobs import HERE

pytest.importorskip("torch")

PROGRAMS = 200


def fuzz(*arguments):
    path_of("NEREUS_SERVER_BINARY")
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run([os.path.join(HERE, "fuzz.sh"), *arguments], capture_output=True,
                          text=True, env=environment, check=False)


def test_random_programs_equal_one_process():
    done = fuzz(f"--seeds={PROGRAMS}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{PROGRAMS} programs, 0 failed" in done.stdout


# fuzz.sh --break=NAME tries the other ones: docs/testing.md has the figures.
@pytest.mark.parametrize("broken", ["late", "forward"])
def test_a_broken_package_is_found_within_a_few_programs(broken):
    done = fuzz(f"--break={broken}", "--seeds=30")
    assert re.search(f"{broken}: found by program ", done.stdout), done.stdout + done.stderr
