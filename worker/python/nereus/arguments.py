"""Checks of arguments that are numbers or texts. The errors of ctypes name no argument, and
it cuts large numbers without an error."""

import math
import operator

from .errors import InvalidArgument


SECONDS_MAX = 1e9


def integer(name, value, bits=64, what="an integer"):
    """Returns a whole number of Python or of a framework as an int. bits: size of the
    library's number. what: description of the argument in the error."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}, must be {what}") from None
    most = 2 ** (bits - 1) - 1
    if not -most <= number <= most:
        raise InvalidArgument(f"{name} is {number}, must be {what} of at most {most}")
    return number


def seconds(name, value):
    """Returns a time as a float."""
    try:
        time = float(value)
    except (TypeError, ValueError, OverflowError):
        time = math.nan
    if isinstance(value, str) or not abs(time) <= SECONDS_MAX:
        raise InvalidArgument(f"{name} is {value!r}, must be a number of seconds, at most "
                              f"{SECONDS_MAX:.0g}, or None")
    return time


def text(name, value):
    """Returns a text as the library takes it; None is ""."""
    if not isinstance(value, (str, type(None))):
        raise InvalidArgument(f"{name} is {value!r}, must be a str")
    return (value or "").encode()


def stream(value):
    """Returns a stream as the library takes it."""
    if value is None:
        return None
    return integer("stream", value, what="the number of a cudaStream_t, or None")


def real(name, value):
    """Returns a number as a float."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"{name} is {value!r}, must be a number") from None
