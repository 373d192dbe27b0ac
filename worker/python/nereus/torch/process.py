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
    for name in ("optimizer", "means_apart"):
        if name in options:
            raise InvalidArgument(f"{name} cannot be chosen: with nereus.torch, torch's "
                                  "optimizer runs on the workers, with means in place")
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


def check_free():
    """Checks that this process has no engine. Errors: NereusError, there is one."""
    if _Process.engine is not None:
        raise NereusError(
            "this process has a DistributedOptimizer already; a process trains one model: "
            "give all its parameters to one optimizer, as parameter groups",
            FAILED_PRECONDITION)


def register(engine):
    """Makes `engine` that of this process."""
    _Process.engine = engine


def step_info():
    """Returns the nereus.Step of the open or the last step; None before the first one and
    in a process that trains alone."""
    return _Process.engine.step_info if _Process.engine is not None else None


def _environment(*names):
    """Returns the first of these variables that is set, as a number; None without any."""
    for name in names:
        if os.environ.get(name):
            return int(os.environ[name])
    return None


def _number(name, alone, *variables):
    """Returns a number of the last step, or of the environment before the first one."""
    job, step = options(), step_info()
    if step is not None:
        return getattr(step, name)
    if not job.coordinator:
        return alone
    found = _environment(*variables)
    if found is None:
        raise NereusError(
            f"{' and '.join(variables)} are not set: before the first step the number is not "
            "known; start the program by `nereusctl run` or torchrun, or set them",
            FAILED_PRECONDITION)
    return found


def rank():
    """Returns this worker's position among the workers in the last step, from 0 to size() - 1;
    before the first step NEREUS_LOCAL_RANK or RANK. It may change from step to step, as
    workers join and leave. Errors: NereusError, neither is set."""
    return _number("position", 0, *_of_job("NEREUS_LOCAL_RANK", "RANK"))


def size():
    """Returns the number of workers in the last step; before the first one NEREUS_LOCAL_SIZE
    or WORLD_SIZE. It may change from step to step. Errors: NereusError, neither is set."""
    return _number("workers", 1, *_of_job("NEREUS_LOCAL_SIZE", "WORLD_SIZE"))


def _of_job(local, of_world):
    """Returns variables in their order. On several machines, only those of torchrun count the
    workers of all machines."""
    return (of_world, local) if os.environ.get("WORLD_SIZE") else (local, of_world)


def local_rank():
    """Returns this worker's number among those of its host, from 0 to local_size() - 1: the
    number of its GPU. It is NEREUS_LOCAL_RANK, LOCAL_RANK or SLURM_LOCALID, else 0."""
    options()
    return _environment("NEREUS_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID") or 0


def local_size():
    """Returns the number of workers that were started on this host: NEREUS_LOCAL_SIZE or
    LOCAL_WORLD_SIZE, else 1."""
    options()
    return _environment("NEREUS_LOCAL_SIZE", "LOCAL_WORLD_SIZE") or 1
