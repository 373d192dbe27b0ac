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
from .alike import FLAGS

_log = logging.getLogger("nereus")

# Arguments that say how an optimizer computes, not what. Some of them need a GPU.
_WAYS_TO_COMPUTE = ("capturable", "differentiable", "foreach", "fused")
# Types of state that a float32 holds without loss.
_STATE_TYPES = (torch.float32, torch.bfloat16, torch.float16)
# Lengths of the dimensions of parameters of trial steps. State whose shape is made of some of
# them is told from state of the parameter's shape.
_TRIAL_LENGTHS = (4, 3, 2, 5, 6, 7)
# Number of values from which on optimizers in few bits keep these, and a shape of as many.
_LARGE = 4096
_LARGE_SHAPE = (64, 128)


def plain_class(optimizer):
    """Returns the class of an optimizer before it was wrapped."""
    return getattr(type(optimizer), "plain_class", type(optimizer))


def class_names(optimizers):
    """Returns the names of the optimizers' classes, for messages."""
    return ", ".join(plain_class(each).__name__ for each in optimizers)


def kinds_of_state(optimizers, sparse=()):
    """Returns the names of the optimizers' state, for each parameter: tensors of the parameter's
    shape in floats of at most 32 bits, and numbers. None if they cannot be found out, or if
    there is other state. sparse: ids of parameters whose gradients are sparse."""
    tensors, numbers = set(), set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            is_sparse = any(id(each) in sparse for each in group["params"])
            for shape, trial_is_sparse in itertools.product(
                    _trial_shapes(group["params"]), {False, is_sparse}):
                try:
                    state = _trial_state(optimizer, group, shape, is_sparse=trial_is_sparse)
                except Exception:  # An optimizer with arguments of its own, or with a closure.
                    if trial_is_sparse:
                        continue  # It takes no sparse gradients, as its first step will say.
                    return None
                for name, value in state.items():
                    if isinstance(value, torch.Tensor) and value.shape == shape:
                        if value.dtype not in _STATE_TYPES or type(value) is not torch.Tensor:
                            return None
                        tensors.add(name)
                    elif _is_number(value):
                        numbers.add(name)
                    elif value is not None:
                        return None
            if not _has_known_state(optimizer, group, tensors, numbers):
                return None
    if tensors & numbers:
        return None
    return sorted(tensors), sorted(numbers)


def _has_known_state(optimizer, group, tensors, numbers):
    """Returns True if the state that parameters of a group have by now is of known kinds: an
    optimizer may choose it by the parameter's size."""
    for parameter in group["params"]:
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape \
                    and value.numel() > 1:
                if name not in tensors or value.dtype not in _STATE_TYPES or \
                        type(value) is not torch.Tensor:
                    return False
            elif value is not None and not (
                    name in (numbers | tensors) and _is_number(value)):
                return False
    return True


def _is_number(value):
    return (isinstance(value, torch.Tensor) and value.numel() == 1
            or isinstance(value, (int, float)) and not isinstance(value, bool))


def _trial_shape(parameter):
    """Returns the shape of a small parameter with as many dimensions, at least one: a number's
    state could not be told from other numbers."""
    return _TRIAL_LENGTHS[:max(1, parameter.dim())]


def _trial_shapes(parameters):
    """Returns the shapes of trial parameters for a group: some optimizers keep other state of
    matrices, or of large parameters."""
    shapes = {_trial_shape(each) for each in parameters}
    if any(each.dim() == 2 and each.numel() >= _LARGE for each in parameters):
        shapes.add(_LARGE_SHAPE)
    return shapes


