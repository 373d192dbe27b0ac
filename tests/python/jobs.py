"""Jobs of `nereusctl run` for tests: the fixture `run`, and what it returns."""

import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
# Longest time of a job, in seconds. A machine with other work takes 10 s and more to import torch,
# and up to 4 workers of a job import it.
LIMIT_SECONDS = 300


class Job:
    """Job that has ended: its exit code, and the lines of each worker."""

    def __init__(self, nereusctl, root, folder, command, workers, flags):
        environment = {**os.environ, "PYTHONPATH": os.path.join(root, "worker", "python"),
                       "PYTHONUNBUFFERED": "1", "TEST_FOLDER": str(folder)}
        with subprocess.Popen(
                [nereusctl, "run", "-np", str(workers), *flags, "--", sys.executable, *command],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=environment) as process:
            try:
                output, error = process.communicate(timeout=LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()  # nereusctl then ends all processes of the job.
                output, error = process.communicate()
                pytest.fail(f"the job took more than {LIMIT_SECONDS} s:\n{output}{error}")
        self.code = process.returncode
        self.text = output + error
        self.lines = [re.findall(rf"^\[worker-{worker}\] (.*)$", output, re.M)
                      for worker in range(workers)]


@pytest.fixture
def run(nereusctl, root, tmp_path):
    def run_job(*program, workers=2, flags=(), code=0):
        command = program
        if not program[0].endswith(".py"):
            command = (os.path.join(HERE, "programs.py"), *program)
        job = Job(nereusctl, root, tmp_path, command, workers, flags)
        assert code is None or job.code == code, job.text
        return job

    return run_job


def equal_lines(job):
    """Returns the last line of worker 0, after a check that all others have the same."""
    last = [lines[-1] for lines in job.lines]
    assert last == [last[0]] * len(last)
    return last[0]
