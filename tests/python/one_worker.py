"""A client of a job of one worker, for tests of nereus.torch in one process."""

import pytest
import torch

import nereus.torch as nt
from nereus.client import Step, Traits
from nereus.torch import engine, process
from torch_scenarios import loss_of


class OneWorker:
    """Client whose means are the worker's own gradients.

    A gradient has no values from its push until the wait, as memory of a client may have any.
    factor: of the mean gradient, in place of 1. skips: steps that the job skips. waits: index
    of each layer, in the order of waits. aborted: reasons of aborts.
    """

    factor = 1.0
    skips = ()
    goes_back_at = None
    begins_at = 0  # Step at which the worker joins.
    may_skip = False
    sends_factors = True

    def __init__(self, layers, stream=None, **_):
        self.layers = layers
        self.step = self.begins_at - 1
        self.pushed = {}
        self.rows = self.next_rows = None  # Of factors, by layer: those of the plan, and the next.
        self.on_the_way = {}  # Functions that write a layer's mean.
        self.waits = []
        self.aborted = []
        self.closed = False
        self.traits = Traits(0, True, self.may_skip, *[0] * 8)

    def begin_step(self, stream=None):
        self.step += 1
        self.pushed = {}
        self.rows = self.next_rows
        if self.step == self.goes_back_at:
            self.on_the_way = {}
        return Step(self.step, 0, 1, 0, 1, self.step, 1.0, self.step == self.goes_back_at)

    def factor_rows(self, index):
        return max(0, self.rows[index]) if self.rows and self.sends_factors else 0

    def set_factor_rows(self, rows):
        assert len(rows) == len(self.layers)
        self.next_rows = rows

    def gather(self, value):
        return [value]

    def push(self, index, _, gradient, stream=None):
        assert index not in self.pushed and index not in self.on_the_way
        assert gradient.numel() == self.layers[index].parameters.numel()
        mean = gradient * (self.factor if index > 0 else 1)
        gradient.fill_(float("nan"))
        self.pushed[index] = self.on_the_way[index] = lambda: gradient.copy_(mean)

    def push_factors(self, index, _, output_gradient, inputs, gradient, stream=None):
        assert index not in self.pushed and index not in self.on_the_way
        assert self.sends_factors and len(inputs) == self.rows[index]
        mean = (output_gradient.t() @ inputs).reshape(-1) * self.factor
        self.pushed[index] = self.on_the_way[index] = lambda: gradient.copy_(mean)

    def wait(self, index, step, stream=None):
        self.waits.append(index)
        finish = self.on_the_way.pop(index, None)
        if finish is not None:
            finish()

    def wait_all(self, step, stream=None):
        assert len(self.pushed) == len(self.layers)
        for index in range(len(self.layers)):
            self.wait(index, step)

    def skipped(self, step):
        return step.step in self.skips

    def report(self):
        return {"layers": [{"scheme": "server", "wire": "fp32"} for _ in self.layers]}

    def abort(self, reason):
        self.aborted.append(reason)

    def leave(self, stream=None):
        pass

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def job(monkeypatch):
    """A job of one worker. Returns the class of its client, to change it."""
    client = type("Client", (OneWorker,), {})
    monkeypatch.setattr(engine, "Client", client)
    monkeypatch.setenv("NEREUS_COORDINATOR", "127.0.0.1:1")
    nt.init()
    torch.manual_seed(1)
    yield client
    process._Process.engine = process._Process.options = None
    process._Process.left.clear()


def batch(count=4):
    generator = torch.Generator().manual_seed(count)
    return (torch.randn(count, 1, 12, 12, generator=generator),
            torch.randint(0, 10, (count,), generator=generator))


def wrapped(model, **options):
    return nt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model,
                                   **options)


def step(model, optimizer, count=4):
    optimizer.zero_grad()
    x, y = batch(count)
    loss_of(model(x), y).backward()


def gradients(model):
    return [each.grad.clone() for each in model.parameters()]


def equal(found, expected):
    return all(torch.allclose(one, other, rtol=1e-5, atol=1e-8)
               for one, other in zip(found, expected))