def _trial_state(optimizer, group, shape, steps=True, is_sparse=False, **tensor_options):
    """Returns the state of a small parameter after a step with the options of a group.

    steps: False for the state that the constructor makes. is_sparse: True for a sparse gradient.
    tensor_options: arguments of torch.zeros, such as dtype."""
    options = {name: value for name, value in group.items()
               if name in optimizer.defaults and name not in _WAYS_TO_COMPUTE}
    parameter = torch.zeros(shape, requires_grad=True, **tensor_options)
    made = plain_class(optimizer)
    # A class may have defaults that its constructor does not take: since torch 2.6 AdamW has one
    # of Adam's.
    taken = inspect.signature(made).parameters
    takes_all = any(each.kind == each.VAR_KEYWORD for each in taken.values())
    trial = made([parameter], **{name: value for name, value in options.items()
                                 if takes_all or name in taken})
    trial.param_groups[0].update(options)
    if not steps:
        return trial.state[parameter]

    def closure():
        parameter.grad = torch.zeros_like(parameter)
        if is_sparse:
            parameter.grad = parameter.grad.to_sparse(1)
        return parameter.sum()

    with torch.enable_grad():
        closure()
        needs = inspect.signature(trial.step).parameters.get("closure")
        if needs is not None and needs.default is needs.empty:
            trial.step(closure)
        else:
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

    place: index of the element; None: the value is no pair. owner: the optimizer in messages, ""
    if there is only one.
    """

    def __init__(self, optimizer, owner, index, name, place=None):
        self._optimizer = optimizer
        self._owner = owner
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
        return (f"{self._name}{place}={_text(own)} in parameter group {self._index}{self._owner} "
                f"on this worker and {_text(jobs)} in the job")


def _text(value):
    return str(value) if isinstance(value, bool) else f"{float(value):g}"


def _numbers_of_groups(optimizers):
    """Returns all numbers of the optimizers' groups that say what they compute."""
    found = []
    for number, optimizer in enumerate(optimizers):
        owner = f" of optimizer {number}" if len(optimizers) > 1 else ""
        for index, group in enumerate(optimizer.param_groups):
            for name in sorted(group):
                value = group[name]
                if name in _WAYS_TO_COMPUTE or name == "params":
                    continue
                if _is_number(value) or isinstance(value, bool):
                    found.append(_GroupNumber(optimizer, owner, index, name))
                elif isinstance(value, (tuple, list)):
                    found += [_GroupNumber(optimizer, owner, index, name, place)
                              for place, each in enumerate(value) if _is_number(each)]
    return found


def owners_of(optimizers):
    """Returns the optimizer of each parameter, by the parameter's id."""
    return {id(parameter): optimizer for optimizer in optimizers
            for group in optimizer.param_groups for parameter in group["params"]}


class Extras:
    """Layer of numbers beside the parameters, in memory of the host.

    Its gradient has one value for each parameter: 1 if this worker had its gradient. Then come
    the flags of the step (Alike). Its parameters are for workers that join: the numbers of the
    optimizers' state, then those of their groups, such as the learning rate.
    """

    NAME = "nereus.torch"
    def __init__(self, optimizers, slots, names):
        self._owners = owners_of(optimizers)
        self._slots = slots
        self._names = names
        self._count = len(slots) * len(names)
        self._of_groups = _numbers_of_groups(optimizers)
        size = _PARTS * (self._count + len(self._of_groups))
        self.values = torch.zeros(max(len(slots) + FLAGS, size))
        self.gradient = torch.zeros_like(self.values)

    def layer(self, state_arrays):
        # Each layer has as many arrays of state.
        state = torch.zeros(state_arrays * len(self.values)) if state_arrays else None
        return Layer(self.NAME, "vector", self.values, state=state)

    def write(self):
        """Writes the numbers, before they are pushed."""
        states = [self._owners[id(slot.parameter)].state.get(slot.parameter, {})
                  for slot in self._slots]
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

    def write_flags(self, flags, loss_scale):
        """Writes the gradient of this step, which the job divides by loss_scale. flags: those of
        Alike."""
        self.gradient.zero_()
        flags = [*(slot.used for slot in self._slots), *flags]
        self.gradient[:len(flags)] = torch.tensor(flags, dtype=torch.float32) * loss_scale

    def read_flags(self):
        """Returns for each parameter True if a worker had its gradient, and the means of the
        flags."""
        count = len(self._slots)
        found = self.gradient[:count + FLAGS].tolist()
        return [value > 0 for value in found[:count]], found[count:]

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
    """State of the optimizers, whose tensors are views of the layers' state."""

    def __init__(self, optimizers, layers, tensor_names):
        self._optimizers = optimizers
        self._owners = owners_of(optimizers)
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
            state = self._owners[id(slot.parameter)].state.get(slot.parameter)
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
        groups = {id(parameter): group for optimizer in self._optimizers
                  for group in optimizer.param_groups for parameter in group["params"]}
        for slot, places in itertools.chain.from_iterable(self._places.values()):
            found, parameter = numbers[slot.index], slot.parameter
            optimizer, group = self._owners[id(parameter)], groups[id(parameter)]
            options = {"dtype": parameter.dtype, "device": parameter.device}
            is_new = not any(found.values()) and not any(bool(place.any())
                                                         for place, _ in places.values())
            if is_new and not optimizer.state.get(parameter):
                continue
            examples = _trial_state(optimizer, group, _trial_shape(parameter), not is_new,
                                    **options)
            if is_new and not examples:
                del optimizer.state[parameter]  # As in a new job.
                continue
            state = optimizer.state[parameter]
            state.update({name: place.to(examples[name].dtype)
                          for name, (place, _) in places.items() if name in examples})
            on_gpu = group.get("capturable") or group.get("fused")
            for name, value in found.items():
                if name in examples:
                    number = _like(examples[name], value)
                    state[name] = (number.to(parameter.device)
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
