"""Updates that wait for the next forward (`overlap="dear"`).

`backward` returns when all gradients are on their way, and `optimizer.step()` only notes what
is to be done. The first use of a parameter waits for its mean and updates it: that is in the
forward of its module, as a rule. So the second half of a round overlaps with the forward pass
(Zhang et al., "DeAR", ICDCS 2023, section 3).
"""

import threading
import weakref

import torch

from .factors import without_autocast
from .hooks import WeakCall
from .pending import PendingGradient, pending_class, release


class _Update:
    """What is to be done with a layer's parameters, once their mean gradient is there."""

    def __init__(self):
        self.tensors = []  # Parameters, or buffers, of the layer.
        self.gradients = []  # This worker's gradient of each parameter, or None.
        self.dropped = set()  # Ids of parameters whose gradient the caller has dropped.
        # By optimizer, its step, once the caller has called it, and parts of its groups at that
        # time, with these parameters.
        self.steps = {}


class DeferredUpdates:
    """Layers whose means are on their way. Any thread may use their parameters, and so do their
    updates.

    optimizers: torch optimizers.
    settle: function of a layer, which waits for its mean and gives it to the parameters.
        Returns True if the job has skipped the step.
    """

    def __init__(self, optimizers, settle):
        self._optimizers = optimizers
        self._settle = settle
        self._updates = {}  # By layer, in the order of forward.
        self._of_tensor = {}  # Layers, by the ids of their parameters and buffers.
        self._classes = {}  # Classes of pending tensors, by those of the tensors.
        self._lock = threading.RLock()  # Held while a layer is finished.

    def hook(self, model, layers):
        """Makes each module of a model finish the layers of its own parameters and buffers
        before its forward."""
        # Operations on parameters do that by themselves (PendingTensor), but not those of code in
        # C++, which a module may call with its own parameters, and not those of scripted
        # modules, to which torch gives no hooks.
        self._of_tensor = {id(slot.parameter): layer for layer in layers for slot in layer.slots}
        for module in model.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            for child in module.children():
                if isinstance(child, torch.jit.ScriptModule):
                    own += [*child.parameters(), *child.buffers()]
            needed = dict.fromkeys(self._of_tensor[id(each)] for each in own
                                   if id(each) in self._of_tensor)
            if needed:
                module.register_forward_pre_hook(WeakCall(self.finish, module, list(needed)))

    def __contains__(self, layer):
        return layer in self._updates

    def begin(self, layers):
        """Notes that the gradients of layers are on their way."""
        for layer in layers:
            update = self._updates[layer] = _Update()
            for index, slot in enumerate(layer.slots):
                tensor = slot.parameter
                update.tensors.append(tensor)
                self._of_tensor[id(tensor)] = layer  # A buffer may be another one than before.
                if slot.index >= 0:  # No buffer.
                    update.gradients.append(tensor.grad)
                    tensor.grad = torch.Tensor._make_subclass(
                        PendingGradient, layer.place_of_mean(index))
                tensor.__class__ = self._pending_class(type(tensor))

    def _pending_class(self, own_class):
        if own_class not in self._classes:
            self._classes[own_class] = pending_class(own_class, weakref.ref(self))
        return self._classes[own_class]

    def step(self, optimizer, step):
        """Does a step of an optimizer: at once for parameters whose mean is there, later for
        the others.

        step: function without arguments, which updates the parameters of all groups."""
        pending = self._pending()
        for update in self._updates.values():
            update.steps[optimizer] = step, []
        ready = []
        for group in optimizer.param_groups:
            parts = {}  # Parameters by their update; None: those whose mean is there.
            for parameter in group["params"]:
                update = pending.get(id(parameter))
                if update is None or id(parameter) not in update.dropped:
                    parts.setdefault(update, []).append(parameter)
            for update, parameters in parts.items():
                # Copies: a scheduler may change the group before the update.
                part = {**group, "params": parameters}
                (ready if update is None else update.steps[optimizer][1]).append(part)
        _run(optimizer, step, ready)

    def drop_gradients(self):
        """Drops the gradients of pending parameters after their update, and all others now:
        the caller has set them to zero."""
        pending = self._pending()
        for update in self._updates.values():
            update.dropped.update(id(each) for each in update.tensors)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in pending:
                        parameter.grad = None

    def drop_gradient(self, parameter):
        """Drops the gradient of a pending parameter after its update."""
        update = self._updates.get(self._of_tensor[id(parameter)])
        if update is not None:
            update.dropped.add(id(parameter))

    def _pending(self):
        """Returns the updates of parameters whose means are on their way, by their ids."""
        return {id(tensor): update for update in self._updates.values()
                for tensor in update.tensors}

    def finish_all(self):
        """Waits for all layers, and updates their parameters."""
        self.finish(list(self._updates))

    def finish_tensor(self, tensor):
        """Waits for the layer of a pending parameter or buffer, and updates it."""
        self.finish([self._of_tensor[id(tensor)]])

    def finish(self, layers, *_):
        """Waits for the means of layers, and updates their parameters."""
        for layer in layers:
            with self._lock:
                update = self._updates.get(layer)
                if update is None:
                    continue
                # The caller may be a forward, with modes of its own.
                with torch.inference_mode(False), torch.no_grad(), \
                        without_autocast(update.tensors[0].device.type):
                    self._finish(layer, update)

    def _finish(self, layer, update):
        with torch._C.DisableTorchFunction():  # The tensors are still pending.
            for tensor, gradient in zip(update.tensors, update.gradients):
                tensor.grad = gradient
            skipped = self._settle(layer)
        del self._updates[layer]
        for tensor in update.tensors:
            release(tensor)
        if not skipped:
            for optimizer, (step, groups) in update.steps.items():
                _run(optimizer, step, groups)
        for tensor in update.tensors:
            if id(tensor) in update.dropped:
                tensor.grad = None

    def forget(self):
        """Forgets all layers: the job has gone back, and their means do not come."""
        for update in self._updates.values():
            for tensor in update.tensors:
                release(tensor)
                tensor.grad = None
        self._updates.clear()


def _run(optimizer, step, groups):
    """Does a step of an optimizer for parts of its groups."""
    if not groups:
        return
    before, optimizer.param_groups = optimizer.param_groups, groups
    try:
        step()
    finally:
        optimizer.param_groups = before
