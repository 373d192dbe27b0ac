"""Factors of torch.nn.Linear: taken in the backward pass, checked, and pushed.

The weight's gradient of a fully connected layer is the product of two matrices with one row
for each row of the layer's input (Poseidon, Zhang et al., USENIX ATC 2017, section 2.2).
If a layer goes by its factors, its workers exchange these rows and need not multiply them
before. FactorLinear takes the rows where torch would multiply them.

A layer has factors only if the product is its gradient, and nothing but the optimizer looks at
it. So the life of a FactorLayer is:

  unchecked --a step whose gradient is the product--> has factors
  any       --the product is not the gradient, or something reads or changes it--> lost

Until it is checked, and once it is lost, torch multiplies, and the gradient travels. A step in
which the plan sends factors may have both parts: those that were taken, and what torch has
accumulated before or beside them. The worker then pushes the whole gradient in place of factors.
"""

import collections.abc
import contextlib
import logging
import weakref

import torch
from torch.nn import functional

from ..errors import InvalidArgument
from . import watched
from .hooks import WeakCall
from .layout import LARGE_VALUES, TorchLayer
from .watched import raw_gradient

_log = logging.getLogger("nereus")

# Largest relative difference between a weight's gradient and the product of its factors. With
# autocast, torch multiplies rounded factors.
TOLERANCE = 1e-3
TOLERANCE_ROUNDED = 3e-2

# Rows that set_factor_rows tells of a layer without factors.
NO_FACTORS = -1

_layers = weakref.WeakKeyDictionary()  # FactorLayer of each FactorLinear, as a weak reference.


# Returns True while torch.compile, or torch.export, traces a forward. The code that it makes has no
# factors.
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def new_object(kind):
    """Returns an object of a class before its __init__, for __reduce_ex__."""
    return kind.__new__(kind)


class FactorLinear(torch.nn.Linear):
    """Linear whose factors are taken. Copies of it, and what is loaded from a file, are
    plain torch.nn.Linear."""

    def forward(self, input):
        if _is_compiling():
            return functional.linear(input, self.weight, self.bias)
        layer = _layers[self]() if self in _layers else None
        weight, bias = self.weight, self.bias
        # The program may have put another tensor in the weight's place.
        if layer is None or weight is not layer.weight or layer.is_lost or not (
                torch.is_grad_enabled() and weight.requires_grad):
            return functional.linear(input, weight, bias)
        rows = input.reshape(-1, input.shape[-1])
        # Casts outside of the product: autocast would keep the cast weight, without its
        # history, for other functions.
        dtype = _autocast_type(input.device.type)
        if dtype is not None:
            rows, weight = rows.to(dtype), weight.to(dtype)
            bias = bias.to(dtype) if bias is not None else None
        output = _Multiply.apply(rows, weight, bias, layer)
        return output.view(*input.shape[:-1], output.shape[-1])

    def __reduce_ex__(self, protocol):
        return new_object, (torch.nn.Linear,), self.__dict__


