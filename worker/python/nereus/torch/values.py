"""Values of a program as bytes, and back.

Bytes are JSON. Where JSON has no kind of value, there is an object with the kind as its only name:
{"dict": [[key, value], ...]}, {"tuple": [...]}, {"bytes": "..."}. So a dict of any keys, and all
else, comes back as it was sent, and bytes from the network run no code.
"""

import base64
import binascii
import json

from ..errors import InvalidArgument, NereusError

# Largest number of lists, tuples and dicts within each other.
DEPTH_MAX = 64
# Longest value, as bytes.
BYTES_MAX = 64 * 1024

_KEYS = (str, int, float, bool, type(None))


def encode(value):
    """Returns a value as bytes. Errors: InvalidArgument, there is no such form of it."""
    plain = _plain(value, 0)
    try:
        found = json.dumps(plain).encode()
    except ValueError as error:  # An integer with thousands of digits.
        raise InvalidArgument(f"the value cannot be sent: {error}") from None
    if len(found) > BYTES_MAX:
        raise InvalidArgument(f"the value has {len(found)} bytes as JSON, must have at most "
                              f"{BYTES_MAX}")
    return found


def decode(text, sender):
    """Returns the value that bytes stand for. sender: in messages. Errors: NereusError."""
    try:
        return _value(json.loads(text), 0)
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise NereusError(f"{sender} has sent what is no value of nereus.torch: its version may "
                          "differ") from None


def _plain(value, depth):
    if depth > DEPTH_MAX:
        raise InvalidArgument(f"the value has more than {DEPTH_MAX} lists, tuples and dicts within "
                              "each other")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(each, depth + 1) for each in value]}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, _KEYS + (tuple, bytes)):
                raise InvalidArgument(f"a dict has the key {key!r} of type {type(key).__name__}: "
                                      "keys are None, numbers, texts, bytes and tuples")
        return {"dict": [[_plain(key, depth + 1), _plain(each, depth + 1)]
                         for key, each in value.items()]}
    raise InvalidArgument(
        f"a value is of type {type(value).__name__}: values are None, numbers, texts, bytes, "
        "lists, tuples and dicts; a tensor is sent as tensor.tolist()")


def _value(plain, depth):
    if depth > DEPTH_MAX:
        raise ValueError
    if isinstance(plain, list):
        return [_value(each, depth + 1) for each in plain]
    if not isinstance(plain, dict):
        return plain
    (kind, content), = plain.items()
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "tuple":
        return tuple(_value(each, depth + 1) for each in content)
    if kind != "dict":
        raise ValueError
    return {_value(key, depth + 1): _value(each, depth + 1) for key, each in content}
