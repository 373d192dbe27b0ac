"""The job of this process: init, shutdown, and the numbers of workers.

A process has one engine, that of its DistributedOptimizer. Without a coordinator, the
process trains alone.
"""

import atexit
import logging
import os
import sys

from .. import _exit, _launcher, _native
from ..errors import FAILED_PRECONDITION, InvalidArgument, NereusError
from ..lobby import Lobby
from ..options import Options, misspelt_variable

_log = logging.getLogger("nereus")


class _Process:
    """State of this module."""

    options = None  # Options of the client, after init.
    engine = None  # Engine of the optimizer.
    lobby = None  # Lobby of the processes that were started together, before there is an engine.
    left = set()  # Addresses of the coordinators whose jobs this process has left.
    is_watched = False  # True if _leave_at_exit is called when the program ends.


def init(**options):
    """Reads where the job is. Call it before all other functions of this module.

    options: fields of nereus.Options, in place of the variables that `nereusctl run` sets.
    Without a coordinator in both, rank 0 of torchrun, mpirun or srun starts the job's server;
    a process that was started alone trains alone. Errors: InvalidArgument, also if a variable
    that Nereus does not know has nearly the name of one that it knows, and the process would
    train alone; LibraryError, rank 0 finds no nereus-server.
    """
    for name in ("optimizer", "means_apart"):
        if name in options:
            raise InvalidArgument(f"{name} cannot be chosen: with nereus.torch, torch's "
                                  "optimizer runs on the workers, with means in place")
    found = Options.from_environment(optimizer="worker", **options)
    if not found.coordinator:
        job = _launcher.find_job(found.host)
        found = Options(**{**vars(found), **job, "name": found.name or job.get("name", "")})
        others = sorted(name for name in os.environ
                        if name.startswith("NEREUS_")
                        and name not in ("NEREUS_LIBRARY", "NEREUS_LOG_FORMAT"))
        misspelt = misspelt_variable()
        if not found.coordinator and misspelt is not None:
            name, meant = misspelt
            raise InvalidArgument(
                f"the variable {name} has no meaning; did you mean {meant}? Without "
                f"NEREUS_COORDINATOR this process would train alone; if it is to, unset {name}")
        if not found.coordinator and others:
            _log.warning("this process trains alone, because NEREUS_COORDINATOR is not set; set "
                         "are %s", ", ".join(others))
    if found.coordinator in _Process.left:
        raise NereusError(
            "JobFinished: this process has left its job, which trains one model once. Start the "
            "program again for each training; under torchrun, mpirun and srun, init() begins a "
            "new job", FAILED_PRECONDITION)
    _Process.options = found
    _exit.watch()
    if not _Process.is_watched:
        _Process.is_watched = True
        atexit.register(_leave_at_exit)


def _leave_at_exit():
    """Leaves the job of a program that has ended without an error and without shutdown()."""
    if _Process.engine is None or _exit.has_failed() or _native.is_forked():
        return
    try:
        shutdown()
    except BaseException:  # pylint: disable=broad-except
        # Python would print it and end with the code of a program without an error.
        sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def is_initialized():
    """Returns True between init and shutdown."""
    return _Process.options is not None


def shutdown():
    """Leaves the job after the last step. Waits until the other workers need nothing more
    from this one. Does nothing without init. A program that ends without an error does it, too."""
    engine, lobby, found = _Process.engine, _Process.lobby, _Process.options
    _Process.engine = _Process.lobby = _Process.options = None
    if lobby is not None:
        lobby.close()
    if engine is not None:
        if engine.has_job:
            _Process.left.add(found.coordinator)
        engine.leave()
    _launcher.end_job()


def gather(value):
    """Returns the bytes of all workers, by rank."""
    found = options()
    if not found.coordinator:
        return [value]
    if _Process.engine is not None:
        return _Process.engine.gather(value)
    if _Process.lobby is None:
        _Process.lobby = Lobby(count=size(), **vars(found))
    return _Process.lobby.gather(value)


def options():
    """Returns the options of the client. Errors: NereusError, without init."""
    if _Process.options is None:
        raise NereusError("nereus.torch is not initialized: call nereus.torch.init() first",
                          FAILED_PRECONDITION)
    return _Process.options


def check_free():
    """Checks that this process has no engine. Errors: NereusError, there is one."""
    if _Process.engine is not None:
        raise NereusError(
            "this process has a DistributedOptimizer already: give it a list of all optimizers of "
            "the program, with model= of all their modules (torch.nn.ModuleList), or call "
            "nereus.torch.shutdown() first",
            FAILED_PRECONDITION)


def register(engine):
    """Makes `engine` that of this process."""
    _Process.engine = engine
    lobby, _Process.lobby = _Process.lobby, None
    if lobby is not None:
        lobby.close()


def engine():
    """Returns the engine of this process; None without a DistributedOptimizer."""
    return _Process.engine


def begin_step():
    """Begins a step of the job, unless one is open, and returns it as a nereus.Step: its
    number, and this worker's position among its workers. A loop that chooses its examples by
    them has each example once, whoever joins; of a worker that dies, the examples of the step
    under way are lost:

        while (step := nt.begin_step()).contributions_before < batches:
            x, y = batch_number(step.contributions_before + step.position)

    Without a call the first forward begins the step. Errors: NereusError, there is no
    DistributedOptimizer.
    """
    if _Process.engine is None:
        raise NereusError("begin_step needs a DistributedOptimizer", FAILED_PRECONDITION)
    return _Process.engine.begin_step()


def step_info():
    """Returns the nereus.Step of the open or the last step; None before the first one and
    in a process that trains alone."""
    return _Process.engine.step_info if _Process.engine is not None else None


def _number(name, alone, launched, variable):
    """Returns a number of the last step; before the first one, that of the launcher."""
    job, step = options(), step_info()
    if step is not None:
        return getattr(step, name)
    if not job.coordinator:
        return alone
    found = os.environ.get(variable) if launched is None else str(launched)
    if not found:
        raise NereusError(
            f"{variable} is not set: before the first step the number is not known; start the "
            "program by `nereusctl run`, torchrun, mpirun or srun, or set it",
            FAILED_PRECONDITION)
    return int(found)


def rank():
    """Returns this worker's position among the workers in the last step, from 0 to size() - 1;
    before the first step its rank among those that were started together. It may change from
    step to step, as workers join and leave. Errors: NereusError, no launcher has set it."""
    return _number("position", 0, _launcher.number(0), "NEREUS_LOCAL_RANK")


def size():
    """Returns the number of workers in the last step; before the first one the number that
    were started together. It may change from step to step. Errors: as for rank."""
    return _number("workers", 1, _launcher.number(1), "NEREUS_LOCAL_SIZE")


def local_rank():
    """Returns this worker's number among those of its host, from 0 to local_size() - 1: the
    number of its GPU. 0 if no launcher has set it."""
    options()
    return _local(2, "NEREUS_LOCAL_RANK", 0)


def local_size():
    """Returns the number of workers that were started on this host. 1 if no launcher has set
    it."""
    options()
    return _local(3, "NEREUS_LOCAL_SIZE", 1)


def _local(position, variable, alone):
    own = os.environ.get(variable)
    if own:
        return int(own)
    launched = _launcher.number(position)
    return alone if launched is None else launched
