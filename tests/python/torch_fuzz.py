"""Seeded random training programs: each trains as the workers of a job, and in one process.

A program is made of FEATURES: things that programs do with PyTorch. `Program(seed)` draws them.
`train` is its loop, a generator that yields where a job averages gradients: workers just go on, and
`reference` averages those of copies of the model there. Parameters and running statistics must
then be equal within TOLERANCE, or all workers end with an error if the program does what is
refused.

    tests/python/fuzz.sh --seeds=1000            from seed 0 on; prints the seeds that fail
    tests/python/fuzz.sh --seed=17               one program, with its features
    tests/python/fuzz.sh --seed=17 --without=tied,clip
    tests/python/fuzz.sh --break=buffers         without one of the fixes (BROKEN)
"""

import contextlib
import copy
import os
import random
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from torch_optimizers import Plain

TOLERANCE = 1e-5
WIDTH = 64  # A Linear of this width is large enough for factors.
CLASSES = 5

# Probability of each feature in a program.
FEATURES = {
    # The model.
    "tied": 0.15,  # One weight in two modules.
    "shared memory": 0.15,  # Two parameters with one storage.
    "flat": 0.1,  # All parameters are views of one tensor.
    "memory": 0.2,  # The forward keeps a hidden state, a counter, and a random generator.
    "experts": 0.25,  # Parts that some workers do not use in some steps.
    "sparse": 0.15,  # A small table and a large one with sparse gradients.
    "norm": 0.25,  # BatchNorm.
    "frozen": 0.15,  # A part without gradients.
    "checkpointed": 0.15,
    "weight in loss": 0.15,  # From a drawn step on, the loss has the norm of a weight.
    "function": 0.1,  # From a drawn step on, a weight is used past its module.
    "penalty": 0.12,  # From a drawn step on, a graph of gradients.
    "hook": 0.2,  # From a drawn step on, a hook masks a weight's gradient.
    "late hook": 0.15,  # The same with a hook after accumulation, where torch has these.
    "look": 0.15,  # Reads gradients in backward.
    "weight alone": 0.15,  # Asks for the gradient of a weight alone.
    # The loop.
    "zero": 1.0,  # How, and when, gradients are set to zero.
    "passes": 0.25,  # Several backward passes in a step.
    "no sync": 0.2,
    "two rounds": 0.15,  # Two averaged backward passes before an update.
    "early graphs": 0.5,  # Both graphs are made before the first backward. With "two rounds".
    "rows": 0.4,  # Batches of other sizes in some steps.
    "empty": 0.25,  # A worker has no batch in some steps.
    "clip": 0.3,
    "by hand": 0.12,  # Gradients that the program sets, and asks to be averaged.
    "closure": 0.12,
    "exchange": 0.25,  # Other storage of parameters.
    "evaluate": 0.3,  # Forwards with other modes, copies of the model.
    "swap": 0.15,  # Averages are swapped in for an evaluation.
    "reset": 0.5,  # Running statistics are other tensors. With "norm".
    "optimizer": 1.0,
    "several": 0.2,  # Several optimizers.
    "schedule": 0.25,
    "reload": 0.15,  # The optimizer's state is saved and loaded.
    "dear": 0.15,
    "ddp": 0.15,  # DistributedDataParallel with the hook.
    "killed": 0.05,  # A worker is killed between two steps; the others go on.
    # What is refused.
    "unasked": 0.04,  # Gradients that the program sets, without asking for the average.
    "stranger": 0.04,  # A parameter of the model that another optimizer trains.
}
REFUSED = {"unasked": "was set or changed by the program|that the program has set",
           "stranger": "a list of all optimizers"}
