"""Functions that test_function.py calls on workers."""

import os
import sys

import nereus
import numpy


def local_rank():
    return int(os.environ["NEREUS_LOCAL_RANK"])


def train_a_step():
    train(1)
    return local_rank()


def train(steps, rate=1.0):
    """Subtracts the mean of 1, 2, ... in each step, and returns the parameter."""
    values, gradient = numpy.zeros(1, numpy.float32), numpy.zeros(1, numpy.float32)
    with nereus.Client([nereus.Layer("one", "vector", values)]) as client:
        while (step := client.begin_step()).step < steps:
            gradient[:] = (step.position + 1) * rate
            client.push(0, step, gradient)
            client.wait_all(step)
    return values[0]


def greet():
    print("hello of the function")
    return train_a_step()


def fail_on_one():
    if local_rank() == 1:
        raise ValueError("worker 1 does not like it")
    return train(10 ** 9)


def leave_early():
    train(1)
    sys.exit(0)
