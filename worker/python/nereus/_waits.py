"""Waits of the library, in parts: between two parts Python looks at its signals, so that Ctrl-C
ends a wait."""

import time

from . import _native, arguments
from .errors import DEADLINE_EXCEEDED, Stalled

PART_MS = 100


def wait(what, call, timeout):
    """Makes a call that waits, in parts, until it is done or `timeout` has passed. Returns its
    code, which is not DEADLINE_EXCEEDED.

    what: the call, for the error. call: function of the time of a part in ms; returns a code.
    timeout: in seconds; None: no limit. Errors: Stalled.
    """
    until = None
    if timeout is not None:
        until = time.monotonic() + arguments.seconds("timeout", timeout)
    while True:
        part = PART_MS
        if until is not None:
            part = max(0, min(PART_MS, round((until - time.monotonic()) * 1000)))
        code = call(part)
        if code != DEADLINE_EXCEEDED:
            return code
        if until is not None and time.monotonic() >= until:
            try:
                _native.check(code)
            except Stalled as error:
                raise Stalled(f"{what} has not ended within {timeout:g} s; the library waits "
                              f"in parts of {PART_MS} ms and says of the last one: {error}",
                              code) from None
