"""Checksums of tensors, to compare those of two workers."""

import zlib

import torch

# Number of checksums that a worker sends; of more tensors, the last ones have one together.
_COUNT_MAX = 300
_BYTES = 4


def checksum(tensor):
    """Returns the CRC-32 of a tensor's values, whatever their layout and device."""
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    values = dense.detach().cpu().contiguous().reshape(-1)
    if values.is_quantized:
        values = values.int_repr()
    return zlib.crc32(values.view(torch.uint8).numpy().tobytes())


def checksums(named):
    """Returns the checksums of tensors as bytes, to gather them. named: dict from names."""
    found = [checksum(named[name]).to_bytes(_BYTES, "little") for name in sorted(named)]
    if len(found) > _COUNT_MAX:
        rest = zlib.crc32(b"".join(found[_COUNT_MAX - 1:])).to_bytes(_BYTES, "little")
        found = [*found[:_COUNT_MAX - 1], rest]
    return b"".join(found)


def differing(named, own, other):
    """Returns the names of tensors whose checksums differ. own, other: from `checksums`."""
    names = sorted(named)
    if len(names) > _COUNT_MAX:
        names[_COUNT_MAX - 1:] = [f"{names[_COUNT_MAX - 1]} or a later one"]
    return [name for place, name in enumerate(names) if own[_BYTES * place:_BYTES * (place + 1)]
            != other[_BYTES * place:_BYTES * (place + 1)]] or (
                ["their number"] if len(own) != len(other) else [])
