"""Memory that the library uses stays where it is, whatever ends a call."""

import array
import gc
import weakref

import pytest

import nereus
from nereus import errors
from nereus import client as client_module

INTERNAL = 13


class Values:
    """Pushes of arrays that only the client knows afterwards."""

    def __init__(self):
        self.values = []

    def push(self, client, step):
        gradient = array.array("f", [1, 2])
        self.values.append(weakref.ref(gradient))
        client.push(0, step, gradient)

    def alive(self):
        gc.collect()
        return [value() is not None for value in self.values]


def test_a_gradient_stays_until_the_push_after_its_wait(client):
    values = Values()
    values.push(client, 0)
    assert values.alive() == [True]
    client.wait(0, 0)
    assert values.alive() == [True]  # The mean gradient may lie in it.
    values.push(client, 1)
    assert values.alive() == [False, True]
    client.wait_all(0)  # Not the step of the last push.
    values.push(client, 2)
    assert values.alive() == [False, True, True]
    client.close()
    assert values.alive() == [False, False, False]


@pytest.mark.parametrize("wait", [lambda client: client.wait_forward("line"),
                                  lambda client: client.wait_all(0)])
def test_other_waits_end_the_use_of_a_gradient(client, wait):
    values = Values()
    values.push(client, 0)
    wait(client)
    values.push(client, 1)
    assert values.alive() == [False, True]


def test_factors_stay_as_gradients_do(client):
    factors = [array.array("f", [1, 2]) for _ in range(3)]
    client.push_factors(0, 0, *factors)
    values = Values()
    values.values = [weakref.ref(factor) for factor in factors]
    del factors
    assert values.alive() == [True, True, True]
    client.wait(0, 0)
    client.push(0, 1, array.array("f", [1, 2]))
    assert values.alive() == [False, False, False]


def test_ctrl_c_within_a_push_leaves_the_gradient_to_the_library(client, library):
    def interrupted(*arguments):
        raise KeyboardInterrupt  # As if the handler ran when the call returns.

    values = Values()
    library.functions["nereus_client_push"] = interrupted
    with pytest.raises(KeyboardInterrupt):
        values.push(client, 0)
    assert values.alive() == [True]
    client.close()
    assert values.alive() == [False]


@pytest.mark.parametrize("code, stays", [
    (errors.INVALID_ARGUMENT, False), (errors.FAILED_PRECONDITION, False),
    (errors.OUT_OF_RANGE, False), (errors.CANCELLED, True), (INTERNAL, True)])
def test_a_refused_push_gives_the_gradient_back(client, library, code, stays):
    values = Values()
    values.push(client, 0)
    client.wait(0, 0)
    library.functions["nereus_client_push"] = lambda *arguments: code
    for step in range(1, 4):
        with pytest.raises(nereus.NereusError):
            values.push(client, step)
    assert values.alive() == [True, stays, stays, stays]


def test_a_push_beside_close_says_that_the_client_was_closed(client, library):
    def close_before(*arguments):
        client.close()
        return errors.INVALID_ARGUMENT

    values = Values()
    library.functions["nereus_client_push"] = close_before
    for _ in range(2):
        with pytest.raises(nereus.InvalidArgument):
            values.push(client, 0)
    assert values.alive() == [False, False]


def layer_and_reference():
    parameters = array.array("f", [0, 0])
    return nereus.Layer("line", "vector", parameters), weakref.ref(parameters)


@pytest.mark.parametrize("function", ["connect", "wait_connected"])
def test_ctrl_c_while_a_client_connects_closes_it(library, function):
    def interrupted(*arguments):
        if function == "connect":
            library.connect(*arguments)
        raise KeyboardInterrupt

    library.functions["nereus_client_" + function] = interrupted
    layer, parameters = layer_and_reference()
    with pytest.raises(KeyboardInterrupt):
        nereus.Client([layer])
    assert library.closed == [7]
    del layer
    gc.collect()
    assert parameters() is None


@pytest.mark.parametrize("end", [
    lambda clients: clients[0].close(), lambda clients: clients.clear(),
    lambda clients: client_module._close_all()], ids=["close", "drop", "end of the process"])
def test_ctrl_c_within_close_keeps_the_memory_until_the_client_is_closed(library, end):
    layer, parameters = layer_and_reference()
    clients = [nereus.Client([layer])]
    del layer

    def interrupted(pointer):
        raise KeyboardInterrupt

    library.functions["nereus_client_close"] = interrupted
    with pytest.raises(KeyboardInterrupt):
        clients[0].close()
    assert clients[0].closed
    library.functions["nereus_client_close"] = library.close
    gc.collect()
    assert parameters() is not None and library.closed == []
    end(clients)
    gc.collect()
    assert parameters() is None and library.closed == [7]
