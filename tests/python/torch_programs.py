"""Programs that test_torch.py runs as the workers of a job: torch_programs.py NAME [ARGUMENT].

The last line of each is what the test looks at. `alone` trains with the batches of all workers
in one process.
"""

import contextlib
import hashlib
import os
import signal
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import nereus.torch as nt
from torch_optimizers import UNKNOWN
from torch_scenarios import SCENARIOS

STEPS = 20
SCENARIO_STEPS = 6
BATCH = 8  # Examples of all workers together.
# TEST_DEVICE=cuda:0 runs the tests on a GPU.
DEVICE = os.environ.get("TEST_DEVICE", "cpu")
torch.set_num_threads(1)
torch.backends.cudnn.allow_tf32 = False


class Transformer(nn.Module):
    """Small encoder. Its input is flattened: rows of Linears are examples times tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 96, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        tokens = (x.flatten(1)[:, :12] * 10).long().abs() % 40
        return self.head(self.layer(self.embedding(tokens)).mean(1))


class Cnn(nn.Module):
    """Convolutions with BatchNorm, which is in eval mode: its statistics are of one worker."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(inplace=True))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

    def train(self, mode=True):
        super().train(mode)
        for module in self.body:
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


def make_model(kind):
    if kind == "cnn":
        model = Cnn().train()
    elif kind == "transformer":
        model = Transformer()
    else:
        model = nn.Sequential(nn.Flatten(), nn.Linear(144, 128), nn.ReLU(inplace=True),
                              nn.Linear(128, 64), nn.ReLU(inplace=True), nn.Linear(64, 10))
    return model.to(DEVICE)


def make_optimizer(kind, parameters):
    if kind == "row-wise":
        return UNKNOWN["row-wise Adagrad"](parameters)
    if kind == "adam":
        return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)


