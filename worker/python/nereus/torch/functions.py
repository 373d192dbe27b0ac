"""Functions over all workers for a training loop: averages, objects, a barrier.

They are for small values, which go through the coordinator. All workers call them alike, in the
same order between two steps. They work from init() on: without a DistributedOptimizer, among the
processes that were started together.
"""

import contextlib

import torch

from ..errors import FAILED_PRECONDITION, InvalidArgument, NereusError
from . import process, values
from .checksum import checksums, differing


def gather_object(value):
    """Returns the values of all workers, a list. That of this worker is at rank().

    value: None, numbers, texts, bytes, and lists, tuples and dicts of them, 64 KiB in all: what
    comes over the network must not be able to run code, as a pickle is. They come back as they
    were sent. Errors: InvalidArgument, it is another value; those of nereus.Client.gather.
    """
    found = process.gather(values.encode(value))
    return [values.decode(each, f"worker {rank}") for rank, each in enumerate(found)]


def allgather_object(obj, name=None):
    """gather_object by the name that Horovod has for it. name: no matter."""
    return gather_object(obj)


def broadcast_object(obj=None, root_rank=0, name=None):
    """Returns the value of the worker whose rank is root_rank. A worker that joins later gets, for
    calls before its first step, what the first workers got. name: no matter."""
    found = gather_object(obj)
    if not isinstance(root_rank, int) or not 0 <= root_rank < len(found):
        raise InvalidArgument(f"root_rank is {root_rank!r}, must be from 0 to {len(found) - 1}")
    return found[root_rank]


def average(value):
    """Returns the mean over all workers of a number, or of a dict of numbers."""
    if isinstance(value, dict):
        found = gather_object({name: _number(each) for name, each in value.items()})
        if any(each.keys() != found[0].keys() for each in found):
            raise InvalidArgument("workers average other names: " + ", ".join(
                sorted(map(str, set().union(*found)))))
        return {name: sum(each[name] for each in found) / len(found) for name in found[0]}
    found = gather_object(_number(value))
    return sum(found) / len(found)


@contextlib.contextmanager
def device_turn(timeout=None):
    """Takes the turn at a device that other jobs use, too (`nereusctl run --share`), for computing
    outside of steps:

        for x, y in test_batches:
            with nt.device_turn():
                correct += evaluate(model, x, y)

    The other jobs wait meanwhile, so take a turn for each batch. Steps need no call. Does nothing
    if the device is not shared, and before the first step. timeout: in seconds. Errors: Stalled
    after that.
    """
    engine = process.engine()
    client = None if engine is None else engine.client
    if client is None:
        yield
        return
    with client.device_turn(timeout):
        try:
            yield
        finally:
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.current_stream().synchronize()


def barrier():
    """Waits until all workers have called it."""
    gather_object(None)


def broadcast_parameters(params, root_rank=0):
    """Checks that all workers have the parameters and buffers in `params`, as Horovod's programs
    expect it: a dict such as model.state_dict(), or a list of names and tensors. There is nothing
    to send: DistributedOptimizer gives all workers those of rank 0. Does nothing before it.
    Errors: NereusError, workers differ.
    """
    if root_rank != 0:
        raise InvalidArgument(f"root_rank is {root_rank!r}, must be 0: all workers get the "
                              "parameters of rank 0")
    engine = process.engine()
    if engine is None or not engine.has_job:
        return
    engine.finish()
    named = dict(params.items() if hasattr(params, "items") else params)
    _check_equal({name: each for name, each in named.items() if isinstance(each, torch.Tensor)},
                 "load the same state_dict on all workers, or load it before "
                 "DistributedOptimizer, which gives all workers that of rank 0")


def broadcast_optimizer_state(optimizer, root_rank=0, model=None):
    """Checks that all workers have the optimizer's state, as broadcast_parameters does. model: no
    matter."""
    state = optimizer.state_dict()
    tensors = {f"{key}.{name}": value for key, each in state["state"].items()
               for name, value in each.items() if isinstance(value, torch.Tensor)}
    broadcast_parameters(tensors, root_rank)


def _check_equal(named, advice):
    found = process.gather(checksums(named))
    for rank, each in enumerate(found):
        for name in differing(named, each, found[0]):
            raise NereusError(f"{name} has other values on worker {rank} than on worker 0: "
                              f"{advice}", FAILED_PRECONDITION)


def _number(value):
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{value!r} is no number: average takes a number, or a dict of "
                              "numbers") from None
