"""Layers of a torch model: which parameters make up which layer, and their memory.

A parameter of LARGE_VALUES values or more is a layer of its own. Smaller ones that follow each
other share a layer. Parameters stay where the program has them: a layer in torch's own memory is
that of one float32 parameter, and all others have a float32 copy, which is written before each
push and read when the client has written it.
"""

import functools
import warnings
import zlib

import torch

from ..errors import FAILED_PRECONDITION, InvalidArgument, NereusError
from ..layer import Layer
from . import watched
from .watched import raw_gradient

# Smallest parameter, in values, that is a layer of its own: 16 KiB.
LARGE_VALUES = 4096
# Largest layer that holds several parameters, in values: 64 KiB. A layer is pushed when all its
# gradients are there, so a large one comes late.
SHARED_VALUES_MAX = 16384

# Longest name of a layer, in characters; the library takes 256.
_NAME_LENGTH_MAX = 200

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


def wire_name(name):
    """Returns a name as printable ASCII of at most _NAME_LENGTH_MAX characters. Different names
    stay different: other characters are written as Python writes them in a text, and a long
    name is cut in its middle and ends with its checksum."""
    text = name.encode("unicode_escape", "backslashreplace").decode("ascii")
    if len(text) <= _NAME_LENGTH_MAX:
        return text
    part = (_NAME_LENGTH_MAX - 16) // 2
    return f"{text[:part]}...{text[-part:]} #{zlib.crc32(text.encode()):08x}"


def _unusual_form(tensor):
    """Returns the strides of a tensor in a format such as channels_last, and the type of one
    that is not float32; "" for others."""
    strides = "" if tensor.is_contiguous() else f" {tuple(tensor.stride())}"
    return strides + ("" if tensor.dtype == torch.float32 else f" {tensor.dtype}")


class Slot:
    """A parameter and its place in a layer.

    index: number among all parameters; -1 for a buffer.
    begin, end: its values in the layer.
    place: view of the layer's values, in the parameter's shape.
    used: True if its gradient came in this step. came: the same in this backward pass.
    is_sparse: True if its last gradient was sparse. Its means are then sparse, too: optimizers
        may compute something else from them.
    """

    def __init__(self, index, name, parameter, begin):
        self.index = index
        self.name = name
        self._parameter = parameter
        self.begin = begin
        self.end = begin + parameter.numel()
        self.form = _unusual_form(parameter)
        self._shape, self._stride = parameter.shape, parameter.stride()
        self._kind = parameter.dtype, parameter.device
        self.used = self.came = self.is_sparse = False
        self.place = None
        self.address = None  # Of `place`.
        self.bucket = None  # Its gradient in a bucket of DDP.

    @property
    def parameter(self):
        """The parameter, or the buffer, as the program has it now."""
        return self._parameter

    def view_of(self, values):
        """Returns this slot's part of an array of the layer, in the parameter's shape."""
        return torch.as_strided(values[self.begin:self.end], self._shape, self._stride)

    def is_elsewhere(self):
        """Returns True if the parameter is in other memory than the layer's values. Errors:
        InvalidArgument, it cannot be copied from there and back."""
        parameter = self.parameter
        if parameter.data_ptr() == self.address and parameter.dtype == torch.float32:
            return False
        if parameter.shape != self._shape or (parameter.dtype, parameter.device) != self._kind:
            raise InvalidArgument(
                f"parameter {self.name} has shape {tuple(parameter.shape)}, {parameter.dtype}, on "
                f"{parameter.device}; it had shape {tuple(self._shape)}, {self._kind[0]}, on "
                f"{self._kind[1]} when the worker joined its job: convert and move the model "
                "before you wrap the optimizer")
        return True


class BufferSlot(Slot):
    """A buffer and its place in a layer. The program may assign another tensor at any time."""

    def __init__(self, module, key, name, begin):
        self._module = module
        self._key = key
        super().__init__(-1, name, module._buffers[key], begin)

    @property
    def parameter(self):
        found = self._module._buffers.get(self._key)
        if found is None:
            raise InvalidArgument(f"buffer {self.name} is gone: the workers average it in each "
                                  "step, so it must stay in its module")
        return found


