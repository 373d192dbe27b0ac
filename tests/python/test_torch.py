"""nereus.torch in real jobs of `nereusctl run`. The workers run torch_programs.py."""

import os
import re
import subprocess

import pytest

from jobs import HERE, equal_lines, run  # pylint: disable=unused-import

torch = pytest.importorskip("torch")
import torch_programs  # pylint: disable=wrong-import-position
from torch_scenarios import SCENARIOS  # pylint: disable=wrong-import-position

PROGRAM = os.path.join(HERE, "torch_programs.py")
# Largest relative difference between the parameters of a job and of one process with the
# batches of all workers.
TOLERANCE = 1e-5


@pytest.fixture
def train(run, tmp_path):
    """Runs a program in a job, and returns the job and its parameters. All workers must have
    the same bits."""
    def train_job(*program, workers=2, flags=()):
        job = run(PROGRAM, *program, workers=workers, flags=flags)
        assert equal_lines(job).startswith("checksum "), job.text
        return job, torch.load(tmp_path / "parameters")

    return train_job


def difference(found, expected):
    return max(float(torch.linalg.norm(one - other) / torch.linalg.norm(other))
               for one, other in zip(found, expected))


@pytest.mark.parametrize("scheme, workers", [("server", 2), ("ring", 2), ("factor", 2),
                                             ("auto", 4)])
@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_parameters_equal_those_of_one_process(train, model, scheme, workers):
    job, found = train("train", model, workers=workers, flags=(f"--scheme={scheme}",))
    assert difference(found, torch_programs.alone(model)) < TOLERANCE
    if scheme != "auto":
        factors = re.search(r"'scheme': 'factor'", job.text)
        assert bool(factors) == (scheme == "factor" and model != "cnn"), job.text


@pytest.mark.parametrize("scheme", ["server", "factor"])
def test_a_loss_scale_changes_no_parameter(train, scheme):
    _, found = train("train", "mlp", flags=(f"--scheme={scheme}", "--loss-scale=dynamic",
                                            "--nan=skip"))
    assert difference(found, torch_programs.alone("mlp")) < TOLERANCE


@pytest.mark.parametrize("model, optimizer, scheme, workers", [
    ("mlp", "adam", "factor", 2), ("mlp", "sgd", "ring", 2), ("transformer", "sgd", "server", 4),
    ("cnn", "adam", "auto", 2)])
def test_updates_in_the_next_forward_equal_one_process(train, model, optimizer, scheme,
                                                       workers):
    _, found = train("train", model, optimizer, "dear", workers=workers,
                     flags=(f"--scheme={scheme}",))
    assert difference(found, torch_programs.alone(model, optimizer)) < TOLERANCE


def test_a_step_with_more_rows_is_told_once(train):
    job, _ = train("scenario", "more rows", flags=("--scheme=factor",))
    told = re.findall(r"layer second.weight has 8 rows in this step, more than the 4 .*"
                      r"pass rows=\{'second.weight': 8\}", job.text)
    assert len(told) == 2, job.text  # One of each worker.


def test_adam_equals_one_process(train):
    _, found = train("train", "mlp", "adam")
    assert difference(found, torch_programs.alone("mlp", "adam")) < TOLERANCE


# Layers without factors go by servers under both schemes.
@pytest.mark.parametrize("name, scheme", [
    (name, scheme) for name, scenario in SCENARIOS.items() for scheme in ("factor", "server")
    if scheme == "factor" or scenario.factors])
def test_a_training_loop_works_as_it_is(train, name, scheme):
    job, found = train("scenario", name, flags=(f"--scheme={scheme}",))
    tolerance = {"autocast": 5e-3, "bfloat16": 5e-3}.get(name, TOLERANCE)
    assert difference(found, torch_programs.scenario_alone(name, 2)) < tolerance
    assert f"factors {SCENARIOS[name].factors}" in job.text


# A worker that joins gets momentum, moments and counters of the others. Otherwise the job fails at
# its end, because replicas differ.
@pytest.mark.parametrize("arguments", [
    ("sgd",), ("adam",), ("adam", "dear"), ("adam", "", "SIGTERM"), ("adam", "dear", "SIGTERM"),
    ("adam", "", "SIGKILL", "bfloat16"), ("sgd", "dear", "SIGKILL", "bfloat16")])
def test_a_killed_worker_comes_back_and_replicas_stay_equal(run, arguments):
    job = run(PROGRAM, "killed", *arguments, flags=("--min-workers=2",))
    assert equal_lines(job).startswith("killed True checksum "), job.text
    assert "lr=" in job.text and "in the job, which counts" in job.text  # Of the scheduler.


def test_a_worker_that_comes_back_without_the_state_of_its_optimizer_is_refused(run):
    job = run(PROGRAM, "killed", "row-wise", flags=("--min-workers=2", "--restarts=1"), code=None)
    assert job.code != 0
    assert re.search("ModelMismatch: the job is at step [78], and the state of RowWise is not "
                     "known, so that this worker cannot get it", job.text), job.text


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="this torch has no torch.compile")
@pytest.mark.parametrize("overlap", ["", "dear"])
def test_a_compiled_model_equals_one_process(train, overlap):
    job, found = train("compiled", overlap)
    assert difference(found, torch_programs.compiled_alone()) < TOLERANCE
    assert ("reasons {'torch.compile has compiled it, or its weight was used outside of its "
            "module'}") in job.text


