"""Programs with DistributedDataParallel and Nereus's hook, for test_torch_ddp.py:
torch_ddp_programs.py FORM. `alone` trains in one process with the batches of all workers."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import nereus.torch as nt
from torch_programs import checksum, save

STEPS = 6
WORKERS = 2
torch.set_num_threads(1)

# DistributedDataParallel's arguments, by form.
OPTIONS = {
    "static": {"static_graph": True},
    "static factorized": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
    "unused view": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    "view": {"gradient_as_bucket_view": True},
    "small buckets": {"bucket_cap_mb": 0.01},
}
FORMS = [*OPTIONS, "plain", "no sync", "static no sync", "checkpointed", "join", "no state",
         "no state view", "factorized", "factorized no sync"]


class Net(nn.Module):
    def __init__(self, form):
        super().__init__()
        torch.manual_seed(1)
        self.form = form
        self.first = nn.Linear(64, 64)
        self.middle = nn.Linear(64, 64)
        self.extra = nn.Linear(64, 64)
        self.head = nn.Linear(64, 8)

    def forward(self, x, uses_extra):
        x = torch.tanh(self.first(x))
        if "static" in self.form or "checkpointed" in self.form:
            times = 1 if "factorized" in self.form else 2
            for _ in range(times if "static" in self.form else 1):
                x = checkpoint(lambda each: torch.tanh(self.middle(each)), x,
                               use_reentrant=False)
        else:
            x = torch.tanh(self.middle(x))
        if "unused" not in self.form or uses_extra:
            x = x + self.extra(x)
        return self.head(x)


def backward(model, form, step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(8, 64, generator=generator)
    y = torch.randint(8, (8,), generator=generator)
    uses_extra = (step + rank) % 2 == 0
    if "no sync" not in form:
        return functional.cross_entropy(model(x, uses_extra), y).backward()
    scope = model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext()
    with scope:
        functional.cross_entropy(model(x[:4], uses_extra), y[:4]).backward()
    return functional.cross_entropy(model(x[4:], uses_extra), y[4:]).backward()


def steps_of(form, rank):
    """Number of steps of a worker."""
    return STEPS - 2 * rank if form == "join" else STEPS


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


def worker(form):
    rank = int(os.environ["NEREUS_LOCAL_RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS,
                            init_method=f"file://{os.environ['TEST_FOLDER']}/meet")
    nt.init()
    model = Net(form)
    if "factorized" in form:
        model = nt.factorize(model)
    state = nt.CommHookState() if "no state" in form else None
    options = OPTIONS.get(form, {"gradient_as_bucket_view": "view" in form})
    ddp = DistributedDataParallel(model, **options)
    state = state or nt.CommHookState(ddp)
    ddp.register_comm_hook(state, nt.comm_hook)
    optimizer = make_optimizer(ddp)
    scope = Join([ddp]) if form == "join" else contextlib.nullcontext()
    with scope:
        for step in range(steps_of(form, rank)):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            backward(ddp, form, step, rank)
            optimizer.step()
    if rank == 0:
        save(model.parameters())
        print("schemes", sorted({layer["scheme"] for layer in state.plan()}))
    nt.shutdown()
    print("checksum", checksum(model))


def alone(form):
    model = Net(form)
    optimizer = make_optimizer(model)
    for step in range(STEPS):
        means = {}
        for rank in range(WORKERS):
            if step >= steps_of(form, rank):
                continue
            model.zero_grad(set_to_none=True)
            backward(model, form, step, rank)
            for parameter in model.parameters():
                if parameter.grad is not None:
                    means[parameter] = means.get(parameter, 0) + parameter.grad / WORKERS
        for parameter in model.parameters():
            parameter.grad = means.get(parameter)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def mistake(case):
    """Does what a user should not do."""
    rank = int(os.environ["NEREUS_LOCAL_RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS,
                            init_method=f"file://{os.environ['TEST_FOLDER']}/meet")
    nt.init()
    first, second = (DistributedDataParallel(Net("plain")) for _ in range(2))
    state = nt.CommHookState(first)
    first.register_comm_hook(state, nt.comm_hook)
    if case == "two states":
        nt.CommHookState(second)
    elif case == "one state":
        second.register_comm_hook(state, nt.comm_hook)
    else:
        second.register_comm_hook(None, nt.comm_hook)
    backward(second, "plain", 0, rank)


if __name__ == "__main__":
    if sys.argv[1] == "mistake":
        mistake(sys.argv[2])
    else:
        worker(sys.argv[1])
