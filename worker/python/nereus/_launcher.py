"""Processes that torchrun, mpirun or srun has started: their numbers, and their job.

These programs start workers and nothing else. So rank 0 starts a server for the job. All
ranks know its address: that of rank 0's host, and the port after MASTER_PORT.
"""

import atexit
import os
import socket
import subprocess
import sys
import threading

from . import _programs
from .errors import FAILED_PRECONDITION, InvalidArgument, LibraryError, NereusError

# Variables with the rank, the number of ranks, the rank among those of this host, and their
# number. Slurm sets SLURM_STEP_NUM_TASKS only in processes that srun has started.
_FAMILIES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", None),
)

# Port of torch's own server where MASTER_PORT is not set.
_MASTER_PORT = 29500

# Program that becomes the server. The system ends it when rank 0 dies (PR_SET_PDEATHSIG); if
# rank 0 has died before, it starts no server.
_BOUND = ("import ctypes, os, signal, sys\n"
          "ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)\n"
          "if os.getppid() == int(sys.argv[1]): os.execv(sys.argv[2], sys.argv[2:])\n")


def number(position):
    """Returns the number in a variable of the launcher, by its position in _FAMILIES: 0 the
    rank, 1 the number of ranks, 2 the rank on this host, 3 the number of ranks on this host.
    None if this process was started alone, or the launcher has not set the variable. Errors:
    InvalidArgument, the variable is not a number."""
    for family in _FAMILIES:
        if os.environ.get(family[0]) and (_value(family[1]) or 1) > 1:
            return _value(family[position])
    return None


def _value(name):
    """Returns the number in a variable, or None."""
    text = os.environ.get(name) if name else None
    if not text:
        return None
    if not text.isdigit():
        raise InvalidArgument(f'the variable {name} is "{text}", which is not a number')
    return int(text)


def _first_node(nodes):
    """Returns the first host of a list in Slurm's form, such as node[07-09,12],login."""
    prefix, bracket, ranges = nodes.partition("[")
    if "," in prefix or not bracket:
        return prefix.split(",")[0]
    inside, _, rest = ranges.partition("]")
    return prefix + inside.replace("-", ",").split(",")[0] + rest.split(",")[0]


def _master(ranks):
    """Returns the host and the port of the job's server."""
    host = os.environ.get("MASTER_ADDR")
    if not host and number(3) == ranks:
        host = "127.0.0.1"
    if not host and os.environ.get("SLURM_STEP_NODELIST"):
        host = _first_node(os.environ["SLURM_STEP_NODELIST"])
    if not host:
        raise InvalidArgument(
            f"this is one of {ranks} ranks, but there is no coordinator: start the program by "
            "`nereusctl run`, or set MASTER_ADDR to the host of rank 0, or set "
            "NEREUS_COORDINATOR=HOST:PORT on all ranks")
    return host, (_value("MASTER_PORT") or _MASTER_PORT) + 1


def _own_address(host, port):
    """Returns the address of this host at which rank 0 reaches it."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # Sends nothing.
            return probe.getsockname()[0]
    except OSError as error:
        raise InvalidArgument(f'this host has no way to MASTER_ADDR, which is "{host}": '
                              f"{error}") from None


class _Server:
    """Server of the job, which rank 0 runs beside itself."""

    def __init__(self, ranks, host, port):
        program = _programs.find("nereus-server")
        if program is None:
            raise LibraryError(
                "rank 0 starts the job's server, but nereus-server is not on the PATH: install "
                "the wheel or deploy/install.sh, or set NEREUS_COORDINATOR to a running one")
        if threading.current_thread() is not threading.main_thread():
            raise NereusError(
                "rank 0 must call init in its main thread: the server that it starts ends "
                "with the thread", FAILED_PRECONDITION)
        flags = [f"--host={host}", f"--control-port={port}", f"--workers={ranks}",
                 "--servers=1", "--log-level=warning"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _BOUND, str(os.getpid()), program, *flags],
            stdin=subprocess.DEVNULL)
        # If rank 0 ends without a shutdown, it has failed, and its job ends too.
        atexit.register(self._process.terminate)

    def await_end(self):
        """Waits until the server has ended. It ends when all workers have left or died:
        other ranks may train on after rank 0 has left."""
        self._process.wait()
        atexit.unregister(self._process.terminate)


_server = None
_jobs = 0  # Jobs that this process has left.


def find_job(host):
    """Returns the coordinator, the own address and the name as options of a client; {} if this
    process was started alone. Rank 0 starts the server.

    host: address of this process, if the user has given one.
    Errors: InvalidArgument; LibraryError, there is no program for the server.
    """
    global _server
    ranks, rank = number(1) or 1, number(0)
    if ranks == 1:
        return {}
    master, port = _master(ranks)
    port += _jobs  # A rank that is early must not reach the server of the last job.
    own = host or _own_address(master, port)
    if rank == 0 and own.startswith("127.") and (number(3) or ranks) < ranks:
        raise InvalidArgument(
            f'MASTER_ADDR is "{master}", which is {own} on its own host: no other host '
            "reaches that. Set it to another address of the host, or set NEREUS_HOST")
    if rank == 0 and _server is None:
        _server = _Server(ranks, own, port)
    coordinator = f"{own}:{port}" if rank == 0 else f"{master}:{port}"
    return {"coordinator": coordinator, "host": own, "name": f"rank-{rank}"}


def end_job():
    """Waits until the server that this process has started has ended."""
    global _jobs, _server
    server, _server = _server, None
    _jobs += 1
    if server is not None:
        server.await_end()
