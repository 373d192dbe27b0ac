"""nereus.Client in real jobs of `nereusctl run`. The workers run programs.py."""

import os
import re
import subprocess
import time

import pytest

import nereus
from jobs import HERE, equal_lines, run  # pylint: disable=unused-import


@pytest.mark.parametrize("kind", ["array", "numpy", "torch"])
def test_two_workers_learn_the_same_line(run, kind):
    if kind != "array":
        pytest.importorskip(kind)
    assert equal_lines(run("train", kind)).startswith("y = 3.00 x + 1.00, bits ")


def test_the_example_learns_its_line(run, root):
    pytest.importorskip("numpy")
    job = run(os.path.join(root, "worker/python/examples/own_loop.py"))
    assert equal_lines(job) == "y = 3.00 x + 1.00"


def test_a_job_with_a_loss_scale_refuses_a_loop_without_it(run):
    job = run("train", code=None,
              flags=("--loss-scale=dynamic", "--nan=skip", "--restarts=0"))
    assert job.code != 0
    assert "does not multiply its loss by the loss scale" in job.text, job.text


@pytest.mark.parametrize("means_apart", ["", "apart"])
@pytest.mark.parametrize("scheme", ["server", "ring"])
def test_the_worker_may_run_the_optimizer(run, scheme, means_apart):
    job = run("own_optimizer", means_apart, flags=(f"--scheme={scheme}",))
    assert equal_lines(job).startswith("y = 3.00 x + 1.00, bits ")


@pytest.mark.parametrize("scheme", ["server", "ring"])
def test_a_worker_that_changes_a_parameter_by_hand_is_named_within_seconds(run, scheme):
    job = run("meddle", workers=3, code=None, flags=(f"--scheme={scheme}", "--restarts=0"))
    ended_at = time.time()
    assert job.code != 0
    assert ended_at - float(job.lines[1][0].rsplit(maxsplit=1)[1]) < 5, job.text
    found = re.search(r"replicas differ after step (\d+): sampled parameters of layer line .*"
                      r": worker (\S+) deviates from the other workers", job.text)
    assert found, job.text
    assert 49 <= int(found[1]) < 1000, job.text
    assert found[2] == "1", job.text


@pytest.mark.parametrize("scheme, takes", [("factor", True), ("server", False)])
def test_factors_are_pushed_whatever_the_plan(run, scheme, takes):
    pytest.importorskip("numpy")
    job = run("factors", flags=(f"--scheme={scheme}",))
    assert equal_lines(job).startswith("error 0.00, bits ")
    assert set(job.lines[0][:-1]) == {f"takes {takes}"}


def test_the_job_learns_rows_and_loses_factors(run):
    pytest.importorskip("numpy")
    job = run("learnt_rows", flags=("--scheme=factor",))
    assert equal_lines(job).startswith("error 0.00, bits ")
    # The larger batch counts.
    assert job.lines[0][:-1] == ["step 0 rows 0", "step 1 rows 4",
                                 "step later rows 0"]


def test_report_and_checkpoint(run):
    job = run("report", workers=1)
    assert job.lines[0][0] == "line nereus.Client(job='default', name='0')"
    assert re.match(r"NereusError .*--checkpoint-dir", job.lines[0][1])


def test_workers_take_turns_at_a_shared_device(run, tmp_path, nereusctl, monkeypatch):
    monkeypatch.setenv("NEREUSCTL", nereusctl)
    share = tmp_path / "share"
    job = run("turns", flags=(f"--share={share}", "--share-weight=2"))
    for worker, lines in enumerate(job.lines):
        assert lines[:2] == ["has the turn", f"default {worker} has the turn 2.0"]
        assert lines[2].startswith("resident_bytes is -1, must be from 0 to")
        assert lines[3] == "has it in a step"
        assert "the turn is taken already" in lines[4]
    shown = subprocess.run([nereusctl, "share", share], capture_output=True, text=True,
                           check=True).stdout
    assert shown == "".join(f"device {share}/{worker}: no job shares it now\n"
                            for worker in range(2))
    assert sorted(path.name for path in share.iterdir()) == ["0", "1"]
    assert (share / "0" / "board").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_may_enter_is_no_shared_device(run, tmp_path):
    (tmp_path / "share" / "0").mkdir(parents=True, mode=0o755)
    job = run("turns", workers=1, flags=(f"--share={tmp_path / 'share'}", "--restarts=0"),
              code=None)
    assert job.code != 0
    assert re.search(r"share/0 has mode 0755, must have 0700", job.text), job.text


def test_workers_gather_values(run):
    job = run("gather")
    for lines in job.lines:
        assert lines[:4] == ["first ['00ff00', '00ff01'] ['', '']",
                             *(f"0 in {step}, 1 in {step}" for step in range(3))]
    for lines in job.lines:
        assert lines[4].startswith("InvalidArgument the value has 65537 bytes, must be at most")
        assert lines[5] == "InvalidArgument value is str, must be bytes"
        assert lines[-1] == "[b'last', b'last']"
    assert job.lines[0][6].startswith("gather has not ended within 0.01 s")


@pytest.mark.parametrize("where", ["connect", "wait", "wait_all", "wait_forward", "leave"])
def test_ctrl_c_ends_a_wait_soon(run, where):
    job = run("interrupted", where, code=None, flags=("--restarts=0",))
    assert job.lines[0] == ["stopped soon: True"], job.text


def test_a_worker_leaves_early_after_sigterm_and_comes_back(run):
    job = run("terminated", flags=("--min-workers=1",))
    assert equal_lines(job).startswith("terminated True, bits "), job.text
    assert "worker 1 left early, after step 4" in job.text or "exited with code 143" in job.text


