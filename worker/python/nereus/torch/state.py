"""State of a torch optimizer in the memory of the job's layers.

A worker that joins a running job needs momentum, moments and counters as the others have
them. State of a parameter's shape lives in the state of its layer; numbers such as `step`
in a layer of their own, `Extras`.
"""

import torch

from ..layer import Layer


# Arguments that say how an optimizer computes, not what. Some of them need a GPU.
_WAYS_TO_COMPUTE = ("capturable", "differentiable", "foreach", "fused")


def kinds_of_state(optimizer):
    """Returns the names of an optimizer's state, for each parameter: those of the
    parameter's shape, and those that are numbers. None if they cannot be found out."""
    tensors, numbers = set(), set()
    for group in optimizer.param_groups:
        try:
            state = _trial_state(optimizer, group)
        except Exception:  # An optimizer with arguments of its own, or with a closure.
            return None
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == _TRIAL_SHAPE:
                tensors.add(name)
            elif isinstance(value, (int, float)) or \
                    isinstance(value, torch.Tensor) and value.numel() == 1:
                numbers.add(name)
    return sorted(tensors), sorted(numbers)


_TRIAL_SHAPE = (2, 3)


def _trial_state(optimizer, group):
    """Returns the state of a small parameter after a step with the options of a group."""
    options = {name: value for name, value in group.items()
               if name in optimizer.defaults and name not in _WAYS_TO_COMPUTE}
    parameter = torch.zeros(_TRIAL_SHAPE, requires_grad=True)
    parameter.grad = torch.zeros(_TRIAL_SHAPE)
    plain = getattr(type(optimizer), "plain_class", type(optimizer))
    trial = plain([parameter], **options)
    trial.step()
    return trial.state[parameter]


class Extras:
    """Layer of numbers beside the parameters, in memory of the host.

    Its gradient has one value for each parameter: 1 if this worker had its gradient. Its
    parameters are the numbers of the optimizer's state, for workers that join.
    """

    NAME = "nereus.torch"

    def __init__(self, slots, names):
        self._slots = slots
        self._names = names
        self.values = torch.zeros(len(slots) * max(1, len(names)))
        self.gradient = torch.zeros_like(self.values)

    def layer(self, state_arrays):
        # Each layer has as many arrays of state.
        state = torch.zeros(state_arrays * len(self.values)) if state_arrays else None
        return Layer(self.NAME, "vector", self.values, state=state)

    def write(self, optimizer):
        """Writes the numbers of the optimizer's state, before they are pushed."""
        states = [optimizer.state.get(slot.parameter, {}) for slot in self._slots]
        for place, name in enumerate(self._names):
            values = [state.get(name, 0.0) for state in states]
            if any(isinstance(value, torch.Tensor) and value.is_cuda for value in values):
                device = next(value.device for value in values
                              if isinstance(value, torch.Tensor))
                values = torch.stack([torch.as_tensor(value, device=device).float().reshape(())
                                      for value in values]).cpu()
            else:
                values = torch.tensor([float(value) for value in values])
            self.values[place * len(states):(place + 1) * len(states)] = values

    def write_flags(self):
        """Writes the gradient of this step."""
        self.gradient.zero_()
        self.gradient[:len(self._slots)] = torch.tensor([float(slot.used)
                                                         for slot in self._slots])

    def numbers(self):
        """Returns the numbers of each slot: a list of dicts, in the order of slots."""
        count = len(self._slots)
        columns = {name: self.values[place * count:(place + 1) * count].tolist()
                   for place, name in enumerate(self._names)}
        return [{name: values[i] for name, values in columns.items()} for i in range(count)]


class BoundState:
    """State of the optimizer, whose tensors are views of the layers' state."""

    def __init__(self, optimizer, layers, tensor_names):
        self._optimizer = optimizer
        self._places = [(slot, layer) for layer in layers for slot in layer.slots]
        self._names = tensor_names

    def adopt(self):
        """Moves tensors that the optimizer has made, or loaded, to the layers' memory."""
        for slot, layer in self._places:
            state = self._optimizer.state.get(slot.parameter)
            for array, name in enumerate(self._names if state else ()):
                value = state.get(name)
                if not isinstance(value, torch.Tensor):
                    continue
                place = layer.state_view(slot, array)
                if value.data_ptr() != place.data_ptr():
                    place.copy_(value)
                    state[name] = place

    def restore(self, numbers):
        """Makes the optimizer's state from the layers' memory, in a worker that has joined
        a running job.

        numbers: of each parameter, by name."""
        has_numbers = any(map(bool, numbers))
        examples = (_trial_state(self._optimizer, self._optimizer.param_groups[0])
                    if has_numbers else {})
        for slot, layer in self._places:
            found = numbers[slot.index]
            views = {name: layer.state_view(slot, array)
                     for array, name in enumerate(self._names)}
            is_new = not any(found.values()) and not any(bool(view.any())
                                                         for view in views.values())
            if is_new:
                self._optimizer.state.pop(slot.parameter, None)
                continue
            state = self._optimizer.state[slot.parameter]
            state.update(views)
            for name, value in found.items():
                example = examples[name]
                state[name] = (torch.full_like(example, value)
                               if isinstance(example, torch.Tensor) else type(example)(value))
