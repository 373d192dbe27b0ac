"""Layers of a torch model: which parameters make up which layer, and their memory.

A parameter of LARGE_VALUES values or more is a layer of its own, in torch's own memory.
Smaller ones that follow each other share a layer, whose memory they are moved to. Parameters in
bfloat16 or float16 stay where they are; their layer has a float32 copy of them.
"""

import functools
import logging
import zlib

import torch

from ..errors import FAILED_PRECONDITION, InvalidArgument, NereusError
from ..layer import Layer

_log = logging.getLogger("nereus")

# Smallest parameter, in values, that is a layer of its own: 16 KiB.
LARGE_VALUES = 4096
# Largest layer that holds several parameters, in values: 64 KiB. A layer is pushed when all its
# gradients are there, so a large one comes late.
SHARED_VALUES_MAX = 16384

# Types of parameters; those that are not float32 are copied to it and from it.
_TYPES = (torch.float32, torch.bfloat16, torch.float16)

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


def _unusual_form(tensor):
    """Returns the strides of a tensor in a format such as channels_last, and the type of one
    that is not float32; "" for others."""
    strides = "" if tensor.is_contiguous() else f" {tuple(tensor.stride())}"
    return strides + ("" if tensor.dtype == torch.float32 else f" {tensor.dtype}")


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
        self.bucket = None  # Its gradient in a bucket of DDP.

    def view_of(self, values):
        """Returns this slot's part of an array of the layer, in the parameter's shape."""
        return torch.as_strided(values[self.begin:self.end], self.parameter.shape,
                                self.parameter.stride())


