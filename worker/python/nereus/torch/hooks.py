"""Hooks of torch that neither keep an object alive nor go with copies of a module."""

import weakref

import torch

def _call(hook, arguments):
    return hook.call(arguments)


# torch.compile traces the functions that a forward calls, but not this one.
_call_unseen = getattr(getattr(torch, "compiler", None), "disable", lambda each: each)(_call)


def _do_nothing(*_):
    return None


def _make_nothing():
    return _do_nothing


class WeakCall:
    """Calls a method of an object while that lives. Modules and torch's graph keep such
    calls. A copy, and what is loaded from a file, does nothing.

    module: the call is made only for this module, which is its first argument, and not for
    copies of it. torch.compile does not trace it, as it does other calls in a forward.
    bound: arguments that come before those of the call.
    """

    def __init__(self, method, module=None, *bound):
        self._method = weakref.WeakMethod(method)
        self._module = weakref.ref(module) if module is not None else None
        self._bound = bound

    def __call__(self, *arguments):
        return self.call(arguments) if self._module is None else _call_unseen(self, arguments)

    def call(self, arguments):
        """Makes the call."""
        if self._module is not None:
            if arguments[0] is not self._module():
                return None
            arguments = arguments[1:]
        method = self._method()
        return method(*self._bound, *arguments) if method is not None else None

    def __reduce__(self):
        return _make_nothing, ()
