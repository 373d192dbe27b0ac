"""Nereus: data-parallel training over servers, rings and factors, for any framework.

    nereusctl run -np 2 -- python3 train.py

docs/python.md has an example. The package needs libnereus.so, and nothing else.
"""

from .client import Client, Step, Traits
from .errors import (Forked, InvalidArgument, JobFinished, JobWentBack, LibraryError,
                     ModelMismatch, NereusError, Stalled, Unreachable, WorkerLost)
from .layer import Layer
from .options import Options

__all__ = [
    "Client", "Forked", "InvalidArgument", "JobFinished", "JobWentBack", "Layer",
    "LibraryError", "ModelMismatch", "NereusError", "Options", "Stalled", "Step", "Traits",
    "Unreachable", "WorkerLost"]


def __getattr__(name):
    # The version is the library's, which is loaded when it is needed first.
    if name == "__version__":
        from . import _native
        return _native.library().nereus_version().decode()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
