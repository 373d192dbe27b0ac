"""Nereus for PyTorch: training loops stay as they are, but for a few lines.

    import nereus.torch as nt
    nt.init()
    optimizer = nt.DistributedOptimizer(optimizer, model=model)

    nereusctl run -np 4 -- python3 train.py

docs/pytorch.md has the whole loop, and what works.
"""

from ..errors import (Forked, InvalidArgument, JobFinished, JobWentBack, LeftEarly,
                      LibraryError, ModelMismatch, NereusError, Stalled, Unreachable,
                      WorkerLost)
from .exported import load_exported
from .functions import (allgather_object, average, barrier, broadcast_object,
                        broadcast_optimizer_state, broadcast_parameters, device_turn,
                        gather_object)
from .hook import CommHookState, comm_hook, factorize
from .optimizer import DistributedOptimizer
from .process import (begin_step, init, is_initialized, local_rank, local_size, rank,
                      shutdown, size, step_info)

__all__ = [
    "CommHookState", "DistributedOptimizer", "Forked", "InvalidArgument", "JobFinished",
    "JobWentBack", "LeftEarly", "LibraryError", "ModelMismatch", "NereusError", "Stalled",
    "Unreachable", "WorkerLost", "allgather_object", "average", "barrier", "begin_step",
    "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "comm_hook",
    "device_turn", "factorize", "gather_object", "init", "is_initialized", "load_exported",
    "local_rank", "local_size", "rank", "shutdown", "size", "step_info"]