@pytest.mark.parametrize("program", [("train", "mlp"), ("train", "cnn"), ("statistics",)])
def test_an_exported_checkpoint_is_loaded_into_a_new_model(train, nereusctl, tmp_path, program):
    folder, file = tmp_path / "checkpoints", tmp_path / "model.safetensors"
    _, found = train(*program, flags=(f"--checkpoint-dir={folder}",))
    subprocess.run([nereusctl, "export", str(folder), f"--out={file}"], check=True,
                   capture_output=True)
    if program == ("statistics",):
        model = torch_programs.make_statistics_model()
    else:
        model = torch_programs.make_model(program[1])
    torch_programs.nt.load_exported(model, file)
    loaded = ([model[1].running_mean, model[1].running_var] if program == ("statistics",)
              else list(model.parameters()))
    assert len(loaded) == len(found)
    assert all(torch.equal(one.cpu(), other) for one, other in zip(loaded, found))


def test_statistics_of_batch_norm_are_equal_on_all_workers(train):
    _, found = train("statistics")
    means, variances = found
    assert float(means.abs().min()) > 0 and float((variances - 1).abs().min()) > 0


# DDP carries its buckets by Nereus. With factorize, Linears are not DDP's.
@pytest.mark.parametrize("model, scheme, workers, ways", [
    ("mlp", "auto", 2, ()), ("cnn", "ring", 2, ("view",)), ("transformer", "server", 4, ()),
    ("mlp", "factor", 2, ("factorize",)), ("transformer", "factor", 2, ("factorize", "view")),
    ("mlp", "auto", 2, ("accumulate",))])
def test_a_hook_of_ddp_equals_one_process(train, model, scheme, workers, ways):
    job, found = train("ddp", model, *ways, workers=workers, flags=(f"--scheme={scheme}",))
    assert difference(found, torch_programs.alone(model)) < TOLERANCE
    assert ("factor" in re.search(r"ways (.*)", job.text)[1]) == ("factorize" in ways)


def test_functions_over_all_workers(run):
    job = run(PROGRAM, "functions")
    assert job.lines[0] == job.lines[1] == [
        "[0, 1] [[1, None, 'ä'], [1, None, 'ä']] True", "1.0 {'loss': 1.0, 'right': 0.5}",
        "'much' is no number: average takes a number, or a dict of numbers",
        "a value is of type Tensor: values are None, numbers, texts, bytes, lists, tuples and "
        "dicts; a tensor is sent as tensor.tolist()"]


def test_functions_work_before_there_is_a_model_and_ranks_stay(run):
    job = run(PROGRAM, "before_the_model", workers=3)
    assert job.lines == [["{'seed': 0} [0, 1, 2] 2.0", "0.0 [('own', 0), ('own', 1), ('own', 2)]",
                          "True [0, 1, 2]"]] * 3, job.text


@pytest.mark.parametrize("case", ["none", "exit"])
def test_a_program_that_ends_without_shutdown_has_left_its_job(run, case):
    job = run(PROGRAM, "left_out", case)
    assert equal_lines(job).startswith("all steps done"), job.text
    assert "is finished after step 2" in job.text and "died" not in job.text, job.text


def test_an_error_of_the_program_is_the_last_that_it_says(run):
    job = run(PROGRAM, "left_out", "error", code=None, flags=("--restarts=0",))
    assert job.code != 0
    worker = [line for lines in job.lines for line in lines] + re.findall(
        r"^\[worker-1\] (.*)$", job.text, re.M)
    assert worker[-1] == "ValueError: an error of the program", job.text


def test_a_second_training_in_one_process_is_an_error_at_once(run):
    job = run(PROGRAM, "left_out", "twice", code=None, flags=("--restarts=0",))
    assert job.code != 0 and "JobFinished: this process has left its job" in job.text, job.text


def test_a_process_without_a_coordinator_trains_alone(tmp_path, monkeypatch):
    for variable in ("NEREUS_COORDINATOR", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NEREUS_LOCAL_RANK", "0")
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    torch_programs.train("mlp")
    torch_programs.nt.init()
    assert torch_programs.nt.average({"loss": 2}) == {"loss": 2.0}
    assert torch_programs.nt.broadcast_object(("a",)) == ("a",)
    torch_programs.nt.shutdown()
    assert difference(torch.load(tmp_path / "parameters"),
                      torch_programs.alone("mlp")) < TOLERANCE


@pytest.mark.parametrize("case, message", [
    ("type", r"parameter .*first.weight has values of type torch.float64, must be torch.float32"),
    ("numbers", r"lr=0\.[12] in parameter group 0 on this worker and 0\.[12] in the job.*"
                r"give the optimizers of all workers the same"),
    ("moved", r"parameter \S+ has shape .*torch.bfloat16.*torch.float32.* before you wrap"),
    ("set", r"the gradient of parameter first.weight was set or changed.*synchronize\(\)"),
    ("alone", r"replicas differ after step \d.*first.weight"),
    ("buffers", r"the buffers noise of the model have other values.*torch.manual_seed"),
    ("twice", r"this process has a DistributedOptimizer already"),
    ("added", r"add_param_group came after the optimizer was wrapped"),
    ("checkpointed twice", r"the gradient of parameter \S+ came a second time in one backward "
                           r"pass.*use_reentrant=False"),
    ("model", r"layer \d of worker \d is "),
])
def test_errors_say_what_to_do(run, case, message):
    job = run(PROGRAM, "mistake", case, code=None, flags=("--scheme=factor",
                                                          "--restarts=0"))
    assert job.code != 0
    assert re.search(message, job.text), job.text