# Features that exclude each other.
EXCLUDED = [
    ("dear", "by hand"), ("dear", "unasked"), ("dear", "clip"), ("dear", "closure"),
    ("dear", "shared memory"), ("dear", "swap"), ("dear", "stranger"), ("dear", "look"),
    ("dear", "two rounds"), ("dear", "flat"), ("dear", "reload"), ("dear", "several"),
    ("closure", "by hand"), ("closure", "two rounds"), ("closure", "no sync"),
    ("closure", "passes"), ("closure", "empty"), ("closure", "several"), ("closure", "unasked"),
    ("passes", "no sync"), ("passes", "empty"), ("by hand", "passes"), ("by hand", "no sync"),
    ("by hand", "two rounds"), ("by hand", "empty"), ("by hand", "sparse"), ("by hand", "frozen"),
    ("by hand", "experts"), ("unasked", "by hand"), ("unasked", "sparse"),
    ("unasked", "passes"), ("unasked", "no sync"),
    ("unasked", "stranger"), ("unasked", "empty"), ("unasked", "two rounds"),
    ("stranger", "several"), ("stranger", "closure"), ("stranger", "flat"),
    ("stranger", "shared memory"), ("empty", "two rounds"),
    ("checkpointed", "two rounds"), ("penalty", "checkpointed"), ("penalty", "memory"),
    ("weight alone", "checkpointed"), ("weight alone", "memory"),
    ("flat", "exchange"), ("flat", "shared memory"), ("tied", "shared memory"),
    ("hook", "by hand"), ("hook", "weight alone"), ("hook", "penalty"),
    ("late hook", "hook"), ("late hook", "no sync"), ("late hook", "passes"),
    ("late hook", "two rounds"), ("late hook", "zero between"),
    ("sparse", "clip"),
    ("killed", "unasked"), ("killed", "stranger"),
    *(("ddp", name) for name in (
        "sparse", "penalty", "late hook", "look", "weight alone", "passes", "empty", "by hand",
        "dear", "killed", "unasked", "stranger")),
]

OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
    "decay": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.5, weight_decay=0.01),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, eps=1e-2),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, eps=1e-2, amsgrad=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01, eps=1e-2),
    "adagrad begun": lambda groups: torch.optim.Adagrad(groups, lr=0.01, eps=1e-2,
                                                        initial_accumulator_value=0.1),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, eps=1e-1, momentum=0.5),
    "adadelta": lambda groups: torch.optim.Adadelta(groups, lr=0.1, eps=1e-2),
    "adamax": lambda groups: torch.optim.Adamax(groups, lr=0.01, eps=1e-1),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=0.01, eps=1e-2),
    "asgd": lambda groups: torch.optim.ASGD(groups, lr=0.05),
    "own": lambda groups: OwnState(groups),
    "row-wise": lambda groups: RowWise(groups),
}


class OwnState(Plain):
    """Makes its state in its constructor."""

    def __init__(self, groups, lr=0.05):
        super().__init__(groups, lr)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["seen"] = torch.zeros_like(parameter)

    def update(self, parameter, gradient, state, group):
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        parameter.sub_(state["seen"].mul_(0.5).add_(gradient), alpha=group["lr"])


class RowWise(OwnState):
    """Has one number for each row of a sparse gradient, as DLRM's optimizer of tables, and a number
    for each value of a dense one."""

    def update(self, parameter, gradient, state, group):
        if not gradient.is_sparse:
            seen = state["seen"].add_(gradient.square())
            parameter.sub_(gradient / (seen.sqrt() + 0.1), alpha=group["lr"])
            return
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        seen = state.setdefault("rows", torch.zeros(len(parameter)))
        seen[rows] += values.square().mean(1)
        parameter[rows] -= group["lr"] * values / (seen[rows, None].sqrt() + 0.1)


