"""Tensors whose next values are on their way.

Parameters and buffers are `PendingTensor`s while their update waits: each operation on one does
the update first. So a training loop reads and writes them as if they had been updated at once.
Their gradients are `PendingGradient`s, of which each use is an error.
"""

import copy

import torch

from ..errors import FAILED_PRECONDITION, NereusError

_SET_GRADIENT = torch.Tensor.grad.__set__

# Functions that tell nothing of the values.
_NAMES = ("device", "dtype", "grad", "grad_fn", "is_cuda", "is_leaf", "is_meta", "is_sparse",
          "layout", "name", "ndim", "requires_grad", "shape")
_METHODS = ("dim", "element_size", "get_device", "is_complex", "is_contiguous",
            "is_floating_point", "nelement", "numel", "size", "stride")
_METADATA = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in _NAMES]
    + [getattr(torch.Tensor, name) for name in _METHODS]
    + [torch.is_complex, torch.is_floating_point, torch.numel])


class PendingTensor:
    """First base of the class of a tensor whose update waits. The second one is the tensor's own
    class, which it gets back when it is updated.

    torch asks this class about each operation on the tensor, also as an element of a list. Code
    in C++ that takes a tensor by itself does not ask: it reads the values before the update.

    own_class: the second base. updates: weak reference of the DeferredUpdates.
    """

    own_class = updates = None

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        options = options or {}
        drops = function == _SET_GRADIENT and arguments[1] is None
        updates = cls.updates()
        if drops and updates is not None:
            updates.drop_gradient(arguments[0])
        if drops or function in _METADATA:
            return super().__torch_function__(function, types, arguments, options)
        _finish([arguments, options])
        return function(*arguments, **options)

    def __deepcopy__(self, memo):
        _finish(self)
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol):
        _finish(self)
        return self.__reduce_ex__(protocol)


def _finish(value):
    """Does the updates of all pending tensors in a value, which may be a list, tuple or dict.
    They have their own classes afterwards."""
    kind = type(value)  # Another thread may change it.
    if issubclass(kind, PendingTensor):
        updates = kind.updates()
        if updates is not None:
            updates.finish_tensor(value)
        else:  # The optimizer is gone.
            release(value)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _finish(each)
    elif isinstance(value, dict):
        _finish(list(value.values()))


def pending_class(own_class, updates):
    """Returns the class of pending tensors of a class. updates: weak reference of their
    DeferredUpdates."""
    return type(own_class.__name__, (PendingTensor, own_class),
                {"own_class": own_class, "updates": updates})


def release(tensor):
    """Gives a tensor its own class back."""
    kind = type(tensor)
    if issubclass(kind, PendingTensor):
        tensor.__class__ = kind.own_class


class PendingGradient(torch.Tensor):
    """Gradient of a parameter whose mean is on its way. Each use of it is an error, because
    the memory is the client's, and has another worker's values at any time."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        raise NereusError(
            "a gradient was used before the mean over all workers was there: with "
            'overlap="dear", call optimizer.synchronize() after backward, before the gradients '
            "are clipped, scaled or looked at", FAILED_PRECONDITION)
