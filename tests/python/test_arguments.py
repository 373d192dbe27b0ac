"""Wrong arguments are InvalidArgument, with the name of the argument and its value."""

import array
import math
import re

import pytest

import nereus
from nereus.options import Options, native_options

GRADIENT = array.array("f", [0, 0])


class Index:
    """Whole number of a framework."""

    def __index__(self):
        return 0


CALLS = {
    "step is None, must be a nereus.Step or its number":
        lambda client: client.push(0, None, GRADIENT),
    "step is 0.5, must be": lambda client: client.wait(0, 0.5),
    "step is '1', must be": lambda client: client.wait_all("1"),
    "step is None, must be a": lambda client: client.skipped(None),
    "step is 18446744073709551616, must be a nereus.Step or its number of at most":
        lambda client: client.push(0, 2 ** 64, GRADIENT),
    "layer is None, must be the index or the name of a layer":
        lambda client: client.push(None, 0, GRADIENT),
    "layer is 0.0, must be the index": lambda client: client.wait_forward(0.0),
    "there is no layer -1": lambda client: client.mean(-1),
    "timeout is inf, must be a number of seconds, at most 1e+09, or None":
        lambda client: client.wait(0, 0, timeout=math.inf),
    "timeout is nan, must be": lambda client: client.begin_step(math.nan),
    "timeout is '5', must be": lambda client: client.leave("5"),
    "timeout is [1], must be": lambda client: client.wait_forward(0, [1]),
    "stream is 0.5, must be the number of a cudaStream_t, or None":
        lambda client: client.begin_step(stream=0.5),
    "stream is 'x', must be": lambda client: client.push(0, 0, GRADIENT, stream="x"),
}


@pytest.mark.parametrize("text", CALLS)
def test_wrong_arguments_of_calls_are_named(client, text):
    with pytest.raises(nereus.InvalidArgument, match="^" + re.escape(text)):
        CALLS[text](client)


def test_numbers_of_frameworks_are_numbers(client):
    client.push(Index(), Index(), GRADIENT, stream=Index())
    client.wait(0, Index(), timeout=1)


def test_waits_without_a_round_timeout_have_that_of_nereus(library):
    layer = nereus.Layer("line", "vector", GRADIENT)
    with nereus.Client([layer], round_timeout=None) as client:
        client.wait(0, 0, timeout=1)
        client.wait(0, 0)


OPTIONS = [
    ({"optimizer": "gpu"}, "optimizer is 'gpu', must be one of server, worker, any"),
    ({"optimizer": []}, "optimizer is [], must be one of"),
    ({"connect_timeout": 0}, "connect_timeout is 0 seconds, must be positive"),
    ({"connect_timeout": math.inf}, "connect_timeout is inf, must be a number of seconds"),
    ({"round_timeout": -1}, "round_timeout is -1 seconds, must be positive"),
    ({"round_timeout": math.nan}, "round_timeout is nan, must be a number of seconds"),
    ({"stall_threshold": "5s"}, "stall_threshold is '5s', must be a number of seconds"),
    ({"control_port": None}, "control_port is None, must be an integer"),
    ({"data_port": 2 ** 32}, "data_port is 4294967296, must be an integer of at most"),
    ({"staging_bytes": 1e9}, "staging_bytes is 1000000000.0, must be an integer"),
    ({"name": 3}, "name is 3, must be a str"),
    ({"settings": None}, "settings is None, must be a dict"),
]


@pytest.mark.parametrize("values, text", OPTIONS)
def test_wrong_options_are_named(values, text):
    with pytest.raises(nereus.InvalidArgument, match=re.escape(text)):
        native_options(Options(**values))


LAYERS = [
    ({"rows": None}, "rows of layer x is None, must be an integer"),
    ({"rows": 2.5}, "rows of layer x is 2.5, must be an integer"),
    ({"m": 1.0, "n": 2}, "m of layer x is 1.0, must be an integer"),
    ({"m": 1, "n": math.inf}, "n of layer x is inf, must be an integer"),
    ({"name": 5}, "the name of layers[0] is 5, must be a str"),
]


@pytest.mark.parametrize("fields, text", LAYERS)
def test_wrong_fields_of_layers_are_named(fields, text):
    layer = nereus.Layer(**{"name": "x", "kind": "vector", "parameters": GRADIENT, **fields})
    with pytest.raises(nereus.InvalidArgument, match=re.escape(text)):
        nereus.Client([layer], coordinator="127.0.0.1:1")
