"""State of a torch optimizer in the memory of the job's layers.

A worker that joins a running job needs momentum, moments and counters as the others have
them. State of a parameter's shape lives in the state of its layer; numbers such as `step`
in a layer of their own, `Extras`.
"""

import inspect
import itertools
import logging

import torch

from ..errors import FAILED_PRECONDITION, ModelMismatch
from ..layer import Layer

_log = logging.getLogger("nereus")

# Arguments that say how an optimizer computes, not what. Some of them need a GPU.
_WAYS_TO_COMPUTE = ("capturable", "differentiable", "foreach", "fused")
# Shapes of parameters of trial steps: state of a matrix may have other shapes.
_TRIAL_SHAPES = ((2, 3), (4,))


def plain_class(optimizer):
    """Returns the class of an optimizer before it was wrapped."""
    return getattr(type(optimizer), "plain_class", type(optimizer))


def kinds_of_state(optimizer):
    """Returns the names of an optimizer's state, for each parameter: those of the
    parameter's shape, and those that are numbers. None if they cannot be found out, or if
    there is other state."""
    tensors, numbers = set(), set()
    for group in optimizer.param_groups:
        for shape in _TRIAL_SHAPES:
            try:
                state = _trial_state(optimizer, group, shape)
            except Exception:  # An optimizer with arguments of its own, or with a closure.
                return None
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == shape:
                    tensors.add(name)
                elif _is_number(value):
                    numbers.add(name)
                elif value is not None:
                    return None
    return sorted(tensors), sorted(numbers)


def _is_number(value):
    return (isinstance(value, torch.Tensor) and value.numel() == 1
            or isinstance(value, (int, float)) and not isinstance(value, bool))


def _trial_state(optimizer, group, shape, **tensor_options):
    """Returns the state of a small parameter after a step with the options of a group.

    tensor_options: arguments of torch.zeros, such as dtype."""
    options = {name: value for name, value in group.items()
               if name in optimizer.defaults and name not in _WAYS_TO_COMPUTE}
    parameter = torch.zeros(shape, requires_grad=True, **tensor_options)
    parameter.grad = torch.zeros_like(parameter)
    made = plain_class(optimizer)
    # A class may have defaults that its constructor does not take: since torch 2.6 AdamW has one
    # of Adam's.
    taken = inspect.signature(made).parameters
    takes_all = any(each.kind == each.VAR_KEYWORD for each in taken.values())
    trial = made([parameter], **{name: value for name, value in options.items()
                                 if takes_all or name in taken})
    trial.param_groups[0].update(options)
    with torch.enable_grad():
        trial.step()
    return trial.state[parameter]


# Number of float32 values whose sum is a float64.
_PARTS = 3


def _split(values):
    """Returns numbers as rows of float32, whose sums are exact."""
    rest, parts = torch.tensor(values, dtype=torch.float64), []
    for _ in range(_PARTS):
        parts.append(rest.float())
        rest = rest - parts[-1].double()
    return torch.cat(parts)


def _joined(parts):
    return parts.view(_PARTS, -1).double().sum(0).tolist()


class _GroupNumber:
    """Number, or a pair's element or a switch, of one of an optimizer's groups. It counts for all
    workers, as the learning rate does.

    place: index of the element; None: the value is no pair.
    """

    def __init__(self, optimizer, index, name, place=None):
        self._optimizer = optimizer
        self._index = index
        self._name = name
        self._place = place

    @property
    def _group(self):
        return self._optimizer.param_groups[self._index]  # load_state_dict makes new groups.

    @property
    def value(self):
        found = self._group.get(self._name, 0.0)
        return found[self._place] if isinstance(found, (tuple, list)) else found

    def take(self, number):
        """Takes the job's number. Returns text that compares it with this worker's, or None if
        they are equal."""
        own, jobs = self.value, _like(self.value, number)
        if self._place is None:
            self._group[self._name] = jobs
        else:
            elements = list(self._group[self._name])
            elements[self._place] = jobs
            self._group[self._name] = type(self._group[self._name])(elements)
        if float(own) == number:
            return None
        place = "" if self._place is None else f"[{self._place}]"
        return (f"{self._name}{place}={_text(own)} in parameter group {self._index} on this "
                f"worker and {_text(jobs)} in the job")


def _text(value):
    return str(value) if isinstance(value, bool) else f"{float(value):g}"


def _numbers_of_groups(optimizer):
    """Returns all numbers of an optimizer's groups that say what it computes."""
    found = []
    for index, group in enumerate(optimizer.param_groups):
        for name in sorted(group):
            value = group[name]
            if name in _WAYS_TO_COMPUTE or name == "params":
                continue
            if _is_number(value) or isinstance(value, bool):
                found.append(_GroupNumber(optimizer, index, name))
            elif isinstance(value, (tuple, list)):
                found += [_GroupNumber(optimizer, index, name, place)
                          for place, each in enumerate(value) if _is_number(each)]
    return found


