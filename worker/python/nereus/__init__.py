"""Nereus: data-parallel training over servers, rings and factors, for any framework.

    nereusctl run -np 2 -- python3 train.py

docs/python.md has an example. The package needs libnereus.so, and nothing else.
"""

from ._function import run
from .client import Client, Step, Traits
from .errors import (Forked, InvalidArgument, JobFinished, JobWentBack, LeftEarly,
                     LibraryError, ModelMismatch, NereusError, Stalled, Unreachable,
                     WorkerLost)
from .layer import Layer
from .leave_signal import LeaveSignal
from .lobby import Lobby
from .options import Options

__all__ = [
    "Client", "Forked", "InvalidArgument", "JobFinished", "JobWentBack", "Layer",
    "LeaveSignal", "LeftEarly", "LibraryError", "Lobby", "ModelMismatch", "NereusError",
    "Options", "Stalled", "Step", "Traits", "Unreachable", "WorkerLost", "run"]

# Version of Nereus with which this package came (kVersion in common/base/version.h).
__version__ = "0.2.0"
