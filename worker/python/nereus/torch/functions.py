"""Functions over all workers for a training loop: averages, objects, a barrier.

They are for small values, which go through the coordinator. All workers call them alike, in the
same order between two steps, after they have joined their job (see DistributedOptimizer).
"""

import json

from ..errors import FAILED_PRECONDITION, InvalidArgument, NereusError
from . import process


def gather_object(value):
    """Returns the values of all workers, a list. From the first step on, that of this worker is
    at rank().

    value: None, numbers, texts, and lists and dicts of them, 64 KiB as JSON at most: what comes
    over the network must not be able to run code, as a pickle is. Tuples become lists.
    """
    options, engine = process.options(), process.engine()
    if not options.coordinator:
        return [json.loads(_text_of(value))]
    if engine is None or not engine.is_connected:
        raise NereusError(
            "this worker has not joined its job yet: call the function after the first "
            "forward of the model, or pass example= to DistributedOptimizer, and it joins at "
            "once", FAILED_PRECONDITION)
    return [json.loads(each) for each in engine.gather(_text_of(value).encode())]


def broadcast_object(value):
    """Returns the first of gather_object's values: the same on all workers. A worker that joins
    later gets, for calls before its first step, what the first workers got."""
    return gather_object(value)[0]


def average(value):
    """Returns the mean over all workers of a number, or of a dict of numbers."""
    if isinstance(value, dict):
        found = gather_object({name: _number(each) for name, each in value.items()})
        if any(each.keys() != found[0].keys() for each in found):
            raise InvalidArgument("workers average other names: "
                                  + ", ".join(sorted(set().union(*found))))
        return {name: sum(each[name] for each in found) / len(found) for name in found[0]}
    found = gather_object(_number(value))
    return sum(found) / len(found)


def barrier():
    """Waits until all workers have called it."""
    gather_object(None)


def _text_of(value):
    try:
        return json.dumps(value)
    except TypeError as error:
        raise InvalidArgument(f"{error}: values are None, numbers, texts, lists and dicts; a "
                              "tensor is sent as tensor.tolist()") from None


def _number(value):
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{value!r} is no number: average takes a number, or a dict of "
                              "numbers") from None
