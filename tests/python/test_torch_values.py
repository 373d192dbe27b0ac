"""Values of a program as bytes: they come back as they were sent, and hostile bytes are errors."""

import json
import math
import random

import pytest

torch = pytest.importorskip("torch")
import nereus.torch as nt  # pylint: disable=wrong-import-position
from nereus.torch import values  # pylint: disable=wrong-import-position


def same(one, other):
    """Returns True for equal values of equal types, NaNs too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("value", [
    None, True, 0, -2**80, 1.5, math.inf, math.nan, "", "ä\ud800\n", b"", b"\0\xff", [], (), {},
    {0: [1, 2]}, {1: "a", "1": "b"}, {None: 1, True: 2, 2.5: 3, (1, "x"): 4, b"k": 5},
    {"dict": [], "tuple": {}, "bytes": ()}, [({"a": (b"x", [None])},)]])
def test_a_value_comes_back_as_it_was_sent(value):
    assert same(values.decode(values.encode(value), "worker 0"), value)


def test_random_values_come_back_as_they_were_sent():
    draw = random.Random(1)

    def make(depth):
        kind = draw.randrange(9 if depth < 4 else 6)
        if kind < 6:
            return [None, draw.random() < 0.5, draw.randrange(-9, 9), draw.random(), "text",
                    b"\x80bytes"][kind]
        if kind == 8:
            return {draw.choice([draw.randrange(9), str(draw.randrange(9)), None]): make(depth + 1)
                    for _ in range(draw.randrange(4))}
        return (list if kind == 6 else tuple)(make(depth + 1) for _ in range(draw.randrange(4)))

    for _ in range(2000):
        value = make(0)
        assert same(values.decode(values.encode(value), "worker 0"), value)


def nested(depth, value=0):
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value, text", [
    (nested(values.DEPTH_MAX + 2), "more than 64 lists"), (nested(5000), "more than 64 lists"),
    ({frozenset(): 1}, "has the key frozenset"), ([torch.ones(2)], "type Tensor.*tolist"),
    ({1, 2}, "type set"), ("x" * 70000, "must have at most 65536"), ([10**5000], "cannot be sent")])
def test_what_has_no_form_is_refused(value, text):
    with pytest.raises(nt.InvalidArgument, match=text):
        values.encode(value)


@pytest.mark.parametrize("text", [
    b"", b"{", b"\xff", b"[" * 60000, b"[" * 200 + b"]" * 200, b'{"a": 1}', b'{"dict": 1}',
    b'{"dict": [[1]]}', b'{"dict": [[[], 1]]}', b'{"bytes": "?"}', b'{"bytes": 1}',
    b'{"tuple": 1}', b"{}", b'{"tuple": [], "dict": []}', b"9" * 5000])
def test_hostile_bytes_are_an_error_that_names_the_worker(text):
    with pytest.raises(nt.NereusError, match="worker 3 has sent"):
        values.decode(text, "worker 3")


def test_changed_bytes_are_a_value_or_an_error():
    draw = random.Random(2)
    good = values.encode({"a": [1, (2.5, None)], 3: b"xyz"})
    for _ in range(5000):
        changed = bytearray(good)
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            json.dumps(repr(values.decode(bytes(changed), "worker 0")))
        except nt.NereusError:
            pass