def examples(step):
    """Returns the examples of all workers in a step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 1, 12, 12, generator=generator)
    return x.to(DEVICE), ((x.sum((1, 2, 3)) * 3).long().abs() % 10).to(DEVICE)


def own_examples(step, rank, size):
    x, y = examples(step)
    share = BATCH // size
    return x[rank * share:(rank + 1) * share], y[rank * share:(rank + 1) * share]


def checksum(model):
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def save(tensors):
    """Saves parameters for the test."""
    torch.save([each.detach().cpu() for each in tensors],
               os.path.join(os.environ["TEST_FOLDER"], "parameters"))


def train(kind="mlp", optimizer_kind="sgd", overlap=None):
    nt.init()
    torch.manual_seed(1)
    model = make_model(kind)
    optimizer = nt.DistributedOptimizer(make_optimizer(optimizer_kind, model.parameters()),
                                        model=model, overlap=overlap)
    for step in range(STEPS):
        x, y = own_examples(step, nt.rank(), nt.size())
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.synchronize()
    if nt.rank() == 0:
        save(model.parameters())
        for layer in optimizer.plan():
            print(layer)
    nt.shutdown()
    print("checksum", checksum(model))


def alone(kind="mlp", optimizer_kind="sgd"):
    torch.manual_seed(1)
    model = make_model(kind)
    optimizer = make_optimizer(optimizer_kind, model.parameters())
    for step in range(STEPS):
        x, y = examples(step)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


class _NoSync:
    """What a scenario needs of an optimizer, for a process alone."""

    @staticmethod
    def no_sync():
        return contextlib.nullcontext()


def scenario(name):
    """Trains as torch_scenarios.py says."""
    nt.init()
    torch.manual_seed(1)
    chosen = SCENARIOS[name]
    model = chosen.model().to(DEVICE)
    optimizer = nt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05),
                                        model=model, backward_passes_per_step=chosen.passes,
                                        rows=chosen.rows)
    own = int(os.environ["NEREUS_LOCAL_RANK"])
    for step in range(SCENARIO_STEPS):
        x, y = own_examples(step, own, nt.size())
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        chosen.backward(model, x, y, step, own, optimizer)
        chosen.finish(model)
        optimizer.step()
    if own == 0:
        save(model.parameters())
        print("factors", sum(layer["rows"] > 0 for layer in optimizer.plan()))
    nt.shutdown()
    print("checksum", checksum(model))


def scenario_alone(name, workers):
    """Trains as `scenario`, with all workers in turn in one process."""
    torch.manual_seed(1)
    chosen = SCENARIOS[name]
    model = chosen.model().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(SCENARIO_STEPS):
        means = {}
        for rank in range(int(workers)):
            optimizer.zero_grad(set_to_none=True)
            chosen.backward(model, *own_examples(step, rank, int(workers)), step, rank,
                            _NoSync)
            for parameter in model.parameters():
                if parameter.grad is not None:
                    gradient = (parameter.grad.to_dense() if parameter.grad.is_sparse
                                else parameter.grad)
                    means[parameter] = means.get(parameter, 0) + gradient / int(workers)
        for parameter in model.parameters():
            parameter.grad = means.get(parameter)
        chosen.finish(model)
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def killed(optimizer_kind="adam", overlap=None, how="SIGKILL", dtype="float32"):
    """Worker 1 is killed in the middle of a backward, or leaves after SIGTERM, and starts again
    as a new worker."""
    nt.init()
    torch.manual_seed(1)
    dtype = getattr(torch, dtype)
    model = make_model("mlp").to(dtype)
    optimizer = nt.DistributedOptimizer(make_optimizer(optimizer_kind, model.parameters()),
                                        model=model, overlap=overlap or None)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    mark = os.path.join(os.environ["TEST_FOLDER"], "killed")
    own, step = int(os.environ["NEREUS_LOCAL_RANK"]), 0
    while step + 1 < STEPS:
        x, y = own_examples(step, own, 2)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x.to(dtype)).float(), y)
        step = nt.step_info().step
        if own == 1 and step == 7 and not os.path.exists(mark):
            open(mark, "w", encoding="utf-8").close()
            loss.register_hook(lambda _: os.kill(os.getpid(), getattr(signal, how)))
        loss.backward()
        optimizer.step()
        scheduler.step()
    nt.shutdown()
    print("killed", os.path.exists(mark), "checksum", checksum(model))


def make_blocks():
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(),
                                         nn.Linear(128, 64)) for _ in range(3)))


def blocks_step(model, step, rank, size):
    x = own_examples(step, rank, size)[0].flatten(1)[:, :64]
    model(x).square().mean().backward()
    return x


def compiled(overlap=None):
    """torch.compile makes code of a model of equal blocks, which share some of it."""
    nt.init()
    model = make_blocks()
    optimizer = nt.DistributedOptimizer(make_optimizer("sgd", model.parameters()), model=model,
                                        overlap=overlap or None)
    code = torch.compile(model, backend="aot_eager")
    for step in range(4):
        optimizer.zero_grad()
        x = blocks_step(code, step, nt.rank(), nt.size())
        optimizer.step()
        with torch.no_grad():
            assert torch.allclose(code.eval()(x), model(x), atol=1e-5)
        code.train()
    if nt.rank() == 0:
        save(model.parameters())
    print("reasons", {layer["reason"] for layer in optimizer.plan() if "1.weight" in layer["name"]})
    nt.shutdown()
    print("checksum", checksum(model))


def compiled_alone():
    model = make_blocks()
    optimizer = make_optimizer("sgd", model.parameters())
    for step in range(4):
        optimizer.zero_grad()
        blocks_step(model, step, 0, 1)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def make_statistics_model():
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16)).to(DEVICE)


def statistics():
    """Workers have other examples, and so other statistics of their own."""
    nt.init()
    model = make_statistics_model()
    optimizer = nt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                        model=model)
    for step in range(3):
        x, _ = own_examples(step, int(os.environ["NEREUS_LOCAL_RANK"]), nt.size())
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    found = [model[1].running_mean, model[1].running_var]
    if nt.rank() == 0:
        save(found)
    nt.shutdown()
    print("checksum", [float(each.double().sum()) for each in found])


def ranks():
    """Prints the numbers before the first step, and a mean over all ranks."""
    nt.init()
    rank, size = nt.rank(), nt.size()
    local = f"local rank {nt.local_rank()} of {nt.local_size()}"
    parameter = nn.Parameter(torch.zeros(1))
    nt.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
    (parameter * (rank + 1)).sum().backward()
    print(f"rank {rank} of {size}, {local}: mean {float(parameter.grad)}")
    nt.shutdown()


def ddp(kind="mlp", *ways):
    """DDP with the communication hook. ways: "factorize", "view", "accumulate"."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    own, size = int(os.environ["NEREUS_LOCAL_RANK"]), int(os.environ["NEREUS_LOCAL_SIZE"])
    dist.init_process_group("gloo", rank=own, world_size=size,
                            init_method=f"file://{os.environ['TEST_FOLDER']}/meet")
    nt.init()
    torch.manual_seed(1)
    model = make_model(kind)
    if "factorize" in ways:
        model = nt.factorize(model)
    net = DistributedDataParallel(model, gradient_as_bucket_view="view" in ways)
    state = nt.CommHookState(net)
    net.register_comm_hook(state, nt.comm_hook)
    optimizer = make_optimizer("sgd", net.parameters())
    for step in range(STEPS):
        x, y = own_examples(step, own, size)
        optimizer.zero_grad()
        if "accumulate" in ways:
            half = len(x) // 2
            with net.no_sync():
                (functional.cross_entropy(net(x[:half]), y[:half]) / 2).backward()
            (functional.cross_entropy(net(x[half:]), y[half:]) / 2).backward()
        else:
            functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    if own == 0:
        save(model.parameters())
        print("ways", sorted({layer["scheme"] for layer in state.plan()}))
    nt.shutdown()
    print("checksum", checksum(model))


