"""Parameters whose gradient is not in .grad for a while, or is on its way.

A parameter has the class WatchedParameter in this time. Code in Python that reads or sets its
gradient calls the watcher first, which puts the right gradient there, or raises an error. Code of
torch in C++, such as the accumulation of gradients, does not see the class.
"""

import torch

# Function of a parameter: its gradient, without a call of the watcher.
raw_gradient = torch.Tensor.grad.__get__

_watchers = {}  # Functions of `sets`, by the ids of watched parameters.


class WatchedParameter(torch.nn.Parameter):
    """Class of a watched parameter. Copies, and what is saved, are plain parameters."""

    @property
    def grad(self):
        _look(self, sets=False)
        return raw_gradient(self)

    @grad.setter
    def grad(self, value):
        _look(self, sets=True)
        torch.Tensor.grad.__set__(self, value)

    @grad.deleter
    def grad(self):
        self.grad = None

    def __deepcopy__(self, memo):
        _look(self, sets=False)
        self.__class__ = torch.nn.Parameter
        return self.__deepcopy__(memo)

    def __reduce_ex__(self, protocol):
        _look(self, sets=False)
        self.__class__ = torch.nn.Parameter
        return self.__reduce_ex__(protocol)


def _look(parameter, sets):
    watcher = _watchers.get(id(parameter))
    if watcher is not None:
        watcher(sets)


def can_watch(parameter):
    """Returns True if the parameter is a plain one. Others keep their class."""
    return type(parameter) in (torch.nn.Parameter, WatchedParameter)


def watch(parameter, watcher):
    """Calls `watcher` before each time that the gradient of a parameter is read, with False, or
    set, with True."""
    if can_watch(parameter):
        _watchers[id(parameter)] = watcher
        parameter.__class__ = WatchedParameter


def release(parameter):
    """Ends the watch."""
    if type(parameter) is WatchedParameter:
        _watchers.pop(id(parameter), None)
        parameter.__class__ = torch.nn.Parameter