def test_a_timeout_names_what_is_missing(run):
    job = run("timeouts")
    assert re.match(r"stalled in time: True; wait for layer line has not ended within 0.3 s; "
                    r".*missing: ", job.lines[0][0])


def test_a_forked_child_gets_errors_and_the_parent_goes_on(run):
    job = run("forked", workers=1)
    lines = job.lines[0]
    assert len(lines) == 6 and all(
        re.match("child: this process was forked from a process with a nereus.Client.*"
                 "spawn", line) for line in lines[:3])
    assert lines[3:] == ["child: closed", "child's code 0", "parent: done"]


def test_layers_that_differ_name_the_first(run):
    job = run("mismatch", "layer", code=None, flags=("--restarts=0",))
    text = "\n".join(sum(job.lines, []))
    assert re.search(r"mismatch: .*second", text), job.text
    assert "third" not in text


def test_settings_that_differ_are_named_with_both_values(run):
    job = run("mismatch", "setting", code=None, flags=("--restarts=0",))
    text = "\n".join(sum(job.lines, []))
    assert re.search(r"mismatch: .*batch", text), job.text
    assert "4" in text and "8" in text


def test_closing_twice_is_allowed_and_later_calls_are_errors(run):
    job = run("closed", workers=1)
    assert job.lines[0] == ["after close: the client was closed"] * 5


def test_close_ends_the_wait_of_another_thread(run):
    job = run("closed_by_another_thread", code=None, flags=("--restarts=0",))
    assert re.fullmatch(r"\['.*closed.*'\] soon: True", job.lines[0][0]), job.text


def test_wrong_calls_say_what_is_wrong_and_the_job_goes_on(run):
    lines = run("wrong_calls", workers=1).lines[0]
    assert lines[:4] == [
        "InvalidArgument: there is no layer lime; the model has line",
        "InvalidArgument: there is no layer 1: the model has 1 layers, numbered from 0",
        "InvalidArgument: the gradient of layer line has 1 values (shape (1,)), must have 2",
        "InvalidArgument: the gradient of layer line has values of type 'd', must be float32"]
    assert re.match("InvalidArgument: .*7", lines[4])
    assert re.match("NereusError: .*--optimizer=server", lines[5])


@pytest.mark.parametrize("how", ["exception", "end"])
def test_a_process_that_ends_with_an_open_client_has_not_left(run, how):
    code = 1 if how == "exception" else None
    job = run("without_leave", how, code=code, flags=("--log-level=info", "--restarts=0"))
    # An error of the program is the last that it says.
    said = "nereus.Client(job='default', name='1') was never closed" in job.text
    assert said == (how == "end")
    assert " left after its last step" not in job.text
    assert "job default is finished" not in job.text


def test_a_dropped_client_is_closed_with_a_warning(run):
    job = run("without_leave", "dropped", workers=1, code=None, flags=("--restarts=0",))
    assert re.fullmatch(r"nereus WARNING nereus.Client\(.*\) was never closed.*",
                        job.lines[0][0])
    assert job.lines[0][1] == "dropped"


def test_an_exception_closes_the_client_and_comes_out(run):
    job = run("exception", workers=1, code=None, flags=("--restarts=0",))
    assert job.lines[0] == ["of the caller True"]


def test_abort_ends_the_job_for_all_with_its_reason(run):
    job = run("aborted", code=None, flags=("--restarts=0",))
    assert job.lines[0] == ["aborted"], job.text
    assert re.match("NereusError .*the data is wrong", job.lines[1][0]), job.text


def test_lines_of_the_library_are_records_of_logging(run):
    lines = run("logged", workers=1).lines[0]
    assert any(line.startswith("nereus INFO ") for line in lines)
    assert all(line.startswith(("nereus ", "y = ")) for line in lines), lines


def test_no_coordinator_is_an_error_of_its_own(run):
    job = run("unreachable", workers=1, code=None, flags=("--restarts=0",))
    assert re.match(r"Unreachable: .*127\.0\.0\.1:1", job.lines[0][0])


def test_a_layer_on_a_gpu_needs_the_library_for_gpus(run):
    pytest.importorskip("numpy")
    job = run("cuda", workers=1, code=None, flags=("--restarts=0",))
    assert re.match(r"NereusError: .*load libnereus_cuda.so", job.lines[0][0]), job.text


@pytest.mark.parametrize("layers, text", [
    ([], "layers has no layer, must have at least 1"),
    (["line"], r"layers\[0\] is 'line', must be a nereus.Layer"),
    ([nereus.Layer("x", "dense", bytearray(4))], "layer x has the kind 'dense', must be"),
    ([nereus.Layer("x", "vector", bytearray(4))], "parameters of layer x has values of"),
    ([nereus.Layer("x", "vector", memoryview(bytearray(8)).cast("f"), m=1)],
     "layer x has m = 1 and n = None, must have both or none"),
    ([nereus.Layer("x", "vector", memoryview(bytearray(8)).cast("f"),
                   state=memoryview(bytearray(12)).cast("f"))],
     "state of layer x has 3 values, must have a multiple of its 2 parameters")])
def test_wrong_layers_are_named(layers, text):
    with pytest.raises(nereus.InvalidArgument, match=text):
        nereus.Client(layers, coordinator="127.0.0.1:1")


def test_a_matrix_is_that_of_the_array():
    numpy = pytest.importorskip("numpy")
    from nereus.layer import BoundLayer
    for shape, m, n in (((6,), 1, 6), ((2, 3), 2, 3), ((2, 3, 4), 2, 12), ((), 1, 1)):
        struct = BoundLayer(0, nereus.Layer("x", "vector",
                                            numpy.zeros(shape, numpy.float32))).struct
        assert (struct.m, struct.n) == (m, n)
