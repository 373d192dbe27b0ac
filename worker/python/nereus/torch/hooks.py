"""Hooks of torch that neither keep an object alive nor go with copies of a module."""

import weakref


def _do_nothing(*_):
    return None


def _make_nothing():
    return _do_nothing


class WeakCall:
    """Calls a method of an object while that lives. Modules and torch's graph keep such
    calls. A copy, and what is loaded from a file, does nothing.

    module: the call is made only for this module, which is its first argument, and not for
    copies of it. bound: arguments that come before those of the call.
    """

    def __init__(self, method, module=None, *bound):
        self._method = weakref.WeakMethod(method)
        self._module = weakref.ref(module) if module is not None else None
        self._bound = bound

    def __call__(self, *arguments):
        if self._module is not None:
            if arguments[0] is not self._module():
                return None
            arguments = arguments[1:]
        method = self._method()
        return method(*self._bound, *arguments) if method is not None else None

    def __reduce__(self):
        return _make_nothing, ()
