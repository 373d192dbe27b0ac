"""Updates that wait for the next forward (`overlap="dear"`).

`backward` returns when all gradients are on their way, and `optimizer.step()` only notes what
is to be done. The forward of each module waits for the means of its own parameters and updates
them. So the second half of a round overlaps with the forward pass (Zhang et al., "DeAR", ICDCS
2023, section 3).
"""

import torch

from ..errors import FAILED_PRECONDITION, NereusError
from .hooks import WeakCall


class PendingGradient(torch.Tensor):
    """Gradient of a parameter whose mean is on its way. Each use of it is an error, because
    the memory is the client's, and has another worker's values at any time."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        raise NereusError(
            "a gradient was used before the mean over all workers was there: with "
            'overlap="dear", call optimizer.synchronize() after backward, before the gradients '
            "are clipped, scaled or looked at", FAILED_PRECONDITION)


class _Update:
    """What is to be done with a layer's parameters, once their mean gradient is there."""

    def __init__(self):
        self.parameters = []  # Parameters, each with this worker's gradient, or None.
        self.step = None  # Step of the optimizer, and its groups at that time.
        self.drops = False  # True if the gradient is not needed after the step.


class DeferredUpdates:
    """Layers whose means are on their way.

    optimizer: the torch optimizer.
    settle: function of a layer, which waits for its mean and gives it to the parameters.
        Returns True if the job has skipped the step.
    """

    def __init__(self, optimizer, settle):
        self._optimizer = optimizer
        self._settle = settle
        self._updates = {}  # By layer, in the order of forward.
        self._needed = {}  # By the name of a module, layers that its forward uses.
        self._called = set()  # Names of modules that were called; None: after the first step.

    def hook(self, model, layers):
        """Makes each module of a model finish the layers of its own parameters and buffers
        before its forward, and when they are saved."""
        of_tensor = {id(slot.parameter): layer for layer in layers for slot in layer.slots}
        for name, module in model.named_modules():
            own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            self._needed[name] = list(dict.fromkeys(
                of_tensor[id(each)] for each in own if id(each) in of_tensor))
            module.register_forward_pre_hook(WeakCall(self._enter, module, name))
            # A state_dict has the memory of the parameters, which are updated there.
            module._register_state_dict_hook(
                WeakCall(self.finish, module, self._needed[name]))

    def _enter(self, name, *_):
        if self._called is not None:
            self._called.add(name)
        self.finish(self._needed[name])

    def _learn(self):
        """Finds modules that were not called in the first step. Their parameters belong to
        the next module around them that was: torch.nn.MultiheadAttention, for example, uses
        the weight of a module of its own."""
        for name in list(self._needed):
            around = name
            while around and around not in self._called:
                around = around.rpartition(".")[0]
            if around != name:
                self._needed[around] += self._needed[name]
        self._called = None

    def __contains__(self, layer):
        return layer in self._updates

    def begin(self, layers):
        """Notes that the gradients of layers are on their way."""
        if self._called is not None:
            self._learn()
        for layer in layers:
            update = self._updates[layer] = _Update()
            for index, slot in enumerate(layer.slots):
                if slot.index < 0:  # A buffer.
                    continue
                parameter = slot.parameter
                update.parameters.append((parameter, parameter.grad))
                parameter.grad = torch.Tensor._make_subclass(
                    PendingGradient, layer.mean_view(index))

    def step(self, step):
        """Does a step of the optimizer: at once for parameters whose mean is there, later for
        the others.

        step: function without arguments, which updates the parameters of all groups."""
        groups = self._optimizer.param_groups
        pending = self._pending()
        self._run(step, groups, lambda parameter: id(parameter) not in pending)
        # A scheduler may change the groups before the step is done.
        noted = [dict(group) for group in groups]
        for update in self._updates.values():
            update.step = step, noted

    def drop_gradients(self):
        """Drops the gradients of pending parameters after their update, and all others now:
        the caller has set them to zero."""
        pending = self._pending()
        for update in self._updates.values():
            update.drops = True
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in pending:
                    parameter.grad = None

    def _pending(self):
        """Returns the ids of the parameters whose means are on their way."""
        return {id(parameter) for update in self._updates.values()
                for parameter, _ in update.parameters}

    def finish_all(self, *_):
        """Waits for all layers, and updates their parameters."""
        self.finish(list(self._updates))

    @torch.no_grad()
    def finish(self, layers, *_):
        """Waits for the means of layers, and updates their parameters."""
        for layer in layers:
            update = self._updates.get(layer)
            if update is None:
                continue
            own = update.parameters
            for parameter, gradient in own:
                parameter.grad = gradient
            skipped = self._settle(layer)
            del self._updates[layer]
            if update.step is not None and not skipped:
                step, groups = update.step
                keys = {id(parameter) for parameter, _ in own}
                self._run(step, groups, lambda parameter: id(parameter) in keys)
            if update.drops:
                for parameter, _ in own:
                    parameter.grad = None

    def forget(self):
        """Forgets all layers: the job has gone back, and their means do not come."""
        for update in self._updates.values():
            for parameter, _ in update.parameters:
                parameter.grad = None
        self._updates.clear()

    def _run(self, step, groups, is_due):
        """Does a step of the optimizer for some of its parameters."""
        due = [{**group, "params": [each for each in group["params"] if is_due(each)]}
               for group in groups]
        due = [group for group in due if group["params"]]
        if not due:
            return
        before, self._optimizer.param_groups = self._optimizer.param_groups, due
        try:
            step()
        finally:
            self._optimizer.param_groups = before
