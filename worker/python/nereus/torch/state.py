"""State of a torch optimizer in the memory of the job's layers.

A worker that joins a running job needs momentum, moments and counters as the others have
them. State of a parameter's shape lives in the state of its layer; numbers such as `step`
in a layer of their own, `Extras`.
"""

import torch

from ..layer import Layer


def kinds_of_state(optimizer):
    """Returns the names of an optimizer's state, for each parameter: those of the
    parameter's shape, and those that are numbers. Finds them by a step with a small
    parameter."""
    tensors, numbers = set(), set()
    for group in optimizer.param_groups:
        options = {name: value for name, value in group.items()
                   if name in optimizer.defaults and name != "params"}
        probe = torch.zeros(2, 3, requires_grad=True)
        probe.grad = torch.zeros(2, 3)
        try:
            trial = _plain_class(optimizer)([probe], **options)
            trial.step()
        except Exception:  # An optimizer with arguments of its own, or with a closure.
            return None
        for name, value in trial.state[probe].items():
            if isinstance(value, torch.Tensor) and value.shape == probe.shape:
                tensors.add(name)
            elif isinstance(value, (int, float)) or \
                    isinstance(value, torch.Tensor) and value.numel() == 1:
                numbers.add(name)
    return sorted(tensors), sorted(numbers)


def _plain_class(optimizer):
    return getattr(type(optimizer), "plain_class", type(optimizer))


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
        for slot, layer in self._places:
            found = numbers[slot.index]
            views = {name: layer.state_view(slot, array)
                     for array, name in enumerate(self._names)}
            is_new = not any(found.values()) and not any(bool(view.any())
                                                         for view in views.values())
            if is_new:
                continue
            state = self._optimizer.state[slot.parameter]
            state.update(views)
            for name, value in found.items():
                state[name] = _as_number(self._optimizer, name, value)


def _as_number(optimizer, name, value):
    """Returns a number of the state in the type that the optimizer uses."""
    probe = torch.zeros(1, requires_grad=True)
    probe.grad = torch.zeros(1)
    trial = _plain_class(optimizer)([probe], **{
        key: each for key, each in optimizer.param_groups[0].items()
        if key in optimizer.defaults})
    trial.step()
    example = trial.state[probe][name]
    if isinstance(example, torch.Tensor):
        return torch.full_like(example, value)
    return type(example)(value)