class Model(nn.Module):
    """Model with the parts that a program's features ask for."""

    def __init__(self, program):
        super().__init__()
        torch.manual_seed(program.seed)
        has = program.has
        self.has, self.since = has, program.since
        self.seen = 0.0  # Norms of gradients that backward has found.
        self.first = nn.Linear(8, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        if has("tied"):
            self.fourth = nn.Linear(WIDTH, WIDTH)
            self.fourth.weight = self.third.weight
        if has("shared memory"):
            self.fourth = nn.Linear(WIDTH, WIDTH)
            self.fourth.weight.data = self.second.weight.data
            self.fourth.bias.data = self.third.bias.data
        if has("experts"):
            self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        if has("sparse"):
            self.small = nn.Embedding(20, WIDTH // 8, sparse=True)
            self.large = nn.Embedding(600, WIDTH // 8, sparse=True)
        if has("norm"):
            self.norm = nn.BatchNorm1d(WIDTH)
        if has("frozen"):
            self.second.weight.requires_grad_(False)
        if has("memory"):
            self.lstm = nn.LSTM(WIDTH, WIDTH // 4)
            self.hidden, self.calls = None, 0
            self.random = random.Random(program.seed)
        if has("flat"):
            parameters = list(self.parameters())
            together = torch.cat([each.detach().reshape(-1) for each in parameters])
            for parameter in parameters:
                part, together = together[:parameter.numel()], together[parameter.numel():]
                parameter.data = part.view(parameter.shape)

    def forward(self, x, expert, step):
        begin = x
        x = torch.tanh(self.first(x))
        if self.has("norm"):
            x = self.norm(x)
        if self.has("checkpointed") and torch.is_grad_enabled():
            x = checkpoint(self.part, x, use_reentrant=False)
        else:
            x = self.part(x)
        if hasattr(self, "fourth"):
            x = torch.tanh(self.fourth(x))
        if self.has("experts"):
            x = x + torch.tanh(self.experts[expert](x))
        if self.has("sparse"):
            ids = (begin[:, :3] * 100).long().abs()
            x = x + torch.cat([self.small(ids % 20).sum(1), self.large(ids % 600).mean(1)],
                              1).repeat(1, 4)
        if self.has("memory"):
            x = self.remember(x)
        if self.has("function") and step >= self.since:
            x = x + functional.linear(x, self.third.weight) * 0.1
        return self.head(x)

    def part(self, x):
        return torch.tanh(self.third(torch.tanh(self.second(x))))

    def remember(self, x):
        out, hidden = self.lstm(x[None].mean(1, keepdim=True), self.hidden)
        self.calls += 1
        self.hidden = tuple(each.detach() for each in hidden)
        x = x * (1 + 0.05 * self.calls)
        if self.random.random() < 0.5:
            x = x * 0.5
        return x + out.mean()


class Program:
    """Program of one seed. without, only: names of features that it shall not have, or that it has
    apart from those that all have."""

    def __init__(self, seed, without=()):
        self.seed = seed
        draw = random.Random(seed)
        self.workers = draw.choice([2, 2, 3])
        self.steps = draw.randint(4, 7)
        self.since = draw.randint(0, self.steps - 1)
        drawn = [name for name, probability in FEATURES.items() if draw.random() < probability]
        draw.shuffle(drawn)
        self.features = set()
        for name in drawn:
            if name not in without and not any(
                    name in pair and (set(pair) - {name}) & self.features for pair in EXCLUDED):
                self.features.add(name)
        if not self.has("norm"):
            self.features.discard("reset")
        if not self.has("two rounds") or self.features & {"no sync", "ddp"}:
            self.features.discard("early graphs")
        self.zero = draw.choice(["none", "zeros", "model", "by hand", "between", "mixed"])
        if self.has("closure") or self.has("late hook"):
            self.zero = draw.choice(["none", "zeros"])
        if self.has("by hand") or self.has("unasked") or self.has("dear"):
            self.zero = "none"
        self.optimizers = [draw.choice(list(OPTIMIZERS)) for _ in range(2)]
        if self.has("sparse"):  # Others refuse sparse gradients, or decay all rows.
            self.optimizers = [draw.choice(["sgd", "own", "row-wise"]) for _ in range(2)]
        self.passes = draw.randint(2, 3) if self.has("passes") or self.has("no sync") else 1
        self.scheme = draw.choice(["auto", "auto", "server", "ring", "factor", "factor"])
        self.ddp = draw.choice(
            ["plain", "view", "unused", "unused view", "static", "static", "no state"])
        self.factorizes = draw.random() < 0.3
        if self.has("ddp"):
            self._choose_ddp()
        self._choices = draw.getrandbits(32)
        self.victim = int(self.chance("victim") * self.workers) if self.has("killed") else -1
        self.last_step = 1 + int(self.chance("killed") * (self.steps - 2))  # Of the victim.

    def _choose_ddp(self):
        """Leaves out what DistributedDataParallel does not do."""
        if self.ddp == "static":  # Each step has the same graph.
            self.features -= {"experts", "function", "weight in loss", "no sync"}
            self.passes = 1
        elif self.has("experts"):
            self.ddp = "unused view" if "view" in self.ddp else "unused"
        elif self.ddp == "no state" and self.has("norm"):
            self.ddp = "plain"
        if self.ddp == "no state":
            self.factorizes = False
        if "view" in self.ddp:  # Gradients that are views cannot be detached.
            self.zero = "zeros"

    def has(self, name):
        return name in self.features

    @property
    def refusal(self):
        """Pattern of the error in which the program ends; None: it ends well."""
        return next((text for name, text in REFUSED.items() if self.has(name)), None)

    def flags(self):
        """Flags of the job."""
        return [f"--scheme={self.scheme}"]

    def chance(self, *what):
        """Returns a random number in [0, 1) of the program, the same in each process."""
        return random.Random(f"{self._choices} {what}").random()

    def describe(self):
        ddp = f"ddp {self.ddp}{' factorized' * self.factorizes}, " if self.has("ddp") else ""
        return (f"seed {self.seed}: {self.workers} workers, {self.steps} steps, "
                f"since {self.since}, zero {self.zero}, {ddp}"
                f"{'+'.join(self.optimizers[:2 if self.has('several') else 1])}, "
                f"{self.scheme}: {', '.join(sorted(self.features - {'zero', 'optimizer'}))}")

    # ---- Parts of a step.

    def batch(self, step, rank, part):
        generator = torch.Generator().manual_seed(
            random.Random(f"{self.seed} {step} {rank} {part}").getrandbits(31))
        count = 4
        if self.has("rows") and self.chance("rows", step, rank) < 0.4:
            count = 2 if self.chance("fewer", step, rank) < 0.5 else 7
        x = torch.randn(count, 8, generator=generator)
        return x, torch.randint(0, CLASSES, (count,), generator=generator)

    def is_empty(self, step, rank):
        return self.has("empty") and self.chance("empty", step, rank) < 0.3

    def loss(self, model, step, rank, part, forward):
        """Returns the loss of a backward pass. forward: the model, or the module around it."""
        x, y = self.batch(step, rank, part)
        expert = int(self.chance("expert", step, rank) * 2)
        is_odd = step >= self.since
        if self.has("look"):
            x.requires_grad_()
            x.register_hook(lambda _: _look(model))
        loss = functional.cross_entropy(forward(x, expert, step), y) * (1 + 0.1 * model.seen)
        if self.has("weight in loss") and is_odd:
            loss = loss + 0.01 * model.third.weight.square().sum()
        if self.has("penalty") and is_odd:
            again = x.detach().clone().requires_grad_()
            slope, = torch.autograd.grad(model(again, expert, step).square().sum(), again,
                                         create_graph=True)
            loss = loss + 0.05 * slope.square().mean()
        if self.has("weight alone"):
            alone, = torch.autograd.grad(functional.cross_entropy(model(x, expert, step), y),
                                         model.third.weight)
            loss = loss * (1 + 0 * float(alone.sum()))
        return loss

    def set_to_zero(self, model, optimizers, step, between):
        if (self.zero == "between") != between:
            return
        how = self.zero
        if how in ("mixed", "between"):
            how = ["none", "zeros", "model", "by hand"][int(self.chance("zero", step) * 4)]
        if how in ("none", "zeros"):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=how == "none")
        elif how == "model":
            model.zero_grad(set_to_none=self.chance("to none", step) < 0.5)
        else:
            for parameter in model.parameters():
                if parameter.grad is not None and self.chance("assign", step) < 0.5:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.detach_()
                    parameter.grad.zero_()

    def before_step(self, model, optimizers, step):
        """Does what is between two steps."""
        if step == self.since:
            mask = (torch.arange(WIDTH) % 2).float()[:, None]
            weights = [model.third.weight, model.second.weight]
            if self.has("hook"):
                for weight in weights:
                    if weight.requires_grad:
                        weight.register_hook(lambda gradient: gradient * mask)
            if self.has("late hook") and hasattr(weights[0], "register_post_accumulate_grad_hook"):
                def halve(weight):
                    weight.grad.mul_(0.5)

                weights[0].register_post_accumulate_grad_hook(halve)
        if self.has("exchange") and self.chance("exchange", step) < 0.4:
            self.exchange(model, step)
        if self.has("reset") and self.chance("reset", step) < 0.4:
            how = self.chance("how", step)
            if how < 0.3:
                model.norm.running_mean = torch.full((WIDTH,), 0.25)
            elif how < 0.6:
                model.norm.reset_running_stats()
            else:
                model.norm.running_var = model.norm.running_var * 0.5
        if self.has("evaluate") and self.chance("evaluate", step) < 0.5:
            self.evaluate(model, step)
        if self.has("swap") and self.chance("swap", step) < 0.5:
            kept = [each.data for each in model.parameters()]
            for parameter in model.parameters():
                parameter.data = parameter.data * 0.5
            self.evaluate(model, step)
            for parameter, values in zip(model.parameters(), kept):
                parameter.data = values
        if self.has("reload") and step == self.since:
            for optimizer in optimizers:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    def exchange(self, model, step):
        names = ["first.bias", "third.weight", "head.weight"]
        how = self.chance("exchanged", step)
        if how < 0.6:
            parameter = model.get_parameter(names[int(how * 5)])
            parameter.data = parameter.data * 0.9
        else:
            model.load_state_dict({name: value * 0.95 if value.is_floating_point() else value
                                   for name, value in model.state_dict().items()})

    def evaluate(self, model, step):
        how, was = self.chance("evaluated", step), model.training
        memory = (model.hidden, model.calls, model.random.getstate()) \
            if self.has("memory") else None
        model.eval()
        x, _ = self.batch(step, 0, "evaluation")
        if how < 0.4:
            with torch.no_grad():
                model(x, 0, step)
        elif how < 0.7:
            copy.deepcopy(model)(x, 0, step)
        else:
            model(x, 0, step)
        model.train(was)
        if memory is not None:
            model.hidden, model.calls = memory[:2]
            model.random.setstate(memory[2])

    def make_optimizers(self, model):
        trained = [each for each in model.parameters() if each.requires_grad]
        if self.has("stranger"):
            trained = [each for name, each in model.named_parameters()
                       if each.requires_grad and not name.startswith("head")]
        if not self.has("several"):
            middle = len(trained) // 2
            groups = [{"params": trained[:middle]}, {"params": trained[middle:], "lr": 0.02}]
            return [OPTIMIZERS[self.optimizers[0]](groups)]
        # Parameters that share memory are updated one after the other, as in the list.
        return [OPTIMIZERS[self.optimizers[0]](trained[::2]),
                OPTIMIZERS[self.optimizers[1]](trained[1::2])]


def _update(program, model, optimizers, schedulers, step):
    if program.has("clip"):
        if program.chance("clip", step) < 0.5:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        else:
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
    for optimizer in optimizers:
        optimizer.step()
    for scheduler in schedulers:
        scheduler.step()


def _look(model):
    """Reads gradients, as a program that follows their noise does."""
    model.seen = sum(float(parameter.grad.norm()) for parameter in model.parameters()
                     if parameter.grad is not None and not parameter.grad.is_sparse)


def _by_hand(model, loss):
    parameters = [each for each in model.parameters() if each.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, found):
        parameter.grad = gradient


class Job:
    """What a program has of its job. forward: the model, or DistributedDataParallel's. no_sync: a
    function without arguments."""

    def __init__(self, forward, no_sync):
        self.forward = forward
        self.no_sync = no_sync


def train(program, model, optimizers, rank, job=None):
    """The program's loop. Yields where a job averages gradients: the caller may do it then."""
    forward = job.forward if job is not None else model
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.8) for each in optimizers] \
        if program.has("schedule") else []
    others = [torch.optim.SGD(model.head.parameters(), lr=0.1)] if program.has("stranger") else []
    for step in range(program.steps):
        if rank == program.victim and step > program.last_step:
            if job is not None:
                time.sleep(0.2)  # The last frames of the step before may be on their way.
                os.kill(os.getpid(), signal.SIGKILL)
            return
        program.before_step(model, optimizers, step)
        program.set_to_zero(model, optimizers, step, False)
        if program.has("closure"):
            yield from _with_closure(program, model, optimizers[0], step, rank, job)
            for scheduler in schedulers:
                scheduler.step()
            continue
        early = [program.loss(model, step, rank, (turn, 0), forward) for turn in range(2)] \
            if program.has("early graphs") else []
        for turn in range(2 if program.has("two rounds") else 1):
            if program.is_empty(step, rank):
                if program.chance("leaf", step, rank) < 0.5:
                    torch.zeros((), requires_grad=True).backward()
                yield
                continue
            for part in range(program.passes):
                is_last = part + 1 == program.passes
                scope = job.no_sync() if (
                    job is not None and program.has("no sync") and not is_last
                ) else contextlib.nullcontext()
                with scope:
                    loss = early.pop(0) if early else \
                        program.loss(model, step, rank, (turn, part), forward)
                    if turn == part == 0:
                        program.set_to_zero(model, optimizers, step, True)
                    if (program.has("by hand") or program.has("unasked")) and step >= program.since:
                        _by_hand(model, loss)
                    else:
                        loss.backward()
            yield
        asks = program.has("by hand") and step >= program.since or \
            program.has("empty") and program.has("clip")
        if job is not None and asks:
            optimizers[0].synchronize()
        _update(program, model, optimizers + others, schedulers, step)


def _with_closure(program, model, optimizer, step, rank, job):
    forward = job.forward if job is not None else model

    def closure():
        optimizer.zero_grad(set_to_none=program.zero == "none")
        loss = program.loss(model, step, rank, 0, forward)
        loss.backward()
        return loss

    if job is not None:
        optimizer.step(closure)
    else:
        closure()
        yield
        optimizer.step()


def statistics(model):
    """Returns a model's running statistics."""
    return [buffer for name, buffer in model.named_buffers()
            if name.endswith(("running_mean", "running_var"))]


def reference(program):
    """Trains as all workers of a job should. Returns the parameters and statistics of each, also
    of the worker that is killed."""
    models = [Model(program) for _ in range(program.workers)]
    loops = {rank: train(program, model, program.make_optimizers(model), rank)
             for rank, model in enumerate(models)}
    while loops:
        going = [rank for rank, loop in loops.items() if next(loop, loops) is None]
        ended = loops.keys() - set(going)
        assert not going or ended <= {program.victim}, "the workers average equally often"
        loops = {rank: loops[rank] for rank in going}
        if going:
            _average([models[rank] for rank in going])
    return [values(model) for model in models]


@torch.no_grad()
def _average(models):
    for same in zip(*(model.parameters() for model in models)):
        found = [each.grad.to_dense() if each.grad.is_sparse else each.grad
                 for each in same if each.grad is not None]
        mean = sum(found) / len(models) if found else None
        is_sparse = any(each.grad is not None and each.grad.is_sparse for each in same)
        for each in same:
            each.grad = None if mean is None else mean.to_sparse(1) if is_sparse else mean.clone()
    for same in zip(*(statistics(model) for model in models)):
        mean = sum(same) / len(models)
        for each in same:
            each.data.copy_(mean)


def values(model):
    """Returns parameters and statistics as one tensor."""
    return torch.cat([each.detach().reshape(-1).double()
                      for each in [*model.parameters(), *statistics(model)]])


def run(program, rank, meeting, **options):
    """Trains as a worker of a job. meeting: URL for torch.distributed. options: of
    nereus.torch.init. Returns its values."""
    import nereus.torch as nt
    nt.init(**options)
    model = Model(program)
    optimizers = program.make_optimizers(model)
    if program.has("ddp"):
        dist.init_process_group("gloo", init_method=meeting, rank=rank,
                                world_size=program.workers)
        job = _with_ddp(program, model)
    else:
        nt.DistributedOptimizer(
            optimizers, model=model,
            backward_passes_per_step=program.passes if program.has("passes") else 1,
            overlap="dear" if program.has("dear") else None)
        job = Job(model, optimizers[0].no_sync)
    for _ in train(program, model, optimizers, rank, job):
        pass
    nt.shutdown()
    if program.has("ddp"):
        dist.destroy_process_group()
    return values(model)


def _with_ddp(program, model):
    import nereus.torch as nt
    if program.factorizes:
        model = nt.factorize(model)
    state = nt.CommHookState() if program.ddp == "no state" else None
    ddp = DistributedDataParallel(
        model, static_graph=program.ddp == "static", find_unused_parameters="unused" in program.ddp,
        gradient_as_bucket_view="view" in program.ddp,
        bucket_cap_mb=0.02 if program.chance("buckets") < 0.5 else 25)
    ddp.register_comm_hook(state or nt.CommHookState(ddp), nt.comm_hook)
    return Job(ddp, ddp.no_sync)


def difference(found, expected):
    return float((found - expected).norm() / expected.norm())