def _autocast_type(device):
    """Returns the type in which autocast multiplies; None without autocast."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def without_autocast(device):
    """Returns a context without autocast. That of torch takes time even where it changes
    nothing."""
    if _autocast_type(device) is None:
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)


class _Multiply(torch.autograd.Function):
    """functional.linear for a matrix of rows, which gives its factors to a FactorLayer."""

    @staticmethod
    def forward(ctx, rows, weight, bias, layer):
        ctx.save_for_backward(rows, weight)
        ctx.layer = layer
        return functional.linear(rows, weight, bias)

    # Its operations have a history of their own if the program wants a graph of gradients.
    @staticmethod
    def backward(ctx, output_gradient):
        rows, weight = ctx.saved_tensors
        of_rows = of_weight = of_bias = None
        if ctx.needs_input_grad[1] and ctx.layer.take(output_gradient, rows):
            of_weight = output_gradient.t() @ rows.to(output_gradient.dtype)
            of_weight = of_weight.to(weight.dtype)
        if ctx.needs_input_grad[0]:
            of_rows = (output_gradient @ weight.to(output_gradient.dtype)).to(rows.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = output_gradient.sum(0).to(weight.dtype)
        return of_rows, of_weight, of_bias, None


class FactorLayer(TorchLayer):
    """Layer of a Linear's weight, whose gradient may travel as factors.

    rows: rows to tell the job (Client.set_factor_rows); 0: not known yet.
    reason: why the layer has lost its factors; "" if it has not.
    """

    may_have_factors = True

    def __init__(self, slots, module, begin_backward, rows):
        """begin_backward: function without arguments, called before a part is taken; it begins
        the step if none is open. rows: rows of a step as the caller gives them; 0: those of
        the first step."""
        super().__init__(slots)
        self.weight = slots[0].parameter
        self.rows = 0
        self.reason = ""
        self._begin_backward = begin_backward
        self._given_rows = rows
        with torch.enable_grad():
            self._node = self.weight.expand_as(self.weight).grad_fn.next_functions[0][0]
        self._has_told_rows = False  # True if a warning has told of a step with more rows.
        # In one step: rows of the factors that the plan sends, 0: it sends gradients; True if
        # torch does not multiply; the parts; how many of them torch has accumulated; True if
        # some were not float32.
        self._plan_rows = 0
        self._withholds = False
        self._parts_taken = []
        self._accumulated = 0
        self._is_rounded = False
        # The gradient when the step's first backward began; the number of its changes; its
        # values, or None if they are zero. Address and version of a gradient that the optimizer
        # has set to zero.
        self._before = self._version = self._before_values = None
        self._zero = None
        _layers[module] = weakref.ref(self)
        module.__class__ = FactorLinear

    def _factor_options(self):
        return {"has_factors": True, "rows": 0}

    @property
    def is_lost(self):
        """True if the layer has no factors any more."""
        return self.rows == NO_FACTORS

    def lose(self, reason):
        """Notes why the layer goes by its gradient from now on."""
        if self.is_lost:
            return
        self.reason, self.rows = reason, NO_FACTORS
        if not self._withholds:
            self._parts_taken = []  # They were to be compared.

    # ---- The backward pass.

    def take(self, output_gradient, rows):
        """Takes the factors of one use of the layer. Returns True if torch must compute the
        weight's gradient."""
        if torch.is_grad_enabled():
            self.lose("a graph of gradients goes through it (create_graph=True)")
            return True
        try:
            if not torch._C._will_engine_execute_node(self._node):
                return False  # Nothing asks for the weight's gradient.
        except RuntimeError:  # torch.autograd.grad asks for it.
            return True
        self._begin_backward()
        self._look()
        if self.is_lost:
            return True
        if self._withholds or self.rows == 0:
            self._is_rounded |= output_gradient.dtype != torch.float32
            part = output_gradient.float(), rows.detach().float()
            self._parts_taken.append((*part, _Made.now(self.weight)))
        if self._withholds:
            watched.watch(self.weight, WeakCall(self._settle))
        return not self._withholds

    def _look(self):
        """Loses the factors if something looks at the weight's gradient."""
        weight = self.weight
        if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):
            self.lose("its weight has a hook")
        elif not watched.can_watch(weight):
            self.lose(f"its weight has become a {type(weight).__qualname__}")

    def note_accumulated(self):
        """Called when torch has accumulated the weight's gradient."""
        self._accumulated = len(self._parts_taken)

    def has_withheld(self):
        return self._withholds and bool(self._parts_taken)

    def _settle(self, _):
        """Called when the program is about to read or set the gradient. Adds the parts that torch
        has accumulated to it, as if torch had multiplied them, and loses the factors."""
        self.lose("its gradient was read or set before it was averaged")
        parts = self._parts_taken[:self._accumulated]
        self._parts_taken = self._parts_taken[self._accumulated:]
        self._accumulated = 0
        if parts:
            self._add(parts)

    def _add(self, parts):
        """Adds the product of parts to the gradient."""
        with torch.no_grad():
            product = self._product(parts).to(self.weight.dtype)
            gradient = raw_gradient(self.weight)
            if gradient is None:
                torch.Tensor.grad.__set__(self.weight, product)
            else:
                gradient.add_(product)

    def _product(self, parts):
        """Returns the product of parts, m x n, in float32. There is at least one part."""
        with without_autocast(self.weight.device.type):
            return sum(given.t() @ rows for given, rows, _ in parts)

    @property
    def _rows_taken(self):
        return sum(len(rows) for _, rows, _ in self._parts_taken)

    # ---- The gradient of a step.

    def begin(self, client):
        super().begin(client)
        self._plan_rows = client.factor_rows(self.index)
        self._withholds = self._plan_rows > 0 and self.rows > 0
        self._is_rounded = False
        self.drop_parts()

    def drop_parts(self):
        """Forgets the parts of this step."""
        watched.release(self.weight)
        self._parts_taken, self._accumulated = [], 0

    def note_zero(self):
        gradient = self.weight.grad
        self._zero = None if gradient is None else (gradient.data_ptr(), gradient._version)

    def begin_backward(self):
        """Notes the gradient to which this step adds. It is needed if the plan sends factors, of
        this step alone, and to compare the gradient with the product."""
        if self._parts_taken or self.slots[0].used or self._plan_rows == 0 and self.rows != 0:
            return
        zero, self._zero = self._zero, None
        self.forget_before()
        self._before = before = self.weight.grad
        if before is None:
            return
        self._version = before._version
        is_zero = zero == (before.data_ptr(), before._version) or not (
            before.is_cuda or bool(before.any()))
        if not is_zero:
            self._before_values = before.clone()

    @property
    def adds(self):
        """True if this step's mean is added to a gradient that was there, which must then be
        there on all workers."""
        return self._plan_rows > 0 and self._before_values is not None

    def take_all(self):
        """Lets all of the gradient be of this step, in which no backward has reached it."""
        self.begin_backward()
        if self._before_values is not None:
            self.forget_before()

    def forget_before(self):
        self._before = self._version = self._before_values = None

    def _is_changed(self):
        """Returns True if torch, or the program, has changed the gradient in this step."""
        gradient = self.weight.grad
        return gradient is not self._before or (
            gradient is not None and gradient._version != self._version)

    def _own(self):
        """Returns what was added to the gradient in this step, in the weight's shape."""
        gradient = self.weight.grad
        own = torch.zeros_like(self.weight) if gradient is None else gradient
        own = own.detach().float()
        return own if self._before_values is None else own - self._before_values

    def note_read(self, slot, sets):
        if not sets:
            self.lose("its gradient was read in a backward pass")
            if self.has_withheld():  # They were sent, in whatever form.
                self._add(self._parts_taken)
                self._parts_taken = []
        super().note_read(slot, sets)

    def _keeps_own(self):
        return self._plan_rows > 0 or super()._keeps_own()

    def end_backward(self, looks):
        self._parts_taken = []
        super().end_backward(looks)

    def send(self, client, step, stream):
        watched.release(self.weight)
        self._follow()
        if self.rows == 0:
            self._check()
        if self._plan_rows == 0:
            self._parts_taken = []
            return super().send(client, step, stream)
        self.begin_backward()  # Has an effect if no gradient came.
        is_changed = self._is_changed()
        if is_changed or self._rows_taken > self._plan_rows:
            self._send_gradient(client, step, stream, is_changed)
        else:
            self._send_factors(client, step, stream)

    def _send_factors(self, client, step, stream):
        if self._parts_taken:
            output_gradient, rows = (
                _stack([part[which] for part in self._parts_taken], self._plan_rows)
                for which in (0, 1))
        else:
            output_gradient, rows = (self.values.new_zeros(self._plan_rows, count)
                                     for count in self.weight.shape)
        if step.loss_scale != 1:
            output_gradient = output_gradient * step.loss_scale
        self.pushed = self._place_for_mean()
        client.push_factors(self.index, step, output_gradient, rows, self.pushed, stream=stream)

    def _send_gradient(self, client, step, stream, is_changed):
        """Sends this step's gradient in place of factors."""
        if self.has_withheld() and self._rows_taken > self._plan_rows:
            self._tell_rows()
        self.pushed = self._place_for_mean()
        place = self.pushed.view(self.weight.shape) if not self.gathers else self._parts[0]
        if is_changed:
            own = self._own()
            if self.has_withheld():
                own = own + self._product(self._parts_taken)
            place.copy_(own)
        else:
            place.copy_(self._product(self._parts_taken))
        if step.loss_scale != 1:
            self.pushed.mul_(step.loss_scale)
        client.push(self.index, step, self.pushed, stream=stream)

    def _tell_rows(self):
        if self._has_told_rows:
            return
        self._has_told_rows = True
        _log.warning(
            "layer %s has %d rows in this step, more than the %d that its workers agreed on: "
            "this worker sends its gradient instead of its factors. If there are many such steps, "
            "pass rows={%r: %d}", self.name, self._rows_taken, self._plan_rows,
            self.slots[0].name, self._rows_taken)

    def _follow(self):
        """Makes the current stream of a GPU wait until the parts are made: backward runs on the
        streams of the forward, and this on that on which the worker has joined."""
        for output_gradient, rows, made in self._parts_taken:
            made.follow(output_gradient, rows)

    def _check(self):
        """Compares the gradient with the product of the factors, if this step has both."""
        if not (self.slots[0].used and self._is_changed()):
            return
        if not self._parts_taken:
            return self.lose("torch.compile has compiled it, or its weight was used "
                             "outside of its module")
        own = self._own()
        if not bool(torch.isfinite(own).all()):
            return  # After an overflow, of a GradScaler.
        size = max(float(torch.linalg.norm(own)), 1e-30)
        found = float(torch.linalg.norm(self._product(self._parts_taken) - own)) / size
        if found <= (TOLERANCE_ROUNDED if self._is_rounded else TOLERANCE):
            self.rows = self._given_rows or self._rows_taken
        else:
            self.lose("its gradient is not the product of its factors (they differ by "
                      f"{100 * found:.2g} %): its weight is used elsewhere")

    def _place_for_mean(self):
        """Returns memory for the mean gradient, flat. It is that of the last step only if the
        weight still has it, and it is zero."""
        if self.gathers:
            return self.gradient
        before, last = self._before, self.gradient
        if before is None or last is None or self._before_values is not None or \
                before.data_ptr() != last.data_ptr() or self._is_changed():
            self.gradient = torch.empty_like(self.values)
        return self.gradient

    def distribute(self, is_used):
        if self._plan_rows == 0:
            return super().distribute(is_used)
        before, values = self._before, self._before_values
        self._before = self._before_values = None
        slot = self.slots[0]
        if before is None:
            if not is_used(slot) and self.weight.grad is None:
                return
            mean = self._mean_of(0)
            self.weight.grad = (mean.to(self.weight.dtype, copy=True) if self.gathers
                                else mean.data)
            return
        mean = self._mean_of(0)
        if values is not None:
            before.copy_(values + mean)  # torch adds gradients to those that are there.
        elif before.data_ptr() != mean.data_ptr():
            before.copy_(mean)
        self.weight.grad = before

    def skip(self):
        self._before = self._before_values = None
        super().skip()


