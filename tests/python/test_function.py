"""nereus.run: functions as the workers of a job."""

import os
import subprocess
import sys

import functions
import nereus
import pytest

FLAGS = ["--optimizer=server", "--update=sgd", "--learning-rate=1", "--momentum=0",
         "--weight-decay=0"]


@pytest.fixture(autouse=True)
def programs(monkeypatch, library_path, nereusctl):
    folder = os.path.dirname(nereusctl)
    monkeypatch.setenv("PATH", folder + os.pathsep + os.environ["PATH"])


def test_a_function_returns_from_each_worker():
    assert nereus.run(functions.train_a_step, np=3) == [0, 1, 2]


def test_functions_that_do_not_join_the_job_are_an_error(capsys):
    with pytest.raises(nereus.NereusError, match="ended with code 1"):
        nereus.run(functions.local_rank, np=2)
    assert "the job is not finished: they did not join it" in capsys.readouterr().out


def test_workers_train_together():
    results = nereus.run(functions.train, (4,), {"rate": 2.0}, np=2, flags=FLAGS)
    assert results == [-12.0, -12.0]


def test_lines_of_workers_are_printed(capsys):
    nereus.run(functions.greet, np=2)
    printed = capsys.readouterr().out
    assert "[worker-0] hello of the function" in printed
    assert "[worker-1] hello of the function" in printed


def test_the_error_has_the_traceback_of_the_worker_that_failed():
    with pytest.raises(nereus.NereusError, match="ValueError: worker 1 does not like it"):
        nereus.run(functions.fail_on_one, np=2)


def test_a_function_that_cannot_be_pickled_is_refused():
    with pytest.raises(nereus.InvalidArgument, match="cannot be sent to the workers"):
        nereus.run(open(os.devnull).read)  # pylint: disable=consider-using-with


def test_a_function_that_ends_its_process_returns_nothing():
    with pytest.raises(nereus.NereusError, match="ended worker 0's process, by sys.exit"):
        nereus.run(functions.leave_early, np=1)


@pytest.mark.parametrize("arguments", [{"np": 0}, {"np": "2"}, {"flags": "--learning-rate=1"}])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(nereus.InvalidArgument):
        nereus.run(functions.local_rank, **arguments)


def test_functions_of_the_main_program_need_cloudpickle(root):
    program = ("import sys; sys.modules['cloudpickle'] = None\n"
               "import nereus\n"
               "def own(): pass\n"
               "nereus.run(own)\n")
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.path.join(root, "worker", "python")})
    assert "'own' is defined in the main program" in result.stderr, result.stderr
