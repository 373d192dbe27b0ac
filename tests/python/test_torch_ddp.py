"""DistributedDataParallel in all its modes with Nereus's hook, in real jobs."""

import os
import re

import pytest

from jobs import HERE, equal_lines, run  # pylint: disable=unused-import

torch = pytest.importorskip("torch")
import torch_ddp_programs  # pylint: disable=wrong-import-position

PROGRAM = os.path.join(HERE, "torch_ddp_programs.py")


@pytest.mark.parametrize("form", torch_ddp_programs.FORMS)
def test_ddp_in_each_mode_equals_one_process(run, tmp_path, form):
    scheme = "factor" if "factorized" in form else "auto"
    job = run(PROGRAM, form, flags=(f"--scheme={scheme}",))
    assert equal_lines(job).startswith("checksum "), job.text
    for one, other in zip(torch.load(tmp_path / "parameters"), torch_ddp_programs.alone(form)):
        assert float((one - other).norm() / other.norm()) < 1e-5
    assert ("factor" in re.search("schemes (.*)", job.text)[1]) == ("factorized" in form)


@pytest.mark.parametrize("case, text", [
    ("two states", "this process has a DistributedOptimizer already"),
    ("one state", "in a bucket of DDP is not one of the module of CommHookState"),
    ("no state", "the state of comm_hook is NoneType, must be a nereus.torch.CommHookState")])
def test_what_the_hook_cannot_do_is_refused_by_name(run, case, text):
    job = run(PROGRAM, "mistake", case, code=None, flags=("--restarts=0",))
    assert job.code != 0 and re.search(text, job.text), job.text