class _Made:
    """The point in a GPU's work at which a part is made."""

    def __init__(self, stream, event):
        self._stream = stream
        self._event = event

    @classmethod
    def now(cls, tensor):
        if not tensor.is_cuda:
            return cls(None, None)
        stream = torch.cuda.current_stream(tensor.device)
        return cls(stream, stream.record_event())

    def follow(self, *tensors):
        """Makes the current stream wait for the point, if the work is on another one."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self._stream.device)
        if current != self._stream:
            current.wait_event(self._event)
            for each in tensors:
                each.record_stream(current)


def _stack(parts, rows):
    """Returns matrices below each other, with rows of zeros below them."""
    missing = rows - sum(len(part) for part in parts)
    if len(parts) == 1 and missing == 0:
        return parts[0].contiguous()
    zeros = parts[0].new_zeros(missing, parts[0].shape[1])
    return torch.cat([*parts, zeros])


def candidates(model, names):
    """Returns the Linears whose gradients may be products: a dict from the name of the
    weight to the module, and a dict from the names of other Linears to reasons.

    names: "auto", or the names of modules that shall have factors. Errors: InvalidArgument,
    there is no such Linear.
    """
    if names != "auto":
        known = {name for name, module in model.named_modules()
                 if isinstance(module, torch.nn.Linear)}
        for name in names:
            if name not in known:
                raise InvalidArgument(f"factors names {name!r}, which is no torch.nn.Linear of "
                                      f"the model; there are {', '.join(sorted(known))}")
    uses = {}  # Modules that have a parameter, by its id.
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses.setdefault(id(parameter), []).append(module)
    found, reasons = {}, {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or (names != "auto" and name not in names):
            continue
        weight = f"{name}.weight" if name else "weight"
        reason = _why_not(module, uses)
        if reason:
            reasons[weight] = reason
        else:
            found[weight] = module
    return found, reasons


def _why_not(module, uses):
    """Returns the reason why a Linear has no factors; empty if it may have them."""
    if type(module) is not torch.nn.Linear:
        return f"it is a {type(module).__qualname__}, which may change torch.nn.Linear"
    weight = module._parameters.get("weight")
    if weight is None or "forward" in module.__dict__:
        return "its weight or its forward was replaced"
    if type(weight) is not torch.nn.Parameter:
        return f"its weight is a {type(weight).__qualname__}"
    if not weight.requires_grad:
        return "its weight is frozen"
    if weight.dtype == torch.float64:
        return "its weight has values of type torch.float64"
    if weight.numel() < LARGE_VALUES:
        return f"its weight has fewer than {LARGE_VALUES} values"
    if not weight.is_contiguous():
        return "its weight does not lie row by row in memory"
    if len(uses[id(weight)]) > 1:
        return "its weight belongs to several modules"
    return ""


def tensors(value):
    """Returns the tensors with a history in the output of a model."""
    found, seen = [], set()

    def look(each):
        if id(each) in seen:
            return
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            if each.grad_fn is not None and each.is_floating_point():
                found.append(each)
        elif isinstance(each, (list, tuple)):
            for item in each:
                look(item)
        elif isinstance(each, collections.abc.Mapping):
            for item in each.values():
                look(item)
        elif hasattr(each, "__dict__") and not isinstance(each, (torch.nn.Module, type)):
            for item in vars(each).values():
                look(item)

    look(value)
    return found
