"""Exceptions of Nereus: one class for each case that a caller treats differently."""

import logging

from . import _exit

CANCELLED = 1
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
FAILED_PRECONDITION = 9
OUT_OF_RANGE = 11
UNIMPLEMENTED = 12
UNAVAILABLE = 14


class NereusError(RuntimeError):
    """A call that failed. The text says why. Classes below say what the caller can do; an
    error of this class itself comes from a job that has ended, or from a call at the
    wrong time.

    outcome: number of the outcome, a NEREUS_ constant of worker/c_api/nereus.h.
    """

    def __init__(self, message, outcome=0):
        super().__init__(message)
        self.outcome = outcome


class LibraryError(NereusError, ImportError):
    """The library cannot be used: libnereus.so was not found or is too old, or it has no
    code for GPUs."""


class InvalidArgument(NereusError, ValueError):
    """An argument is wrong. Correct the call; the job goes on."""


class Unreachable(NereusError, ConnectionError):
    """No coordinator answered. Check the address, or connect again."""


class ModelMismatch(NereusError):
    """The job refuses this worker, whose model, settings, optimizer or version differ. The
    text names the first difference, and both values. Make all workers equal there, and
    connect again."""


class _EndsProgram(NereusError, SystemExit):
    """An error that ends a program which does not catch it with the exit code `code`. Python
    prints nothing then, so the text is logged."""

    def __init__(self, message, outcome=0):
        super().__init__(message, outcome)
        _exit.note_failure()
        logging.getLogger("nereus").warning("%s", message)


class JobFinished(_EndsProgram):
    """The job is over, so that this worker cannot join it. Nothing is left to do: a program
    that does not catch this error ends with code 0."""

    code = 0


class JobWentBack(NereusError):
    """The job has gone back to a checkpoint. Call begin_step, and do the step that it
    returns."""


class WorkerLost(_EndsProgram):
    """This worker was silent for too long and counts as dead. Close the client and make a
    new one. Or start the program again: if it does not catch this error, it ends with code
    75, after which `nereusctl run` does so."""

    code = 75


class LeftEarly(_EndsProgram):
    """This worker has left a job that goes on without it: the process got SIGTERM, or an
    operator has drained it (`nereusctl drain`). A program that does not catch this error
    ends with code 143 or 0."""

    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


class Stalled(NereusError, TimeoutError):
    """The timeout of a wait has passed. The text names what is missing. The same call may
    be made again."""


class Forked(NereusError):
    """This process was forked from a process with a client. Start it by exec, or by the
    "spawn" method of multiprocessing."""


_CLASSES = {
    CANCELLED: WorkerLost,
    INVALID_ARGUMENT: InvalidArgument,
    DEADLINE_EXCEEDED: Stalled,
    OUT_OF_RANGE: JobWentBack,
}

# Meaning of codes before the client has joined its job.
_JOINING_CLASSES = {
    FAILED_PRECONDITION: ModelMismatch,
    OUT_OF_RANGE: JobFinished,
    UNAVAILABLE: Unreachable,
}


def error_of(code, message, joining=False):
    """Returns the exception for a code of the library. joining: the client has not joined
    its job yet, which gives some codes another meaning."""
    classes = {**_CLASSES, **_JOINING_CLASSES} if joining else _CLASSES
    return classes.get(code, NereusError)(message, code)