class TorchLayer:
    """Layer of the job: one large parameter, or several small ones.

    values: its parameters, flat. gradient: memory for a gradient, flat, or None. All are float32.
    pushed: what was pushed in this step, flat, or None.
    copies: True if a copy of the gradient is pushed, so that the program finds this worker's own
        gradient in the rest of the backward pass. So it is in the first step that has its
        gradient; later, if the program reads gradients in backward.
    """

    may_have_factors = False

    def __init__(self, slots):
        self.slots = slots
        self.index = None  # Number among the layers.
        self.values = None
        self.gradient = None
        self.state = None
        self.pushed = None
        self.copies = True
        self._reads = {}  # Number of changes of each gradient, by slot, when it was read.
        self.missing = 0  # Gradients of this backward pass that have not come.
        self._parts = []  # Views of `gradient`, of each slot.
        self._has_told = False  # True if a warning has told of sparse gradients.

    @functools.cached_property
    def name(self):
        """Name in plans and messages. Layers of other models have other names: that of several
        parameters ends with a checksum of their names and shapes. Strides that are not the
        usual ones are part of the name, because the values lie in their order. So is a type
        that is not float32, because its values are rounded."""
        first, last = self.slots[0], self.slots[-1]
        if first is last:
            return wire_name(first.name + first.form)
        parts = "".join(f"{slot.name} {tuple(slot.parameter.shape)}{slot.form}\n"
                        for slot in self.slots)
        checksum = zlib.crc32(parts.encode("utf-8", "surrogatepass"))
        return wire_name(f"{first.name} to {last.name} #{checksum:08x}")

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

    @functools.cached_property
    def gathers(self):
        """True if gradients are copied to `gradient`, the layer's own memory."""
        return self.is_shared or self.slots[0].parameter.dtype != torch.float32

    def bind(self, state_arrays):
        """Makes the memory that the client uses. Returns the layer for it."""
        first = self.slots[0].parameter
        if self.gathers:
            self.values = torch.empty(self.size, device=first.device)
            self.gradient = torch.zeros_like(self.values)
            self._parts = [slot.view_of(self.gradient) for slot in self.slots]
        else:
            # Not detach(): a write here, when the program has exchanged the parameter's memory,
            # would count as a change of the parameter.
            self.values = flat(first.data)
        if state_arrays:
            self.state = torch.zeros(state_arrays * self.size, device=first.device)
        for slot in self.slots:
            slot.place = slot.view_of(self.values)
            slot.address = slot.place.data_ptr()
        self.give()
        m = first.shape[0] if self._kind != "vector" else None
        return Layer(self.name, self._kind, self.values, m=m,
                     n=self.size // m if m is not None else None, state=self.state,
                     **self._factor_options())

    def _factor_options(self):
        return {}

    def state_view(self, slot, array):
        """Returns a slot's part of an array of the optimizer's state."""
        return slot.view_of(self.state[array * self.size:(array + 1) * self.size])

    @torch.no_grad()
    def give(self):
        """Writes the parameters to `values`, for the client."""
        for slot in self.slots:
            if slot.is_elsewhere():
                slot.place.copy_(slot.parameter)

    @torch.no_grad()
    def take_over(self):
        """Called when the client has written `values`."""
        for slot in self.slots:
            if slot.is_elsewhere():
                slot.parameter.copy_(slot.place)

    # ---- The gradients of a step.

    def begin(self, client):
        """Begins a step, or begins it again."""
        self.pushed, self._reads = None, {}
        for slot in self.slots:
            slot.used = False
            watched.release(slot.parameter)
        self.begin_pass()

    def begin_pass(self):
        """Begins a backward pass of the step."""
        self.missing = len(self.slots)
        for slot in self.slots:
            slot.came = False

    def note_zero(self):
        """Called when the program has set the gradients to zero by its optimizer."""

    def has_withheld(self):
        """Returns True if a gradient of this step is not in .grad yet."""
        return False

    def send(self, client, step, stream):
        """Pushes the layer's gradient of a step."""
        self.pushed = self.collect()
        if step.loss_scale != 1:
            self.pushed.mul_(step.loss_scale)
        client.push(self.index, step, self.pushed, stream=stream)

    def note_read(self, slot, sets):
        """Called when the program reads a gradient that was sent, in the rest of the backward
        pass, or sets one. Errors: NereusError, this worker's own gradient is not there."""
        if sets or not self._keeps_own():
            raise self._sent_error(slot, "set" if sets else "read, for the first time,")
        self._reads.setdefault(slot, raw_gradient(slot.parameter)._version)

    def _keeps_own(self):
        """Returns True if this worker's own gradient stays in .grad until the end of backward."""
        return self.gathers or self.copies

    def end_backward(self, looks):
        """Called when a backward pass is over that has sent the gradient. looks: True if the
        program reads gradients in backward."""
        reads, self._reads = self._reads, {}
        self.copies = looks or self.copies and not any(slot.came for slot in self.slots)
        for slot, version in reads.items():
            if raw_gradient(slot.parameter)._version != version:
                raise self._sent_error(slot, "changed")

    def _sent_error(self, slot, how):
        return NereusError(
            f"the gradient of parameter {slot.name} was {how} in a backward pass after it was "
            "sent to the other workers: do backward within optimizer.no_sync(), then what is to "
            "be done with this worker's gradients, and call optimizer.synchronize()",
            FAILED_PRECONDITION)

    def collect(self):
        """Returns the layer's gradient of this step, flat; zeros where there is none."""
        if not self.gathers:
            own = self._own_gradient(self.slots[0])
            return own.clone() if self.copies else own
        for slot, part in zip(self.slots, self._parts):
            gradient = slot.parameter.grad
            if gradient is None:
                part.zero_()
                continue
            slot.is_sparse = gradient.is_sparse
            if slot.is_sparse or gradient.data_ptr() != part.data_ptr():
                part.copy_(_dense(gradient))
        return self.gradient

    def _own_gradient(self, slot):
        gradient = slot.parameter.grad
        if gradient is None:
            return torch.zeros_like(self.values)
        gradient = gradient.detach()
        slot.is_sparse = gradient.is_sparse
        if slot.is_sparse:
            self._tell_of_sparse(slot)
        values = None if gradient.is_sparse else flat(gradient)
        if values is None or gradient.stride() != slot.place.stride():
            gradient = torch.empty_like(slot.place).copy_(_dense(gradient))
            values = flat(gradient)
        return values

    def _tell_of_sparse(self, slot):
        if self._has_told or self.size < LARGE_VALUES:
            return
        self._has_told = True
        warnings.warn(
            f"gradients of parameter {slot.name} are sparse, but workers average dense ones: all "
            f"{self.size} values ({self.size * 4e-6:.3g} MB) travel to and from each worker and "
            "are updated in each step. If that is too slow, run the job with --wire=bf16, use a "
            "smaller table, or freeze it")

    def _mean_of(self, index):
        """Returns the mean gradient of a slot, in the parameter's shape and in float32."""
        return self._parts[index] if self.gathers else self.slots[index].view_of(self.pushed)

    def place_of_mean(self, index):
        """Returns a tensor that stands for the mean gradient of a slot until that is there."""
        if self.gathers:
            return torch.empty_like(self.slots[index].parameter)
        return self._mean_of(index)

    def distribute(self, is_used):
        """Gives each parameter its mean gradient, which is in `pushed`.

        is_used: function of a slot; False if no worker had its gradient."""
        for index, slot in enumerate(self.slots):
            parameter = slot.parameter
            gradient = parameter.grad
            if gradient is None and not is_used(slot):
                continue  # torch's optimizer leaves the parameter alone.
            mean = self._mean_of(index)
            if slot.is_sparse:
                # The rows that are not zero.
                parameter.grad = mean.to(parameter.dtype).to_sparse(1)
            elif gradient is None:
                # .data: programs detach gradients in place, which torch refuses for views.
                parameter.grad = (mean.to(parameter.dtype, copy=True) if self.gathers
                                  else mean.data)
            elif gradient.data_ptr() != mean.data_ptr():
                gradient.copy_(mean)

    def skip(self):
        """Makes the gradients of a skipped step infinite, as a GradScaler expects them."""
        for slot in self.slots:
            if slot.parameter.grad is None:
                slot.parameter.grad = torch.empty_like(slot.parameter)
            gradient = slot.parameter.grad
            if not gradient.is_sparse:
                gradient.fill_(float("inf"))


