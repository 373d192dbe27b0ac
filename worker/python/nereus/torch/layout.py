"""Layers of a torch model: which parameters make up which layer, and their memory.

A parameter of LARGE_VALUES values or more is a layer of its own, in torch's own memory.
Smaller ones that follow each other share a layer, whose memory they are moved to.
"""

import torch

from ..errors import InvalidArgument
from ..layer import Layer

# Smallest parameter, in values, that is a layer of its own: 16 KiB.
LARGE_VALUES = 4096
# Largest layer that holds several parameters, in values: 64 KiB. A layer is pushed when all its
# gradients are there, so a large one comes late.
SHARED_VALUES_MAX = 16384

# Kinds of layers, by the number of dimensions of the parameter.
_KINDS = {2: "fc", 3: "conv", 4: "conv", 5: "conv"}


def flat(tensor):
    """Returns the values of a tensor in the order of its memory, without a copy; None if
    they do not lie one after the other."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    permuted = tensor.permute(order)
    return permuted.view(-1) if permuted.is_contiguous() else None


class Slot:
    """A parameter and its place in a layer.

    index: number among all parameters.
    begin, end: its values in the layer.
    used: True if its gradient came in this step. came: the same in this backward pass.
    """

    def __init__(self, index, name, parameter, begin):
        self.index = index
        self.name = name
        self.parameter = parameter
        self.begin = begin
        self.end = begin + parameter.numel()
        self.used = self.came = False
        self.address = None  # Of the values, while the client uses them.

    def view_of(self, values):
        """Returns this slot's part of an array of the layer, in the parameter's shape."""
        return torch.as_strided(values[self.begin:self.end], self.parameter.shape,
                                self.parameter.stride())

    def check_address(self):
        """Checks that the parameter is where it was when the optimizer was wrapped."""
        if self.parameter.data_ptr() != self.address:
            raise InvalidArgument(
                f"parameter {self.name} was moved to other memory after the first step, so "
                "that Nereus cannot find it: move the model to its device before you wrap "
                "the optimizer, and use copy_() in place of an assignment to .data")


class TorchLayer:
    """Layer of the job: one large parameter, or several small ones.

    rows: rows of its factors; 0: it has none.
    values: its parameters, flat. gradient: memory for a gradient, flat, or None.
    pushed: what was pushed in this step, flat, or None.
    """

    def __init__(self, slots, rows=0):
        self.slots = slots
        self.rows = rows
        self.capture = None  # Of the module whose weight this is, if rows > 0.
        self.values = None
        self.gradient = None
        self.state = None
        self.pushed = None
        self.missing = 0  # Gradients of this backward pass that have not come.
        self.sends_factors = False  # True if this step's plan sends factors.
        self.kept = None  # Gradient of before the step, to which the mean is added.

    @property
    def name(self):
        """Name in plans and messages. Layers of other models have other names."""
        first, last = self.slots[0], self.slots[-1]
        return first.name if first is last else f"{first.name} to {last.name}"

    @property
    def size(self):
        return self.slots[-1].end

    @property
    def is_shared(self):
        """True if several parameters share the layer."""
        return len(self.slots) > 1

    def bind(self, state_arrays):
        """Puts the parameters where the client finds them. Returns the layer for it."""
        first = self.slots[0].parameter
        with torch.no_grad():
            if self.is_shared:
                self.values = torch.empty(self.size, device=first.device)
                self.gradient = torch.zeros_like(self.values)
                for slot in self.slots:
                    place = slot.view_of(self.values)
                    place.copy_(slot.parameter)
                    slot.parameter.data = place
            else:
                self.values = flat(first.detach())
            if state_arrays:
                self.state = torch.zeros(state_arrays * self.size, device=first.device)
        for slot in self.slots:
            slot.address = slot.parameter.data_ptr()
        shape = first.shape
        is_matrix = not self.is_shared and len(shape) in _KINDS
        return Layer(self.name, _KINDS[len(shape)] if is_matrix else "vector", self.values,
                     rows=max(1, self.rows), m=shape[0] if is_matrix else None,
                     n=self.size // shape[0] if is_matrix else None,
                     has_factors=self.rows > 0, state=self.state)

    def state_view(self, slot, array):
        """Returns a slot's part of an array of the optimizer's state."""
        return slot.view_of(self.state[array * self.size:(array + 1) * self.size])

    def begin(self):
        """Begins a step."""
        self.pushed = None
        for slot in self.slots:
            slot.used = False
        self.begin_pass()

    def begin_pass(self):
        """Begins a backward pass of the step."""
        self.missing = len(self.slots)
        for slot in self.slots:
            slot.came = False

    @property
    def has_factors(self):
        """True if factors of this step were captured."""
        return self.capture is not None and self.capture.rows > 0

    def collect(self):
        """Returns the layer's gradient of this step, flat; zeros where none came."""
        if not self.is_shared:
            return self._own_gradient(self.slots[0])
        for slot in self.slots:
            part = self.gradient[slot.begin:slot.end]
            if slot.used:
                slot.view_of(self.gradient).copy_(_dense(slot.parameter.grad))
            else:
                part.zero_()
        return self.gradient

    def _own_gradient(self, slot):
        gradient = slot.parameter.grad
        if not slot.used:
            return torch.zeros_like(self.values)
        values = None if gradient.is_sparse else flat(gradient)
        if values is None or gradient.stride() != slot.parameter.stride():
            gradient = torch.empty_like(slot.parameter).copy_(_dense(gradient))
            values = flat(gradient)
        return values

    def mean_place(self):
        """Returns memory for the mean gradient of a layer with factors, flat."""
        if self.gradient is None:
            self.gradient = torch.empty_like(self.values)
        return self.gradient

    def distribute(self, is_used):
        """Gives each parameter its mean gradient, which is in `pushed`.

        is_used: function of a slot; False if no worker had its gradient."""
        for slot in self.slots:
            if not slot.used and not is_used(slot):
                continue  # torch's optimizer leaves the parameter alone.
            mean = slot.view_of(self.pushed)
            gradient = slot.parameter.grad
            if gradient is None or gradient.is_sparse:
                slot.parameter.grad = mean.clone() if self.is_shared else mean
            elif gradient.data_ptr() != mean.data_ptr():
                gradient.copy_(mean)


