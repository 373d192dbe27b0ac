"""Optimizers in a job: training equals that of torch alone, and a worker that joins later goes on
with the state of the others."""

import copy
import inspect

import pytest

torch = pytest.importorskip("torch")
import nereus.torch as nt  # pylint: disable=wrong-import-position
# pylint: disable=wrong-import-position,unused-import
from one_worker import batch, equal, job
from torch_optimizers import KNOWN, PARTS, REFUSED, UNKNOWN
from torch_scenarios import Net, loss_of

STEPS = 5


def train(model, optimizer, steps, factor=1.0):
    """Trains for some steps. factor: of the gradients, as a job's mean."""
    for _ in range(steps):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model(batch()[0]), batch()[1])
            loss.backward()
            for parameter in model.parameters():
                parameter.grad.mul_(factor)
            return loss

        if type(optimizer).__name__ == "Sam":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def parameters_of(name, model):
    return [each for each in model.parameters() if name not in PARTS or each.dim() == 2]


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN, *PARTS])
def test_an_optimizer_trains_as_alone(name, job, caplog):
    job.factor = 0.5
    make = {**KNOWN, **UNKNOWN, **PARTS}[name]
    model = Net()
    plain = copy.deepcopy(model)
    optimizer = nt.DistributedOptimizer(make(parameters_of(name, model)), model=model)
    train(model, optimizer, STEPS)
    train(plain, make(parameters_of(name, plain)), STEPS, factor=0.5)
    assert equal(model.parameters(), plain.parameters())
    assert ("is not known" in caplog.text) == (name in UNKNOWN)


@pytest.mark.parametrize("name", [*KNOWN, *PARTS])
def test_a_worker_that_joins_has_the_state_of_the_others(name, job):
    """The second worker gets the memory of the first one's layers, as from a donor."""
    make = {**KNOWN, **PARTS}[name]
    model = Net()
    optimizer = nt.DistributedOptimizer(make(parameters_of(name, model)), model=model,
                                        factors=False)
    train(model, optimizer, STEPS)
    engine = optimizer._engine
    engine._state.adopt_all()  # As before the next push, from which on a donor gives.
    engine._extras.write()
    given = engine._client.layers
    begin = job.__init__

    def joined(self, layers, **options):
        begin(self, layers, **options)
        for own, other in zip(layers, given):
            own.parameters.copy_(other.parameters)
            if own.state is not None:
                own.state.copy_(other.state)

    job.__init__, job.begins_at = joined, STEPS
    nt.process._Process.engine = None
    torch.manual_seed(2)  # Other parameters, which do not count.
    later = Net()
    with torch.no_grad():
        for own, other in zip(later.parameters(), model.parameters()):
            if name in PARTS and own.dim() != 2:
                own.copy_(other)  # The job does not have it.
    joiner = nt.DistributedOptimizer(make(parameters_of(name, later)), model=later, factors=False)
    assert equal(later.parameters(), model.parameters())
    train(model, optimizer, 2)
    train(later, joiner, 2)
    assert equal(later.parameters(), model.parameters())


@pytest.mark.parametrize("name", list(REFUSED))
def test_an_optimizer_that_cannot_work_is_refused(name):
    with pytest.raises(nt.InvalidArgument, match="is not supported"):
        nt.DistributedOptimizer(REFUSED[name](list(Net().parameters())))


def test_all_of_torchs_optimizers_are_tested():
    made = [torch.nn.Linear(70, 70).weight]
    tested = {type(make(made)).__name__
              for make in [*KNOWN.values(), *UNKNOWN.values(), *REFUSED.values(),
                           *PARTS.values()]}
    assert {name for name, each in vars(torch.optim).items() if inspect.isclass(each)
            and issubclass(each, torch.optim.Optimizer)} - {"Optimizer"} <= tested
