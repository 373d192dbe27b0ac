"""Reads a checkpoint by docs/checkpoint_format.md, without any code of Nereus.

Prints a line for each array of each layer, sorted:
    <layer>|<"parameters" or name of the state>|<shape of its tensor, or "cut">|<hex>
Exits with 1 if a file breaks the format.
"""

import json
import os
import re
import struct
import sys


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key occurs twice: {keys}"
    return dict(pairs)


def read_safetensors(path):
    """Yields (name, shape, bytes) of each tensor."""
    with open(path, "rb") as file:
        contents = file.read()
    (length,) = struct.unpack("<Q", contents[:8])
    header, data = contents[8:8 + length], contents[8 + length:]
    assert len(header) == length <= 100_000_000
    assert header[:1] == b"{" and (8 + length) % 8 == 0
    tensors = json.loads(header.decode("utf-8"), object_pairs_hook=no_duplicates)
    metadata = tensors.pop("__metadata__", {})
    assert all(isinstance(value, str) for value in metadata.values())
    end = 0
    for name, tensor in sorted(tensors.items(),
                               key=lambda item: item[1]["data_offsets"]):
        assert tensor["dtype"] == "F32"
        first, last = tensor["data_offsets"]
        elements = 1
        for extent in tensor["shape"]:
            elements *= extent
        assert first == end and last - first == 4 * elements, name
        end = last
        yield name, tensor["shape"], data[first:last]
    assert end == len(data), "the data is longer than its tensors"


def unescape(name):
    return re.sub("%(..)", lambda match: chr(int(match[1], 16)), name)


def read_checkpoint(folder):
    """Returns {(layer, state): (shape or "cut", bytes)}."""
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    pieces = {}
    for entry in manifest["files"]:
        path = os.path.join(folder, entry["name"])
        assert os.path.getsize(path) == entry["bytes"]
        for name, shape, data in read_safetensors(path):
            match = re.fullmatch(
                r"([^\[]*?)(?:\[(\d+):(\d+)\])?"
                r"(?:\.(velocity|first_moment|second_moment|state\d))?", name)
            array = (unescape(match[1]), match[4] or "parameters")
            first = int(match[2] or 0)
            pieces.setdefault(array, []).append(
                (first, "cut" if match[2] else shape, data))
    return {array: (sorted(found)[0][1], b"".join(data for _, _, data in sorted(found)))
            for array, found in pieces.items()}


def main():
    for (layer, state), (shape, data) in sorted(read_checkpoint(sys.argv[1]).items()):
        print(f"{layer}|{state}|{shape}|{data.hex()}")


main()
