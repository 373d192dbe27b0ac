"""Training loops as users write them, for test_torch.py and torch_programs.py.

A scenario is a function backward(model, x, y, step, rank, optimizer) that does the backward
passes of one step of one worker, and a model. `optimizer` is a DistributedOptimizer, or in
place of it an object with the same context `no_sync`.
"""

import copy
from typing import Any, Callable, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH = 72  # Linears of this width are large enough for factors.


class Scenario(NamedTuple):
    """model: function that makes it. backward: see above. passes: backward passes of a step.
    finish: function of the model between the last backward and the optimizer's step.
    factors: number of layers with factors. rows: for DistributedOptimizer."""

    model: Callable[[], Any]
    backward: Callable[..., Any]
    passes: int = 1
    finish: Callable[..., Any] = lambda model: None
    factors: int = 2
    rows: Any = None


class Net(nn.Module):
    """Two large Linears, and small parameters."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(144, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = functional.relu(self.first(x.flatten(1)), inplace=True)
        return self.head(functional.relu(self.second(x)))


def loss_of(output, y):
    return functional.cross_entropy(output, y)


def plain(model, x, y, step, rank, optimizer):
    loss_of(model(x), y).backward()


def evaluated(model, x, y, step, rank, optimizer):
    """Evaluates between steps, with gradients off and, wrongly, on."""
    model.eval()
    with torch.no_grad():
        model(x[:1])
    model(x)
    model.train()
    loss_of(model(x), y).backward()


def fewer_rows(model, x, y, step, rank, optimizer):
    count = len(x) - 1 if step == 3 else len(x)
    loss_of(model(x[:count]), y[:count]).backward()


def more_rows(model, x, y, step, rank, optimizer):
    """Has each example twice, on both workers or on one."""
    if step == 2 or step % 2 == 1 and rank == 1:
        x, y = torch.cat([x, x]), torch.cat([y, y])
    loss_of(model(x), y).backward()


def accumulated(model, x, y, step, rank, optimizer):
    half = len(x) // 2
    for part in (slice(None, half), slice(half, None)):
        (loss_of(model(x[part]), y[part]) / 2).backward()


def without_sync(model, x, y, step, rank, optimizer):
    half = len(x) // 2
    with optimizer.no_sync():
        loss_of(model(x[:half]), y[:half]).backward()
    loss_of(model(x[half:]), y[half:]).backward()


def two_losses(model, x, y, step, rank, optimizer):
    """One backward of two graphs of the same model, so that each module is used twice."""
    (loss_of(model(x), y) + loss_of(model(-x), y)).backward()


def autocast(model, x, y, step, rank, optimizer):
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        output = model(x)
    loss_of(output.float(), y).backward()


def penalized(model, x, y, step, rank, optimizer):
    """Adds the norm of the input's gradient to what is printed, not to the loss."""
    x = x.clone().requires_grad_()
    torch.autograd.grad(model(x).sum(), x)
    loss_of(model(x), y).backward()


class Half(Net):
    """Net whose parameters are in bfloat16."""

    def __init__(self):
        super().__init__()
        self.bfloat16()

    def forward(self, x):
        return super().forward(x.bfloat16()).float()


class Branches(nn.Module):
    """Three branches: worker 0 uses the first, worker 1 the second, nobody the third."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(144, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 10)
        self.choice = 0

    def forward(self, x):
        return self.head(torch.tanh(self.branches[self.choice](x.flatten(1))))


def unused(model, x, y, step, rank, optimizer):
    model.choice = rank % 2
    loss_of(model(x), y).backward()


class Tied(nn.Module):
    """The weight of `second` is used as a function, too."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(144, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 10)
        self.tied = nn.Linear(144, WIDTH)
        self.other = nn.Linear(144, WIDTH)
        self.other.weight = self.tied.weight

    def forward(self, x):
        x = x.flatten(1)
        x = self.first(x) + self.tied(x) + self.other(x)
        return self.head(functional.linear(self.second(torch.tanh(x)), self.second.weight))


class Checkpointed(Net):
    reentrant = False

    def forward(self, x):
        x = functional.relu(self.first(x.flatten(1)))
        x = checkpoint(self._part, x, use_reentrant=self.reentrant)
        return self.head(x)

    def _part(self, x):
        return functional.relu(self.second(x))


class Reentrant(Checkpointed):
    reentrant = True


class Strided(nn.Module):
    """Convolution in channels_last."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 64, 3)
        self.next = nn.Conv2d(64, 16, 3).to(memory_format=torch.channels_last)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = functional.relu(self.body(x).to(memory_format=torch.channels_last))
        return self.head(functional.relu(self.next(x)).mean((2, 3)))


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(200, 64, sparse=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.embedding((x.flatten(1)[:, :5] * 50).long().abs() % 200).mean(1))


def pair():
    """A generator and its critic."""
    return nn.ModuleDict({
        "generator": nn.Sequential(nn.Linear(16, 72), nn.ReLU(), nn.Linear(72, 144)),
        "critic": nn.Sequential(nn.Linear(144, 72), nn.ReLU(), nn.Linear(72, 1))})


def two_models(model, x, y, step, rank, optimizer):
    """Trains the critic and the generator in turn."""
    real, critic = x.flatten(1), model["critic"]
    made = model["generator"](real[:, :16])
    if step % 2 == 0:
        loss = functional.softplus(-critic(real)) + functional.softplus(critic(made.detach()))
        loss.mean().backward()
        return
    critic.requires_grad_(False)
    functional.softplus(-critic(made)).mean().backward()
    critic.requires_grad_(True)


def frozen_later(model, x, y, step, rank, optimizer):
    model.second.weight.requires_grad_(step < 3)
    loss_of(model(x), y).backward()


def clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def copied(model, x, y, step, rank, optimizer):
    """Copies the model, as programs with a moving average do, and uses the copy."""
    loss_of(copy.deepcopy(model)(x), y)
    loss_of(model(x), y).backward()


# Rows of Linears of Net in a step that uses each of them twice.
ROWS_TWICE = {"first.weight": 8, "second.weight": 8}

SCENARIOS = {
    "plain": Scenario(Net, plain),
    "clipped": Scenario(Net, plain, finish=clip),
    "evaluated": Scenario(Net, evaluated),
    "fewer rows": Scenario(Net, fewer_rows),
    "more rows": Scenario(Net, more_rows),
    "more rows, clipped": Scenario(Net, more_rows, finish=clip),
    "accumulated": Scenario(Net, accumulated, passes=2),
    "without sync": Scenario(Net, without_sync, rows=ROWS_TWICE),
    "two losses": Scenario(Net, two_losses, rows=ROWS_TWICE),
    "autocast": Scenario(Net, autocast),
    "bfloat16": Scenario(Half, plain),
    "penalized": Scenario(Net, penalized),
    "unused": Scenario(Branches, unused, factors=1),
    "tied": Scenario(Tied, plain, factors=1),
    "checkpointed": Scenario(Checkpointed, plain),
    "reentrant": Scenario(Reentrant, plain),
    "strided": Scenario(Strided, plain, factors=0),
    "sparse": Scenario(Sparse, plain, factors=0),
    "frozen later": Scenario(Net, frozen_later),
    "two models": Scenario(pair, two_models, factors=2),
    "copied": Scenario(Net, copied),
}