class StatisticsLayer(TorchLayer):
    """Layer of BatchNorm's running statistics, whose mean all workers get, so that replicas
    stay equal. What travels is their change in this step, because a change in 16 bits would
    be lost in a sum with the statistics.

    They are written as torch's BatchNorm writes them, by .data: a graph that was made before, of
    which a backward is still to come, does not use them.
    """

    gathers = True

    def bind(self, state_arrays):
        layer = super().bind(state_arrays)
        self._base = torch.empty_like(self.values)  # Statistics before this step.
        return layer

    def take_over(self):
        self._write()
        self._base.copy_(self.values)

    def _write(self):
        for slot in self.slots:
            if slot.is_elsewhere():
                slot.parameter.data.copy_(slot.place)

    def collect(self):
        self.give()
        self._sent = [slot.parameter for slot in self.slots]
        torch.sub(self.values, self._base, out=self.gradient)
        # Workers that join read the values until the mean is there. If the job skips the step,
        # the statistics stay as they were before it.
        self.values.copy_(self._base)
        self._write()
        return self.gradient

    def distribute(self, is_used):
        self._base.add_(self.pushed)
        self.values.copy_(self._base)
        for slot, sent in zip(self.slots, self._sent):
            if slot.parameter is sent:  # With updates in the next forward it may be another one.
                sent.data.copy_(slot.place)

    def skip(self):
        """The statistics stay as before the step."""


