"""Jobs of torchrun, mpirun and srun, in which rank 0 starts the server."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from jobs import HERE, LIMIT_SECONDS
from nereus import InvalidArgument, _launcher

VARIABLES = [name for family in _launcher._FAMILIES for name in family if name] + [
    "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NODELIST", "NEREUS_COORDINATOR", "NEREUS_HOST",
    "NEREUS_NAME", "NEREUS_LOCAL_RANK", "NEREUS_LOCAL_SIZE"]


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def set_all(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def held_port(port=0):
    """Returns a socket that holds a port: the kernel gives it to no process that asks for a free
    one. Programs that set SO_REUSEADDR can listen there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", port))
    return held


@pytest.fixture
def master_port():
    """A port that is free, as is the next one."""
    while True:
        with held_port() as first:
            port = first.getsockname()[1]
            try:
                with held_port(port + 1):
                    yield port
                    return
            except (OSError, OverflowError):
                continue


# ---- Variables.

@pytest.mark.parametrize("variables, numbers", [
    ({"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}, [5, 8, 1, 4]),
    ({"OMPI_COMM_WORLD_RANK": 2, "OMPI_COMM_WORLD_SIZE": 4, "OMPI_COMM_WORLD_LOCAL_RANK": 0,
      "OMPI_COMM_WORLD_LOCAL_SIZE": 2}, [2, 4, 0, 2]),
    ({"SLURM_PROCID": 3, "SLURM_STEP_NUM_TASKS": 4, "SLURM_LOCALID": 1}, [3, 4, 1, None]),
    # torchrun within a step of Slurm.
    ({"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "SLURM_PROCID": 1,
      "SLURM_STEP_NUM_TASKS": 3, "SLURM_LOCALID": 0}, [0, 2, 0, 2]),
    ({"SLURM_PROCID": 0, "SLURM_NTASKS": 4}, [None] * 4),  # A script of sbatch.
    ({"RANK": 0, "WORLD_SIZE": 1}, [None] * 4),
    ({}, [None] * 4),
])
def test_numbers_come_from_the_launcher(monkeypatch, variables, numbers):
    set_all(monkeypatch, **variables)
    assert [_launcher.number(position) for position in range(4)] == numbers


def test_a_variable_that_is_no_number_is_refused(monkeypatch):
    set_all(monkeypatch, RANK="one", WORLD_SIZE=2)
    with pytest.raises(InvalidArgument, match='variable RANK is "one"'):
        _launcher.number(0)


@pytest.mark.parametrize("nodes, first", [
    ("alice", "alice"), ("alice,bob", "alice"), ("node[07-09,12],login", "node07"),
    ("node[3,5-6]-ib", "node3-ib"), ("alice,node[1-2]", "alice")])
def test_the_first_host_of_slurm_is_found(nodes, first):
    assert _launcher._first_node(nodes) == first


@pytest.mark.parametrize("variables, master", [
    ({"MASTER_ADDR": "alice", "MASTER_PORT": 5000}, ("alice", 5001)),
    ({"MASTER_ADDR": "alice"}, ("alice", 29501)),
    ({"SLURM_STEP_NODELIST": "node[1-2]"}, ("node1", 29501)),
    ({"RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}, ("127.0.0.1", 29501)),
])
def test_the_server_is_at_the_port_after_that_of_the_master(monkeypatch, variables, master):
    set_all(monkeypatch, **variables)
    assert _launcher._master(2) == master


def test_ranks_without_an_address_are_refused(monkeypatch):
    set_all(monkeypatch, RANK=1, WORLD_SIZE=4, LOCAL_WORLD_SIZE=2)
    with pytest.raises(InvalidArgument, match="one of 4 ranks.*set MASTER_ADDR"):
        _launcher.find_job("")


def test_an_address_of_rank_0_that_other_hosts_do_not_reach_is_refused(monkeypatch):
    set_all(monkeypatch, RANK=0, WORLD_SIZE=4, LOCAL_WORLD_SIZE=2, MASTER_ADDR="localhost")
    with pytest.raises(InvalidArgument, match='"localhost", which is 127.* set NEREUS_HOST'):
        _launcher.find_job("")


def test_a_process_that_was_started_alone_has_no_job():
    assert _launcher.find_job("") == {}


# ---- Jobs.

@pytest.fixture
def start(root, tmp_path, library_path, master_port):
    """Starts ranks of a program of torch_programs.py, as torchrun does."""
    pytest.importorskip("torch")
    processes = []
    server = os.environ["NEREUS_SERVER_BINARY"]

    def start_ranks(*program, ranks=2):
        environment = {
            **os.environ, "PYTHONPATH": os.path.join(root, "worker", "python"),
            "PATH": os.pathsep.join([os.path.dirname(server), os.environ["PATH"]]),
            "PYTHONUNBUFFERED": "1", "TEST_FOLDER": str(tmp_path), "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(master_port)}
        for rank in range(ranks):
            processes.append(subprocess.Popen(
                [sys.executable, os.path.join(HERE, "torch_programs.py"), *program],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank),
                     "NEREUS_LOCAL_RANK": str(rank)}))
        return processes, master_port + 1

    yield start_ranks
    for process in processes:
        process.kill()
        process.communicate()


def test_rank_0_serves_and_leaves_no_process_behind(start, tmp_path):
    torch = pytest.importorskip("torch")
    import torch_programs
    processes, port = start("train", "mlp", ranks=2)
    texts = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], texts
    checksums = {re.findall("checksum .*", text)[-1] for text in texts}
    assert len(checksums) == 1, texts
    found, expected = torch.load(tmp_path / "parameters"), torch_programs.alone("mlp")
    assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-6)
               for one, other in zip(found, expected))
    assert not answers(port)


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_server_ends_with_a_killed_rank_0(start):
    processes, port = start("train", "mlp", ranks=2)
    limit = time.monotonic() + LIMIT_SECONDS
    while not answers(port):
        assert time.monotonic() < limit
        time.sleep(0.05)
    processes[0].send_signal(signal.SIGKILL)
    processes[1].kill()
    while answers(port):
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_torchrun_needs_no_coordinator(root, tmp_path, library_path, master_port):
    pytest.importorskip("torch")
    server = os.environ["NEREUS_SERVER_BINARY"]
    # torchrun of torch 1.13 does not start under Python 3.11 without -r and -t.
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "-r", "1", "-t", "1",
         "--nproc_per_node=2", f"--master_port={master_port}",
         os.path.join(HERE, "torch_programs.py"), "ranks"],
        capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.path.join(root, "worker", "python"),
             "PATH": os.pathsep.join([os.path.dirname(server), os.environ["PATH"]]),
             "TEST_FOLDER": str(tmp_path)})
    assert result.returncode == 0, result.stdout + result.stderr
    found = re.findall(r"rank (\d) of (\d), local rank (\d) of (\d): mean ([\d.]+)",
                       result.stdout)
    assert sorted(found) == [("0", "2", "0", "2", "1.5"), ("1", "2", "1", "2", "1.5")]