class StatisticsLayer(TorchLayer):
    """Layer of BatchNorm's running statistics. Its gradient are the statistics of this
    worker, and their mean becomes those of all workers, so that replicas stay equal."""

    def collect(self):
        return self.mean_place().copy_(self.values)

    def distribute(self, is_used):
        with torch.no_grad():
            self.values.copy_(self.pushed)


def statistics_layer(model, device):
    """Returns the layer of a model's running statistics; None if there are none."""
    slots = []
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")) and buffer.device == device and \
                buffer.dtype == torch.float32 and buffer.is_contiguous():
            slots.append(Slot(-1, name, buffer, slots[-1].end if slots else 0))
    return StatisticsLayer(slots) if slots else None


def _dense(gradient):
    return gradient.to_dense() if gradient.is_sparse else gradient


def layers_of(named, rows):
    """Returns the layers of parameters in the order of the model.

    named: list of names and parameters. rows: dict from names of weights to the rows of
    their factors. Errors: InvalidArgument.
    """
    layers, shared = [], []

    def close():
        if shared:
            layers.append(TorchLayer(list(shared)))
            shared.clear()

    for index, (name, parameter) in enumerate(named):
        _check(name, parameter)
        if parameter.numel() >= LARGE_VALUES:
            layers.append(TorchLayer([Slot(index, name, parameter, 0)], rows.get(name, 0)))
            continue
        begin = shared[-1].end if shared else 0
        if begin + parameter.numel() > SHARED_VALUES_MAX:
            close()
            begin = 0
        shared.append(Slot(index, name, parameter, begin))
    close()
    return layers


def _check(name, parameter):
    if parameter.dtype != torch.float32:
        raise InvalidArgument(
            f"parameter {name} has values of type {parameter.dtype}, must be torch.float32: "
            "keep the parameters in float32, and use torch.autocast to compute in another "
            "type")
    if parameter.numel() == 0:
        raise InvalidArgument(f"parameter {name} has no values: freeze it "
                              "(requires_grad_(False)), or leave it out of the optimizer")
    if flat(parameter.detach()) is None:
        raise InvalidArgument(
            f"parameter {name} has shape {tuple(parameter.shape)} and strides "
            f"{parameter.stride()}, whose values do not lie one after the other: make it "
            "contiguous")
