"""The job of this process: init, shutdown, and the numbers of workers.

A process has one engine, that of its DistributedOptimizer. Without a coordinator, the
process trains alone.
"""

import os

from ..errors import FAILED_PRECONDITION, InvalidArgument, NereusError
from ..options import Options


class _Process:
    """State of this module."""

    options = None  # Options of the client, after init.
    engine = None  # Engine of the optimizer.


def init(**options):
    """Reads where the job is. Call it before all other functions of this module.

    options: fields of nereus.Options, in place of the variables that `nereusctl run` sets.
    Without a coordinator in both, this process trains alone. Errors: InvalidArgument.
    """
    if "optimizer" in options:
        raise InvalidArgument("optimizer cannot be chosen: with nereus.torch, torch's "
                              "optimizer runs on the workers")
    found = Options.from_environment(optimizer="worker", **options)
    world = os.environ.get("WORLD_SIZE", "1")
    if not found.coordinator and world != "1":
        raise InvalidArgument(
            f"WORLD_SIZE is {world}, but there is no coordinator: start the program by "
            "`nereusctl run`, or set NEREUS_COORDINATOR=HOST:PORT on all ranks")
    _Process.options = found


def is_initialized():
    """Returns True between init and shutdown."""
    return _Process.options is not None


def shutdown():
    """Leaves the job after the last step. Waits until the other workers need nothing more
    from this one. Does nothing without init."""
    engine, _Process.engine, _Process.options = _Process.engine, None, None
    if engine is not None:
        engine.leave()


def options():
    """Returns the options of the client. Errors: NereusError, without init."""
    if _Process.options is None:
        raise NereusError("nereus.torch is not initialized: call nereus.torch.init() first",
                          FAILED_PRECONDITION)
    return _Process.options


def register(engine):
    """Makes `engine` that of this process. Errors: NereusError, there is one."""
    if _Process.engine is not None:
        raise NereusError(
            "this process has a DistributedOptimizer already; a process trains one model: "
            "give all its parameters to one optimizer, as parameter groups",
            FAILED_PRECONDITION)
    _Process.engine = engine


def step_info():
    """Returns the nereus.Step of the open or the last step; None before the first one and
    in a process that trains alone."""
    return _Process.engine.step_info if _Process.engine is not None else None


def _number(name, variable, alone):
    """Returns a number of the last step, or of the environment before the first one."""
    job = options()
    step = step_info()
    if step is not None:
        return getattr(step, name)
    return int(os.environ.get(variable, alone)) if job.coordinator else alone


def rank():
    """Returns this worker's position among the workers, from 0 to size() - 1. It may change
    from step to step, as workers join and leave."""
    return _number("position", "NEREUS_LOCAL_RANK", 0)


def size():
    """Returns the number of workers. It may change from step to step."""
    return _number("workers", "NEREUS_LOCAL_SIZE", 1)


def local_rank():
    """Returns this worker's number among those of its host, from 0 to local_size() - 1: the
    number of its GPU."""
    options()
    return int(os.environ.get("NEREUS_LOCAL_RANK", 0))


def local_size():
    """Returns the number of workers that were started on this host."""
    options()
    return int(os.environ.get("NEREUS_LOCAL_SIZE", 1))