def _is_statistic(key, buffer, device):
    return (key in ("running_mean", "running_var") and buffer.device == device
            and buffer.dtype in _TYPES and buffer.numel() > 0 and flat(buffer) is not None)


def statistics_layer(model, device):
    """Returns the layer of a model's running statistics; None if there are none."""
    slots = []
    for prefix, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and _is_statistic(key, buffer, device):
                name = f"{prefix}.{key}" if prefix else key
                slots.append(BufferSlot(module, key, name, slots[-1].end if slots else 0))
    return StatisticsLayer(slots) if slots else None


def other_buffers(model, device):
    """Returns names and tensors of a model's buffers that workers do not average."""
    return [(name, buffer) for name, buffer in model.named_buffers()
            if not _is_statistic(name.rpartition(".")[2], buffer, device)]


def _dense(gradient):
    return gradient.to_dense() if gradient.is_sparse else gradient


def sparse_weights(model):
    """Returns the ids of the weights of a model whose gradients are sparse."""
    if model is None:
        return set()
    return {id(module.weight) for module in model.modules()
            if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse}


def layers_of(named, kind_of=lambda name: TorchLayer):
    """Returns the layers of parameters in the order of the model. A layer of several comes where
    its first one is: the forward pass needs it there, and frames of layers go in this order.

    named: list of names and parameters. kind_of: function from the name of a parameter to a
    function from a list of slots to its layer. Errors: InvalidArgument.
    """
    layers, shared = [], []

    def close():
        if shared:
            layers.append(kind_of(shared[0].name)(list(shared)))
            shared.clear()

    for index, (name, parameter) in enumerate(named):
        _check(name, parameter)
        if parameter.numel() >= LARGE_VALUES:
            layers.append(kind_of(name)([Slot(index, name, parameter, 0)]))
            continue
        begin = shared[-1].end if shared else 0
        if begin + parameter.numel() > SHARED_VALUES_MAX or (
                shared and shared[0].parameter.dtype != parameter.dtype):
            close()
            begin = 0
        shared.append(Slot(index, name, parameter, begin))
    close()
    return sorted(layers, key=lambda layer: layer.slots[0].index)


def _check(name, parameter):
    if parameter.dtype not in _TYPES:
        raise InvalidArgument(
            f"parameter {name} has values of type {parameter.dtype}, must be torch.float32, "
            "torch.bfloat16 or torch.float16: convert the model (model.float())")
    if parameter.numel() == 0:
        raise InvalidArgument(f"parameter {name} has no values: freeze it "
                              "(requires_grad_(False)), or leave it out of the optimizer")
    if flat(parameter.detach()) is None:
        raise InvalidArgument(
            f"parameter {name} has shape {tuple(parameter.shape)} and strides "
            f"{parameter.stride()}, whose values do not lie one after the other: make it "
            "contiguous")


def check_separate(layers):
    """Checks that no two parameters share memory. For updates that come one after the other:
    the memory would have a part of them when it is read. Errors: InvalidArgument."""
    spans = sorted(
        (parameter.data_ptr(), parameter.data_ptr() + parameter.numel() * parameter.element_size(),
         slot.name) for layer in layers for slot in layer.slots for parameter in [slot.parameter])
    for (_, end, name), (begin, _, other) in zip(spans, spans[1:]):
        if begin < end:
            raise InvalidArgument(
                f'parameters {name} and {other} share memory, which overlap="dear" cannot update '
                "one after the other: use one parameter in both places, or no overlap")


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
