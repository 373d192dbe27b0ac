"""Factors of torch.nn.Linear: captured in the backward pass, and checked.

The weight's gradient of a fully connected layer is the product of two matrices with one row
for each row of the layer's input (Poseidon, Zhang et al., USENIX ATC 2017, section 2.2).
If a layer goes by its factors, its workers exchange these rows and need not multiply them
before. FactorLinear takes the rows where torch would multiply them.

A layer has factors only if the product is its gradient: not if its weight is used by other
modules or functions, too. `measure` finds that out by one forward and backward pass.
"""

import collections.abc
import contextlib
import logging
import weakref

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..errors import InvalidArgument
from .layout import LARGE_VALUES

# Largest relative difference between a weight's gradient and the product of its factors. With
# autocast, torch multiplies rounded factors.
TOLERANCE = 1e-3
TOLERANCE_ROUNDED = 3e-2

_captures = weakref.WeakKeyDictionary()  # Capture of each FactorLinear.


def new_object(kind):
    """Returns an object of a class before its __init__, for __reduce_ex__."""
    return kind.__new__(kind)


class FactorLinear(torch.nn.Linear):
    """Linear whose factors are captured. Copies of it, and what is loaded from a file, are
    plain torch.nn.Linear."""

    def forward(self, input):
        capture = _captures.get(self)
        if capture is None or not (torch.is_grad_enabled() and self.weight.requires_grad):
            return functional.linear(input, self.weight, self.bias)
        rows, weight, bias = input.reshape(-1, input.shape[-1]), self.weight, self.bias
        # Casts outside of the product: autocast would keep the cast weight, without its
        # history, for other functions.
        dtype = _autocast_type(input.device.type)
        if dtype is not None:
            rows, weight = rows.to(dtype), weight.to(dtype)
            bias = bias.to(dtype) if bias is not None else None
        output = _Multiply.apply(rows, weight, bias, capture)
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
    """functional.linear for a matrix of rows, which gives its factors to a Capture."""

    @staticmethod
    def forward(ctx, rows, weight, bias, capture):
        ctx.save_for_backward(rows, weight)
        ctx.capture = capture
        return functional.linear(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, output_gradient):
        rows, weight = ctx.saved_tensors
        of_rows = of_weight = of_bias = None
        if ctx.needs_input_grad[1] and ctx.capture.take(output_gradient, rows):
            of_weight = output_gradient.t() @ rows.to(output_gradient.dtype)
            of_weight = of_weight.to(weight.dtype)
        if ctx.needs_input_grad[0]:
            of_rows = (output_gradient @ weight.to(output_gradient.dtype)).to(rows.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = output_gradient.sum(0).to(weight.dtype)
        return of_rows, of_weight, of_bias, None


class Capture:
    """Factors of one layer's backward passes since `clear`.

    What `take` keeps is pending, until `commit` says that it has become a gradient of the
    weight: torch.autograd.grad runs backward, too.

    begin: function without arguments, called before factors are taken. It may set the next
    two.
    keeps: True if factors are to be kept.
    gives_product: True if torch must compute the weight's gradient, too.
    """

    def __init__(self, module, begin=lambda: None):
        self.begin = begin
        self.keeps = True
        self.gives_product = True
        self.is_rounded = False
        self._pending = []
        self.clear()
        module.__class__ = FactorLinear
        _captures[module] = self
        self._module = weakref.ref(module)

    def remove(self):
        """Makes the module a plain Linear again."""
        module = self._module()
        if module is not None and _captures.pop(module, None) is not None:
            module.__class__ = torch.nn.Linear

    def take(self, output_gradient, rows):
        """Keeps the factors of one use of the layer. Returns True if torch must compute the
        weight's gradient."""
        self.begin()
        if self.keeps:
            self.is_rounded |= output_gradient.dtype != torch.float32
            self._pending.append((output_gradient.float(), rows.detach().float()))
        return self.gives_product

    def commit(self):
        for output_gradient, rows in self._pending:
            self.output_gradients.append(output_gradient)
            self.inputs.append(rows)
        self.drop_pending()

    def drop_pending(self):
        self._pending = []

    @property
    def rows(self):
        """Number of rows that were committed."""
        return sum(len(each) for each in self.inputs)

    def clear(self):
        self.output_gradients, self.inputs = [], []

    def stacked(self, rows):
        """Returns output gradient (rows x m) and input (rows x n), with rows of zeros below
        those that were committed."""
        return tuple(_stack(parts, rows) for parts in (self.output_gradients, self.inputs))

    def difference(self, gradient):
        """Returns the relative difference between a weight's gradient and the product."""
        gradient = gradient.float()
        size = max(float(torch.linalg.norm(gradient)), 1e-30)
        return float(torch.linalg.norm(self.product() - gradient)) / size

    def product(self):
        """Returns the weight's gradient, m x n, in float32. There is at least one row."""
        with without_autocast(self.inputs[0].device.type):
            return sum(given.t() @ rows
                       for given, rows in zip(self.output_gradients, self.inputs))

    @property
    def tolerance(self):
        return TOLERANCE_ROUNDED if self.is_rounded else TOLERANCE


def _stack(parts, rows):
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


def measure(model, arguments, modules):
    """Finds the rows of each Linear, by one forward and backward pass of the model. Leaves
    gradients, buffers and random numbers as they were.

    arguments: arguments of model(...), a tuple and a dict.
    modules: dict from the name of each weight to its Linear.
    Returns a dict from names of weights to rows, and one from names to the reasons why
    others have no factors.
    """
    captures = {name: Capture(module) for name, module in modules.items()}
    parameters = dict(model.named_parameters())
    before = {name: parameter.grad for name, parameter in parameters.items()}
    buffers = [(module, name, buffer, buffer.clone()) for module in model.modules()
               for name, buffer in module._buffers.items() if buffer is not None]
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())] \
        if next(model.parameters()).is_cuda else []
    try:
        for parameter in parameters.values():
            parameter.grad = None
        with torch.random.fork_rng(devices), torch.enable_grad():
            _backward(model, _copied(arguments))
        for capture in captures.values():
            capture.commit()
        return _judge(captures, parameters)
    except Exception as error:  # The model's own errors come again in its real pass.
        logging.getLogger("nereus").warning(
            "factors are off, since the pass that measures the rows of layers failed: %s",
            error)
        return {}, {name: "the pass that measures rows failed" for name in captures}
    finally:
        for name, parameter in parameters.items():
            parameter.grad = before[name]
        with torch.no_grad():
            for module, name, buffer, values in buffers:
                module._buffers[name] = buffer.copy_(values)
        for capture in captures.values():
            capture.remove()


