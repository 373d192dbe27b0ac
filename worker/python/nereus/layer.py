"""Layer of a model, as nereus.Client takes it."""

import math
from dataclasses import dataclass
from typing import Any, Optional

from . import _native, arguments, memory
from .errors import InvalidArgument


@dataclass
class Layer:
    """Layer of the model, and the memory of its values. The client uses the memory until
    it is closed, and keeps it alive.

    name: unique within the model.
    kind: "vector", "fc", "conv" or "embedding".
    parameters: writable float32 array in C order: the matrix, then the values beside it.
    rows: rows of the layer's input on one worker in one step, such as the batch size. With
        has_factors also 0: not known yet, see Client.set_factor_rows.
    m, n: rows and columns of the matrix. By default those of the array's first dimension
        and of all others; an array of one dimension is one row.
    has_factors: push_factors may push this layer, which must be of kind "fc".
    state: state of the caller's optimizer, with optimizer="worker": a float32 array of
        some times the parameters, zero in a new job.
    """

    name: str
    kind: str
    parameters: Any
    rows: int = 1
    m: Optional[int] = None
    n: Optional[int] = None
    has_factors: bool = False
    state: Any = None


class BoundLayer:
    """Layer whose arrays have been checked. Keeps their memory.

    struct: the layer as nereus_layer, but for on_host.
    """

    def __init__(self, index, layer):
        if not isinstance(layer, Layer):
            raise InvalidArgument(f"layers[{index}] is {layer!r}, must be a nereus.Layer")
        name = arguments.text(f"the name of layers[{index}]", layer.name)
        if layer.kind not in list(_native.LAYER_KINDS):
            raise InvalidArgument(f"layer {layer.name} has the kind {layer.kind!r}, must be "
                                  "one of " + ", ".join(_native.LAYER_KINDS))
        self.name = layer.name
        self.parameters = memory.view(f"the array parameters of layer {layer.name}",
                                      layer.parameters)
        m, n = _matrix(layer, self.parameters)
        self.struct = _native.Layer(
            kind=_native.LAYER_KINDS[layer.kind], name=name, m=m, n=n,
            parameters_count=self.parameters.length, rows=_number(layer, "rows"),
            has_factors=bool(layer.has_factors), parameters=self.parameters.address)
        self.state = None
        if layer.state is not None:
            self._bind_state(layer)

    def _bind_state(self, layer):
        self.state = memory.view(f"the array state of layer {layer.name}", layer.state)
        arrays, rest = divmod(self.state.length, self.parameters.length)
        if rest != 0:
            raise InvalidArgument(
                f"the array state of layer {layer.name} has {self.state.length} values, must "
                f"have a multiple of its {self.parameters.length} parameters")
        if self.state.device != self.device:
            raise InvalidArgument(f"layer {layer.name} has its parameters and its state on "
                                  "different devices")
        self.struct.state = self.state.address
        self.struct.state_arrays = arrays

    @property
    def device(self):
        return self.parameters.device


def _matrix(layer, parameters):
    """Returns the rows and columns of a layer's matrix."""
    if (layer.m is None) != (layer.n is None):
        raise InvalidArgument(f"layer {layer.name} has m = {layer.m} and n = {layer.n}, must "
                              "have both or none")
    if layer.m is not None:
        return _number(layer, "m"), _number(layer, "n")
    if len(parameters.shape) < 2:
        return 1, parameters.length
    return parameters.shape[0], math.prod(parameters.shape[1:])


def _number(layer, field):
    return arguments.integer(f"{field} of layer {layer.name}", getattr(layer, field))