class TorchLayer:
    """Layer of the job: one large parameter, or several small ones.

    rows: rows of its factors; 0: it has none.
    values: its parameters, flat. gradient: memory for a gradient, flat, or None. All are float32.
    pushed: what was pushed in this step, flat, or None.
    """

    def __init__(self, slots, rows=0):
        self.slots = slots
        self.rows = rows
        self.index = None  # Number among the layers.
        self.capture = None  # Of the module whose weight this is, if rows > 0.
        self.sends_factors = False  # True if this step's plan sends factors.
        self.values = None
        self.gradient = None
        self.state = None
        self.pushed = None
        self.missing = 0  # Gradients of this backward pass that have not come.
        self._parts = []  # Views of `gradient`, of each slot.
        self._has_told = False  # True if a warning has told of a step with more rows.
        self._is_checked = False  # True if factors were compared with a gradient.
        # Gradient of a layer with factors at the begin of the step, its values if they are
        # needed, and the number of changes of its memory.
        self._before = self._before_values = self._version = None

    @functools.cached_property
    def name(self):
        """Name in plans and messages. Layers of other models have other names: that of several
        parameters ends with a checksum of their names and shapes. Strides that are not the
        usual ones are part of the name, because the values lie in their order. So is a type
        that is not float32, because its values are rounded."""
        first, last = self.slots[0], self.slots[-1]
        if first is last:
            return first.name + _unusual_form(first.parameter)
        parts = "".join(f"{slot.name} {tuple(slot.parameter.shape)}"
                        f"{_unusual_form(slot.parameter)}\n" for slot in self.slots)
        return f"{first.name} to {last.name} #{zlib.crc32(parts.encode()):08x}"

    @property
    def exported_name(self):
        """Name of the layer's values in a file of `nereusctl export`."""
        is_plain = self._kind == "vector" or self.name.endswith(".weight")
        return self.name if is_plain else f"{self.name}.weight"

    @property
    def _kind(self):
        shape = self.slots[0].parameter.shape
        return "vector" if self.is_shared else _KINDS.get(len(shape), "vector")

    @property
    def size(self):
        return self.slots[-1].end

    @property
    def is_shared(self):
        """True if several parameters share the layer."""
        return len(self.slots) > 1

    @property
    def is_copied(self):
        """True if the parameters are not float32, so that `values` is a copy of them."""
        return self.slots[0].parameter.dtype != torch.float32

    @property
    def gathers(self):
        """True if gradients are copied to `gradient`, the layer's own memory."""
        return self.is_shared or self.is_copied

    def bind(self, state_arrays):
        """Puts the parameters where the client finds them. Returns the layer for it."""
        first = self.slots[0].parameter
        with torch.no_grad():
            if self.gathers:
                self.values = torch.empty(self.size, device=first.device)
                self.gradient = torch.zeros_like(self.values)
                self._parts = [slot.view_of(self.gradient) for slot in self.slots]
                for slot in self.slots:
                    place = slot.view_of(self.values)
                    place.copy_(slot.parameter)
                    if not self.is_copied:
                        slot.parameter.data = place
            else:
                self.values = flat(first.detach())
            if state_arrays:
                self.state = torch.zeros(state_arrays * self.size, device=first.device)
        for slot in self.slots:
            slot.address = slot.parameter.data_ptr()
        m = first.shape[0] if self._kind != "vector" else None
        return Layer(self.name, self._kind, self.values, rows=max(1, self.rows), m=m,
                     n=self.size // m if m is not None else None,
                     has_factors=self.rows > 0, state=self.state)

    def state_view(self, slot, array):
        """Returns a slot's part of an array of the optimizer's state."""
        return slot.view_of(self.state[array * self.size:(array + 1) * self.size])

    def take_over(self):
        """Called when the client has written `values`."""
        if self.is_copied:
            for slot in self.slots:
                slot.parameter.copy_(slot.view_of(self.values))

    def give(self):
        """Writes the parameters to `values`, for the client."""
        if self.is_copied:
            for slot in self.slots:
                slot.view_of(self.values).copy_(slot.parameter)

    def check_addresses(self):
        """Checks that the parameters are where they were when the worker joined."""
        for slot in self.slots:
            if slot.parameter.data_ptr() != slot.address:
                raise InvalidArgument(
                    f"parameter {slot.name} was moved to other memory after the first step, "
                    "so that Nereus cannot find it: move the model to its device before you "
                    "wrap the optimizer, and use copy_() in place of an assignment to .data")

    # ---- The gradients of a step.

    def begin(self):
        """Begins a step, or begins it again."""
        self.pushed = None
        for slot in self.slots:
            slot.used = False
        self.begin_pass()
        if self.capture is None:
            return
        self.capture.clear()
        # The first step with a gradient compares it with the product of the factors.
        self.capture.keeps = self.sends_factors or not self._is_checked
        self.capture.gives_product = not self.sends_factors or not self._is_checked
        self._before = self.slots[0].parameter.grad
        self._version = self._before._version if self._before is not None else None
        self._before_values = None
        if self._before is not None and not self._is_checked:
            self._before_values = self._before.clone()

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
        """Returns the layer's gradient of this step, flat; zeros where there is none."""
        if self.has_factors and self.sends_factors:
            return self._product()
        if not self.gathers:
            return self._own_gradient(self.slots[0])
        for slot, part in zip(self.slots, self._parts):
            gradient = slot.parameter.grad
            if gradient is None:
                part.zero_()
            elif gradient.data_ptr() != part.data_ptr():
                part.copy_(_dense(gradient))
        return self.gradient

    def _own_gradient(self, slot):
        gradient = slot.parameter.grad
        if gradient is None:
            return torch.zeros_like(self.values)
        gradient = gradient.detach()
        values = None if gradient.is_sparse else flat(gradient)
        if values is None or gradient.stride() != slot.parameter.stride():
            gradient = torch.empty_like(slot.parameter).copy_(_dense(gradient))
            values = flat(gradient)
        return values

    def check_factors(self, passes):
        """Checks the captured factors of this step. Errors: NereusError."""
        capture, slot = self.capture, self.slots[0]
        if capture.rows > self.rows and self.sends_factors and not self._has_told:
            self._has_told = True
            _log.warning(
                "layer %s has %d rows in this step, more than the %d that its workers agreed on: "
                "where the plan sends its factors, this worker sends its gradient instead. If "
                "there are many such steps, pass rows={'%s': %d}", self.name, capture.rows,
                self.rows, slot.name, -(-capture.rows // passes))
        gradient = slot.parameter.grad
        if self._is_checked:
            if self.sends_factors and gradient is not None and (
                    gradient is not self._before or gradient._version != self._version):
                raise NereusError(self._difference("its weight has a gradient beside it"),
                                  FAILED_PRECONDITION)
            return
        if not slot.used or capture.rows == 0 or gradient is None:
            return
        own = gradient if self._before_values is None else gradient - self._before_values
        if bool(torch.isfinite(own).all()):  # Not after an overflow, of a GradScaler.
            difference = capture.difference(own)
            if not difference <= capture.tolerance:
                raise NereusError(self._difference(f"they differ by {100 * difference:.2g} %"),
                                  FAILED_PRECONDITION)
            self._is_checked = True
        if self.sends_factors:
            slot.parameter.grad = self._before
            if self._before is not None:
                self._before.copy_(self._before_values)

    def _difference(self, how):
        return (f"the gradient of {self.name} is not the product of its factors ({how}): the "
                "loss, or another function, uses the weight itself. Pass factors=False, or the "
                "names of other modules")

    def take_factors(self):
        """Returns output gradient and input for push_factors, zeros without a gradient."""
        parameter = self.slots[0].parameter
        if self.capture.rows == 0:
            factors = tuple(self.values.new_zeros(self.rows, count)
                            for count in parameter.shape)
        else:
            factors = self.capture.stacked(self.rows)
        self.capture.clear()
        self._before = parameter.grad
        return factors

    def _product(self):
        """Returns the product of the factors, flat, which have too many rows to be sent."""
        slot = self.slots[0]
        self._before = slot.parameter.grad
        place = self.place_for_mean()
        place.view(slot.parameter.shape).copy_(self.capture.product())
        self.capture.clear()
        return place

    def place_for_mean(self):
        """Returns memory for the mean gradient of a layer with factors, flat. It is that of
        the last step only if the parameter still has it."""
        if self.is_copied:
            return self.gradient
        gradient = self.slots[0].parameter.grad
        if gradient is not None and self.gradient is not None and \
                gradient.data_ptr() == self.gradient.data_ptr() and \
                not (gradient.is_cuda or bool(gradient.any())):
            self._before = None  # Zeros: the mean may take their place.
            return self.gradient
        self.gradient = torch.empty_like(self.values)
        return self.gradient

    def _mean_of(self, index):
        """Returns the mean gradient of a slot, in the parameter's shape and in float32."""
        return self._parts[index] if self.gathers else self.slots[index].view_of(self.pushed)

    def place_of_mean(self, index):
        """Returns a tensor that stands for the mean gradient of a slot until that is there."""
        if self.is_copied:
            return torch.empty_like(self.slots[index].parameter)
        return self._mean_of(index)

    def distribute(self, is_used):
        """Gives each parameter its mean gradient, which is in `pushed`.

        is_used: function of a slot; False if no worker had its gradient."""
        for index, slot in enumerate(self.slots):
            gradient = slot.parameter.grad
            if gradient is None and not is_used(slot):
                continue  # torch's optimizer leaves the parameter alone.
            mean = self._mean_of(index)
            if self.sends_factors and self._before is not None:
                gradient.add_(mean)  # torch adds gradients to those that are there.
            elif gradient is None or gradient.is_sparse:
                slot.parameter.grad = (mean.to(slot.parameter.dtype, copy=True)
                                       if self.gathers else mean)
            elif gradient.data_ptr() != mean.data_ptr():
                gradient.copy_(mean)
        self._before = None

    def skip(self):
        """Makes the gradients of a skipped step infinite, as a GradScaler expects them."""
        for slot in self.slots:
            if slot.parameter.grad is None:
                slot.parameter.grad = torch.empty_like(slot.parameter)
            gradient = slot.parameter.grad
            if not gradient.is_sparse:
                gradient.fill_(float("inf"))
        self._before = None


class StatisticsLayer(TorchLayer):
    """Layer of BatchNorm's running statistics, whose mean all workers get, so that replicas
    stay equal. What travels is their change in this step, because a change in 16 bits would
    be lost in a sum with the statistics.
    """

    def bind(self, state_arrays):
        layer = super().bind(state_arrays)
        self._base = torch.empty_like(self.values)  # Statistics before this step.
        return layer

    def take_over(self):
        super().take_over()
        self._base.copy_(self.values)

    def collect(self):
        if self.gradient is None:
            self.gradient = torch.empty_like(self.values)
        self.give()
        torch.sub(self.values, self._base, out=self.gradient)
        # Workers that join read the values until the mean is there. If the job skips the step,
        # the statistics stay as they were before it.
        self.values.copy_(self._base)
        super().take_over()
        return self.gradient

    def distribute(self, is_used):
        self._base.add_(self.pushed)
        self.values.copy_(self._base)
        super().take_over()

    def skip(self):
        """The statistics stay as before the step."""


def statistics_layer(model, device):
    """Returns the layer of a model's running statistics; None if there are none."""
    slots = []
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")) and buffer.device == device and \
                buffer.dtype in _TYPES and buffer.is_contiguous() and \
                (not slots or buffer.dtype == slots[0].parameter.dtype):
            slots.append(Slot(-1, name, buffer, slots[-1].end if slots else 0))
    return StatisticsLayer(slots) if slots else None


def _dense(gradient):
    return gradient.to_dense() if gradient.is_sparse else gradient


def layers_of(named, rows, kind_of=lambda name: TorchLayer):
    """Returns the layers of parameters in the order of the model.

    named: list of names and parameters. rows: dict from names of weights to the rows of
    their factors. kind_of: function from the name of a parameter to the class of its layer.
    Errors: InvalidArgument.
    """
    layers, shared = [], []

    def close():
        if shared:
            layers.append(kind_of(shared[0].name)(list(shared)))
            shared.clear()

    for index, (name, parameter) in enumerate(named):
        _check(name, parameter)
        if parameter.numel() >= LARGE_VALUES:
            layers.append(kind_of(name)([Slot(index, name, parameter, 0)],
                                        rows.get(name, 0)))
            continue
        begin = shared[-1].end if shared else 0
        if begin + parameter.numel() > SHARED_VALUES_MAX or (
                shared and shared[0].parameter.dtype != parameter.dtype):
            close()
            begin = 0
        shared.append(Slot(index, name, parameter, begin))
    close()
    return layers


def _check(name, parameter):
    if parameter.dtype not in _TYPES:
        raise InvalidArgument(
            f"parameter {name} has values of type {parameter.dtype}, must be torch.float32, "
            "torch.bfloat16 or torch.float16")
    if parameter.numel() == 0:
        raise InvalidArgument(f"parameter {name} has no values: freeze it "
                              "(requires_grad_(False)), or leave it out of the optimizer")
    if flat(parameter.detach()) is None:
        raise InvalidArgument(
            f"parameter {name} has shape {tuple(parameter.shape)} and strides "
            f"{parameter.stride()}, whose values do not lie one after the other: make it "
            "contiguous")


def check_known(optimizer, known):
    """Checks that each parameter of the optimizer with a gradient is known. known: container
    of the ids of parameters."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in known and parameter.grad is not None:
                raise NereusError(
                    f"a parameter of shape {tuple(parameter.shape)} has a gradient, but was "
                    "frozen, or not in the optimizer, when that was wrapped: wrap the "
                    "optimizer once it has all parameters", FAILED_PRECONDITION)