def functions():
    """Prints what the functions over all workers return, before and after a step."""
    nt.init()
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = nt.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
    own = int(os.environ["NEREUS_LOCAL_RANK"])
    print(sorted(each["own"] for each in nt.gather_object({"own": own})),
          nt.gather_object([1, None, "ä"]), nt.broadcast_object(own) in (0, 1))
    (parameter * (own + 1)).sum().backward()
    optimizer.step()
    nt.barrier()
    assert nt.gather_object(own)[nt.rank()] == own
    print(nt.average(own + 0.5), nt.average({"loss": torch.tensor(2.0 * own), "right": own}))
    for call in (lambda: nt.average("much"), lambda: nt.gather_object(torch.ones(2))):
        try:
            call()
        except nt.InvalidArgument as error:
            print(error)
    nt.shutdown()


def before_the_model():
    """Calls functions over all workers before there is a model, and after it."""
    nt.init()
    own = int(os.environ["NEREUS_LOCAL_RANK"])
    nt.barrier()
    print(nt.broadcast_object({"seed": own}), nt.gather_object(own), nt.average(own + 1))
    parameter = nn.Parameter(torch.full((1,), float(own)))
    optimizer = nt.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
    print(float(parameter), nt.gather_object(("own", own)))
    (parameter * (own + 1)).sum().backward()
    optimizer.step()
    print(nt.rank() == own, nt.gather_object(own))
    nt.broadcast_parameters({"parameter": parameter})
    nt.shutdown()


def left_out(case):
    """Ends without shutdown, with an error of its own, or trains twice."""
    nt.init()
    own = int(os.environ["NEREUS_LOCAL_RANK"])
    model = SCENARIOS["plain"].model()
    optimizer = nt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    for step in range(3):
        x, y = own_examples(step, own, nt.size())
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if case == "error" and own == 1:
            raise ValueError("an error of the program")
    print("all steps done", checksum(model), flush=True)
    if case == "exit":
        sys.exit(0)
    if case == "twice":
        nt.shutdown()
        nt.init()


def mistake(case):
    """Does what a user should not do."""
    nt.init()
    torch.manual_seed(1)
    model = SCENARIOS["plain"].model().to(DEVICE)
    own = int(os.environ["NEREUS_LOCAL_RANK"])
    if case == "type":
        model.double()
    if case == "checkpointed twice":
        model = Twice().to(DEVICE)
    if case == "buffers":
        model.register_buffer("noise", torch.full((3,), float(own), device=DEVICE))
    if case == "model" and own == 1:
        model.head = nn.Linear(72, 11).to(DEVICE)
    lr = 0.1 * (own + 1) if case == "numbers" else 0.1
    optimizer = nt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=lr), model=model)
    if case == "twice":
        nt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(3):
        x, y = own_examples(step, own, nt.size())
        if case == "moved" and step == 1:
            model.bfloat16()
        if case == "added" and step == 1:
            other = nn.Parameter(torch.ones(3, device=DEVICE))
            optimizer.add_param_group({"params": [other]})
        loss = functional.cross_entropy(model(x.to(model.first.weight.dtype)).float(), y)
        if case == "set":
            for parameter, gradient in zip(model.parameters(),
                                           torch.autograd.grad(loss, list(model.parameters()))):
                parameter.grad = gradient
        else:
            loss.backward()
        if case == "alone" and own == 1:
            with torch.no_grad():
                model.first.weight.mul_(1.01)
        optimizer.step()
    nt.shutdown()


class Twice(nn.Module):
    """Runs a module twice, in two parts of the graph that run backward by themselves."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(144, 144)
        self.head = nn.Linear(144, 10)

    def forward(self, x):
        x = self.head.weight.sum() * 0 + x.flatten(1)
        for _ in range(2):
            x = checkpoint(self.first, x, use_reentrant=True)
        return self.head(x)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