def _copied(arguments):
    """Returns copies of the arguments, without their history."""
    if isinstance(arguments, torch.Tensor):
        return arguments.detach().clone().requires_grad_(arguments.requires_grad)
    if type(arguments) in (list, tuple):
        return type(arguments)(_copied(each) for each in arguments)
    if type(arguments) is dict:
        return {key: _copied(each) for key, each in arguments.items()}
    return arguments


def _backward(model, arguments):
    args, kwargs = arguments
    outputs = tensors(model.forward(*args, **kwargs))
    if not outputs:
        raise ValueError("the model returns no tensor that depends on its parameters")
    # Random weights, since a gradient of ones is zero behind a softmax.
    sum((output.float() * (torch.rand_like(output.float()) + 0.5)).sum()
        for output in outputs).backward()


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


def _judge(captures, parameters):
    rows, reasons = {}, {}
    for name, capture in captures.items():
        gradient = parameters[name].grad
        if gradient is None or capture.rows == 0:
            reasons[name] = "the model's forward did not use it as a module"
            continue
        difference = capture.difference(gradient)
        if difference <= capture.tolerance:
            rows[name] = capture.rows
        else:
            reasons[name] = (f"its gradient is not the product of its factors (they differ "
                             f"by {100 * difference:.2g} %): its weight is used elsewhere")
    return rows, reasons
