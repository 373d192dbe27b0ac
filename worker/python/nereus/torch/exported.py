"""Models from the files of `nereusctl export`.

A file has the layers of the job (layout.py), of which several parameters may share one. It is in
the safetensors format, which needs no library: the length of a header, the header as JSON, values.
"""

import json
import os

import torch

from ..errors import InvalidArgument
from . import layout
from .state import Extras

_LENGTH_BYTES = 8


def load_exported(model, path, named_parameters=None):
    """Loads the parameters, and the running statistics of BatchNorms, from a file that
    `nereusctl export` has written of a job of nereus.torch.

        nt.load_exported(model, "model.safetensors")
        torch.save(model.state_dict(), "model.pt")

    model: as it was in training before its optimizer was wrapped: with the same parameters
        frozen, and in the same memory format, such as channels_last: a file of another format
        is refused.
    named_parameters: as for DistributedOptimizer, if that had them.
    Errors: InvalidArgument, the file is of another model, or of another kind; the model is as
    before. OSError.
    """
    named = model.named_parameters() if named_parameters is None else named_parameters
    named = [(name, each) for name, each in named if each.requires_grad]
    layers = layout.layers_of(named)
    statistics = layout.statistics_layer(model, named[0][1].device) if named else None
    if statistics is not None:
        layers.append(statistics)
    with open(path, "rb") as file:
        places = _places(file, path)
        _check(layers, places, path)
        with torch.no_grad():
            for layer in layers:
                values = _read(file, *places[layer.exported_name], path)
                for slot in layer.slots:
                    slot.parameter.copy_(slot.view_of(values))


def _places(file, path):
    """Returns the first byte and the number of values of each tensor in a file."""
    try:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > os.path.getsize(path):
            raise ValueError
        header = json.loads(file.read(length))
        return {name: (_LENGTH_BYTES + length + tensor["data_offsets"][0],
                       (tensor["data_offsets"][1] - tensor["data_offsets"][0]) // 4)
                for name, tensor in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _other_kind(path) from None


def _other_kind(path):
    return InvalidArgument(f"{path} is no file of `nereusctl export`")


def _check(layers, places, path):
    """Checks that a file has the layers of a model, and no others."""
    advice = ("prepare the model as in training before its optimizer was wrapped: the same "
              "modules in the same order, and the same parameters frozen")
    for layer in layers:
        name = layer.exported_name
        if name not in places:
            raise InvalidArgument(f"{path} has no tensor {name}, but {', '.join(places)}; {advice}")
        if places[name][1] != layer.size:
            raise InvalidArgument(f"{name} has {places[name][1]} values in {path}, and "
                                  f"{layer.size} in the model; {advice}")
    for name in places.keys() - {layer.exported_name for layer in layers} - {Extras.NAME}:
        raise InvalidArgument(f"the model has no layer for the tensor {name} of {path}; {advice}")


def _read(file, begin, count, path):
    """Returns values of a file."""
    values = bytearray(4 * count)
    file.seek(begin)
    if file.readinto(values) != len(values):
        raise _other_kind(path)
    return torch.frombuffer(values, dtype=torch.float32)