class Extras:
    """Layer of numbers beside the parameters, in memory of the host.

    Its gradient has one value for each parameter: 1 if this worker had its gradient. Its
    parameters are for workers that join: the numbers of the optimizer's state, then those
    of its groups, such as the learning rate.
    """

    NAME = "nereus.torch"

    def __init__(self, optimizer, slots, names):
        self._optimizer = optimizer
        self._slots = slots
        self._names = names
        self._count = len(slots) * len(names)
        self._of_groups = _numbers_of_groups(optimizer)
        size = _PARTS * (self._count + len(self._of_groups))
        self.values = torch.zeros(max(len(slots), size))
        self.gradient = torch.zeros_like(self.values)

    def layer(self, state_arrays):
        # Each layer has as many arrays of state.
        state = torch.zeros(state_arrays * len(self.values)) if state_arrays else None
        return Layer(self.NAME, "vector", self.values, state=state)

    def write(self):
        """Writes the numbers, before they are pushed."""
        states = [self._optimizer.state.get(slot.parameter, {}) for slot in self._slots]
        numbers = [state.get(name, 0.0) for name in self._names for state in states]
        numbers += [each.value for each in self._of_groups]
        on_gpu = [i for i, value in enumerate(numbers)
                  if isinstance(value, torch.Tensor) and value.is_cuda]
        if on_gpu:  # One copy for all.
            found = torch.stack([numbers[i].double().reshape(()) for i in on_gpu]).tolist()
            for i, value in zip(on_gpu, found):
                numbers[i] = value
        if numbers:
            self.values[:_PARTS * len(numbers)] = _split([float(each) for each in numbers])

    def _numbers(self):
        return _joined(self.values[:_PARTS * (self._count + len(self._of_groups))])

    def write_flags(self):
        """Writes the gradient of this step."""
        self.gradient.zero_()
        self.gradient[:len(self._slots)] = torch.tensor([float(slot.used)
                                                         for slot in self._slots])

    def numbers(self):
        """Returns the numbers of each slot: a list of dicts, in the order of slots."""
        values, count = self._numbers(), len(self._slots)
        return [{name: values[place * count + i] for place, name in enumerate(self._names)}
                for i in range(count)]

    def read_groups(self):
        """Gives the optimizer's groups the numbers of the job. Returns a text for each that
        differed, with this worker's number and the job's."""
        found = [each.take(number)
                 for each, number in zip(self._of_groups, self._numbers()[self._count:])]
        return [text for text in found if text is not None]


def _like(example, value):
    """Returns a number in the type of another."""
    if isinstance(example, torch.Tensor):
        return torch.full_like(example, value)
    return type(example)(value)


class BoundState:
    """State of the optimizer, whose tensors are views of the layers' state."""

    def __init__(self, optimizer, layers, tensor_names):
        self._optimizer = optimizer
        self._names = tensor_names
        self._places = {}  # By layer, slots and by name their places in the layer's memory.
        for layer in layers:
            found = self._places[layer] = []
            for slot in layer.slots:
                places = {name: layer.state_view(slot, array)
                          for array, name in enumerate(tensor_names)}
                found.append((slot, {name: (place, place.data_ptr())
                                     for name, place in places.items()}))

    def adopt_all(self):
        """Does `adopt` for all layers."""
        for layer in self._places:
            self.adopt(layer)

    def adopt(self, layer):
        """Moves tensors that the optimizer has made, or loaded, to the layer's memory. Copies
        tensors and parameters that are not float32. Call it before the layer is pushed: from
        then on, the client may read them."""
        layer.give()
        if not self._names:
            return
        for slot, places in self._places.get(layer, ()):
            state = self._optimizer.state.get(slot.parameter)
            if not state:
                continue
            for name, (place, address) in places.items():
                value = state.get(name)
                if isinstance(value, torch.Tensor) and value.data_ptr() != address:
                    place.copy_(value)
                    if value.dtype == place.dtype:
                        state[name] = place

    def restore(self, numbers):
        """Makes the optimizer's state from the layers' memory, in a worker that has joined
        a running job, or whose job has gone back.

        numbers: of each parameter, by name."""
        if not self._names and not any(numbers):
            return
        groups = {id(parameter): group for group in self._optimizer.param_groups
                  for parameter in group["params"]}
        for slot, places in itertools.chain.from_iterable(self._places.values()):
            found = numbers[slot.index]
            if not any(found.values()) and not any(bool(place.any())
                                                   for place, _ in places.values()):
                self._optimizer.state.pop(slot.parameter, None)  # The job is new.
                continue
            group = groups[id(slot.parameter)]
            examples = _trial_state(self._optimizer, group, _TRIAL_SHAPES[0],
                                    dtype=slot.parameter.dtype, device=slot.parameter.device)
            state = self._optimizer.state[slot.parameter]
            state.update({name: place.to(examples[name].dtype)
                          for name, (place, _) in places.items() if name in examples})
            on_gpu = group.get("capturable") or group.get("fused")
            for name, value in found.items():
                if name in examples:
                    number = _like(examples[name], value)
                    state[name] = (number.to(slot.parameter.device)
                                   if on_gpu and isinstance(number, torch.Tensor) else number)


def judge_numbers(differences, step, client):
    """Says that the job's numbers are not those of this worker's optimizer, if there are
    `differences`. Ends the job if it has only begun: a worker that joins later, or a job that
    goes on from a checkpoint, may have begun with other numbers."""
    if step.step > 0:
        for each in differences:
            _log.warning("the optimizer has %s, which counts", each)
    elif differences:
        reason = (f"the optimizer has {'; '.join(differences)}. The job has the numbers of the "
                  "worker that joined first: give the optimizers of all workers the same")
        client.abort(reason)
        raise ModelMismatch(reason, FAILED_PRECONDITION)
