"""nereus.Lobby in real jobs of `nereusctl run`. The processes run lobby_programs.py."""

import os
import re

import pytest

import nereus
from nereus import _native, errors
from jobs import HERE, equal_lines, run  # pylint: disable=unused-import


def gathered(run, name, **options):
    return run(os.path.join(HERE, "lobby_programs.py"), name, **options)


@pytest.mark.parametrize("count", [2, 3])
def test_processes_gather_and_join_with_their_numbers_as_ranks(run, count):
    job = gathered(run, "gathers", workers=count)
    for lines in job.lines:
        assert lines[0] == str([bytes([0, 255, number]) for number in range(count)])
        assert lines[1] == str([65536 if number == 1 else 0 for number in range(count)])


@pytest.mark.parametrize("count", [2, 3])
def test_a_process_that_is_started_again_gets_what_the_first_one_got(run, count):
    job = gathered(run, "killed", workers=count)
    assert equal_lines(job) == str([f"{when} of {number}".encode() for when in ("first", "second")
                                    for number in range(count)])
    assert (f"a gathering before the job begins waits for process 1 (its connection has ended) "
            f"of {count}") in job.text, job.text


def test_the_answers_outlive_the_coordinator(run):
    job = gathered(run, "coordinator_killed")
    assert equal_lines(job) == str([b"first of 0", b"first of 1", b"second of 0", b"second of 1"])


def test_the_last_value_of_a_process_counts(run):
    assert equal_lines(gathered(run, "killed_while_it_waits")) == "[b'new 0', b'new 1']"


def test_ctrl_c_ends_a_wait_soon(run):
    job = gathered(run, "interrupted", code=None, flags=("--restarts=0",))
    assert job.lines[0] == ["stopped soon: True"], job.text


def test_a_wrong_count_is_named_with_that_of_the_job(run):
    job = gathered(run, "wrong_count", code=None, flags=("--restarts=0",))
    text = "\n".join(sum(job.lines, []))
    assert re.search("NereusError: .*started as one of 3 processes, and job default begins with "
                     "2 workers", text), job.text


def test_wrong_values_are_refused_and_the_lobby_goes_on(run):
    for lines in gathered(run, "wrong_values").lines:
        assert lines == ["value is str, must be bytes",
                         "the value has 65537 bytes, must be at most 65536",
                         "[b'right', b'right']", "the lobby was closed"]


def test_a_timeout_names_the_missing_process_and_the_first_value_counts(run):
    job = gathered(run, "stalled")
    assert re.match(r"gather has not ended within 6 s; .*waits for process 1 of 2",
                    job.lines[0][0]), job.text
    assert equal_lines(job) == "[b'first', b'second']"


def test_close_ends_the_wait_of_another_thread(run):
    job = gathered(run, "closed_by_another_thread", code=None, flags=("--restarts=0",))
    assert job.lines[0] == ["['the lobby was closed'] soon: True"], job.text


def test_a_process_that_has_joined_is_named(run):
    job = gathered(run, "without_the_others", code=None, flags=("--restarts=0",))
    assert job.code != 0
    assert "waits for process 1 (it has joined the job) of 2" in job.text, job.text


def test_no_coordinator_is_an_error_of_its_own(run):
    job = gathered(run, "unreachable", workers=1, code=None, flags=("--restarts=0",))
    assert re.match(r"Unreachable: .*127\.0\.0\.1:1", job.lines[0][0])


def test_a_process_without_a_launcher_is_told_what_to_set(monkeypatch, library_path):
    for variable in [name for name in os.environ if name.startswith("NEREUS_")]:
        if variable != "NEREUS_LIBRARY":
            monkeypatch.delenv(variable)
    with pytest.raises(nereus.InvalidArgument, match="rank of this process: .* NEREUS_RANK"):
        nereus.Lobby(coordinator="h:1")
    with pytest.raises(nereus.InvalidArgument, match="count of this process: .*LOCAL_SIZE"):
        nereus.Lobby(coordinator="h:1", rank=0)
    with pytest.raises(nereus.InvalidArgument, match="rank is 2 of 2 processes"):
        nereus.Lobby(coordinator="h:1", rank=2, count=2)


def test_a_close_just_before_a_call_of_the_library_is_named(library, monkeypatch):
    monkeypatch.setattr(_native, "any_library", lambda: library)
    lobby = nereus.Lobby(count=2, rank=0)

    def gather(*_):
        lobby.close()
        return errors.INVALID_ARGUMENT  # The library knows no lobby that is closed.

    library.functions["nereus_lobby_gather"] = gather
    with pytest.raises(nereus.NereusError, match="^the lobby was closed$"):
        lobby.gather(b"")
