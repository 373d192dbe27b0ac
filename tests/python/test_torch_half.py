"""Models in bfloat16 and float16: their layers have float32 copies of the parameters."""

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # pylint: disable=wrong-import-position
import nereus.torch as nt  # pylint: disable=wrong-import-position
# pylint: disable=wrong-import-position,unused-import
from one_worker import batch, gradients, job, wrapped
from torch_scenarios import Half, loss_of


class Normalized(nn.Module):
    """Linears in bfloat16 around a BatchNorm, which may be in float32."""

    def __init__(self, dtype):
        super().__init__()
        self.first = nn.Linear(144, 72).bfloat16()
        self.norm = nn.BatchNorm1d(72).to(dtype)
        self.head = nn.Linear(72, 10).bfloat16()

    def forward(self, x):
        x = self.norm(self.first(x.flatten(1).bfloat16()).to(self.norm.weight.dtype))
        return self.head(x.bfloat16()).float()


def train(model, optimizer, steps=3):
    for count in range(2, 2 + steps):
        optimizer.zero_grad()
        x, y = batch(count)
        loss_of(model(x), y).backward()
        optimizer.step()


def same_bits(model, plain):
    """Returns True if two models have the same parameters and buffers."""
    return all(one.dtype == other.dtype and torch.equal(one, other)
               for one, other in zip(model.state_dict().values(), plain.state_dict().values()))


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("overlap", [None, "dear"])
@pytest.mark.parametrize("make", [adam, momentum])
def test_parameters_in_bfloat16_have_the_bits_of_one_process(job, make, overlap):
    model = Half()
    plain = copy.deepcopy(model)
    before = copy.deepcopy(model)
    optimizer = nt.DistributedOptimizer(make(model), model=model, factors=False,
                                        overlap=overlap)
    train(model, optimizer)
    train(plain, make(plain))
    optimizer.synchronize()
    assert same_bits(model, plain) and not same_bits(model, before)
    assert all(state.dtype == torch.bfloat16 for each in optimizer.state.values()
               for state in each.values() if state.dim() > 0)


def test_parameters_in_float16_have_the_bits_of_one_process():
    x = torch.linspace(-1, 1, 5000).half()
    one, other = (nn.Parameter(torch.ones(5000).half()) for _ in range(2))
    optimizer = nt.DistributedOptimizer(torch.optim.SGD([one], lr=0.1))
    plain = torch.optim.SGD([other], lr=0.1)
    for parameter, each in ((one, optimizer), (other, plain)):
        for _ in range(3):
            each.zero_grad()
            (parameter * x).sum().backward()
            each.step()
    assert torch.equal(one, other) and float(one.detach()[0]) > 1.2


def test_the_job_has_the_values_of_the_parameters(job):
    model = Half()
    optimizer = wrapped(model, factors=False)
    train(model, optimizer)
    for layer in optimizer._engine._layers:
        layer.values.fill_(7)
    optimizer.zero_grad()
    x, y = batch()
    before = [each.detach().float() for each in model.parameters()]
    loss_of(model(x), y).backward()
    given = [slot.view_of(layer.values) for layer in optimizer._engine._layers
             for slot in layer.slots]
    assert len(given) == len(before)
    assert all(any(one.shape == other.shape and torch.equal(one, other) for other in given)
               for one in before)


def test_a_worker_that_joins_gets_the_values_of_the_job(job):
    model = Half()
    original = copy.deepcopy(model)

    class Writing(job):
        """Client that writes the parameters of another job."""

        def __init__(self, layers, **options):
            super().__init__(layers, **options)
            for layer in layers[1:]:
                layer.parameters.fill_(0.5)

    nt.engine.Client = Writing
    wrapped(model, factors=False)
    assert not same_bits(model, original)
    assert all(each.dtype == torch.bfloat16 and bool((each == 0.5).all())
               for each in model.parameters())


def test_a_linear_in_bfloat16_may_go_by_its_factors():
    model = Half()
    plain = copy.deepcopy(model)
    optimizer = wrapped(model)
    for net in (model, plain):
        x, y = batch()
        loss_of(net(x), y).backward()
    assert [each["rows"] > 0 for each in optimizer.plan()].count(True) == 2
    for one, other in zip(gradients(model), gradients(plain)):
        assert one.dtype == torch.bfloat16
        assert float((one.float() - other.float()).norm() / other.float().norm()) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_of_a_mixed_model_are_those_of_one_process(dtype):
    model = Normalized(dtype)
    plain = copy.deepcopy(model)
    optimizer = wrapped(model, factors=False)
    train(model, optimizer)
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    assert all(torch.equal(one, other)
               for one, other in zip(model.parameters(), plain.parameters()))
    # A statistic goes through a difference, which is rounded.
    for one, other in zip(model.buffers(), plain.buffers()):
        assert one.dtype == other.dtype
        assert torch.allclose(one.float(), other.float(), rtol=1e-2 if dtype != torch.float32
                              else 1e-5, atol=1e-6)
    assert float(model.norm.running_mean.abs().min()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_skipped_step_changes_no_statistics(job, dtype):
    job.may_skip, job.skips = True, (1,)
    model = Normalized(dtype)
    optimizer = wrapped(model, factors=False)
    train(model, optimizer, steps=1)
    before = copy.deepcopy(model)
    train(model, optimizer, steps=1)  # Skipped.
    assert torch.equal(model.norm.running_mean, before.norm.running_mean)
    assert torch.equal(model.norm.running_var, before.norm.running_var)


def test_gradients_in_bfloat16_add_up():
    model = Half()
    plain = copy.deepcopy(model)
    wrapped(model, factors=False)
    for net in (model, plain):
        for count in (2, 3):
            x, y = batch(count)
            loss_of(net(x), y).backward()
    assert all(torch.equal(one, other)
               for one, other in zip(gradients(model), gradients(plain)))


def test_a_model_of_another_type_is_another_model(job):
    names = []

    class Noting(job):
        def __init__(self, layers, **options):
            super().__init__(layers, **options)
            names.append([layer.name for layer in layers[1:]])

    nt.engine.Client = Noting
    for kind in (Half(), Half().float()):
        nt.process._Process.engine = None
        wrapped(kind, factors=False)
    assert not set(names[0]) & set(names[1])
    assert "first.weight torch.bfloat16" in names[0] and "first.weight" in names[1]
