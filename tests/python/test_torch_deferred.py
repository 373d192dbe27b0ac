"""Updates in the next forward (overlap="dear"), in one process. test_torch.py has real jobs."""

import copy

import pytest

torch = pytest.importorskip("torch")
import nereus.torch as nt  # pylint: disable=wrong-import-position
# pylint: disable=wrong-import-position,unused-import
from one_worker import batch, equal, gradients, job, step
from torch_scenarios import Net, loss_of


@pytest.fixture(autouse=True)
def decoupled(job):
    job.decoupled = True
    return job


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(model):
    return torch.optim.AdamW([{"params": [model.first.weight], "lr": 0.01},
                              {"params": [each for name, each in model.named_parameters()
                                          if name != "first.weight"], "lr": 0.02}])


def wrapped(model, make=sgd, **options):
    return nt.DistributedOptimizer(make(model), model=model, overlap="dear", **options)


def parameters(model):
    return [each.detach().clone() for each in model.parameters()]


def with_statistics():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(inplace=True),
        torch.nn.Flatten(), torch.nn.Linear(800, 10))


@pytest.mark.parametrize("make_model, make_optimizer", [
    (Net, sgd), (Net, adam), (with_statistics, sgd)])
@pytest.mark.parametrize("options", [{}, {"factors": False}])
def test_training_is_that_of_a_plain_optimizer(make_model, make_optimizer, options):
    model = make_model()
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model, make_optimizer, **options), make_optimizer(plain)
    for net, each in ((model, optimizer), (plain, reference)):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(each, 0.5)
        for count in (4, 3, 4, 2):
            step(net, each, count)
            each.step()
            scheduler.step()
    optimizer.synchronize()
    assert equal(parameters(model), parameters(plain))
    assert equal(model.buffers(), plain.buffers())


def test_a_module_waits_for_its_own_parameters_only(job):
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.step()
    optimizer.zero_grad()
    client = optimizer._engine._client
    assert client.waits == []
    names = {index: layer.name for index, layer in enumerate(client.layers)}
    before = parameters(model)
    model.first(batch()[0].flatten(1))
    found = [names[index] for index in client.waits]
    assert found[:2] == ["nereus.torch", "first.weight"]
    assert not any(name.startswith("second.weight") for name in found)
    changed = [not torch.equal(one, other)
               for one, other in zip(before, parameters(model))]
    assert changed[0] and not changed[2]


def test_a_gradient_that_is_used_too_early_is_an_error():
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    with pytest.raises(nt.NereusError, match=r"call optimizer.synchronize\(\) after backward"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(nt.NereusError, match="used before the mean"):
        model.first.weight.grad.mul_(2)


def test_gradients_may_be_clipped_after_synchronize():
    model = Net()
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model), sgd(plain)
    for _ in range(3):
        for net, each in ((model, optimizer), (plain, reference)):
            step(net, each)
            if each is optimizer:
                optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            each.step()
    assert equal(parameters(model), parameters(plain))


def test_saved_parameters_and_state_are_those_after_the_step():
    model = Net()
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model), sgd(plain)
    for net, each in ((model, optimizer), (plain, reference)):
        step(net, each)
        each.step()
    found = model.state_dict()
    assert equal([found[name] for name, _ in model.named_parameters()], parameters(plain))
    step(model, optimizer)
    optimizer.step()
    step(plain, reference)
    reference.step()
    found, expected = (each.state_dict()["state"] for each in (optimizer, reference))
    assert found.keys() == expected.keys()
    for key, state in expected.items():
        assert equal([found[key]["momentum_buffer"]], [state["momentum_buffer"]])


def test_a_part_of_the_model_may_be_evaluated_between_backward_and_step():
    model = Net()
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model), sgd(plain)
    for net, each in ((model, optimizer), (plain, reference)):
        step(net, each)
        with torch.no_grad():
            net.first(batch()[0].flatten(1))
        each.step()
        step(net, each)
        each.step()
    optimizer.synchronize()
    assert equal(parameters(model), parameters(plain))


def test_gradients_add_up_over_passes_and_without_zero_grad():
    model = Net()
    plain = copy.deepcopy(model)
    optimizer = wrapped(model, backward_passes_per_step=2)
    reference = sgd(plain)
    for net, each in ((model, optimizer), (plain, reference)):
        for index in range(3):
            if index == 1:
                each.zero_grad()
            for count in (4, 3):
                x, y = batch(count)
                loss_of(net(x), y).backward()
            each.step()
    optimizer.synchronize()
    assert equal(parameters(model), parameters(plain))


def test_skipped_steps_change_nothing(job):
    job.may_skip, job.skips = True, (0,)
    model = Net()
    before = parameters(model)
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.step()
    optimizer.synchronize()
    assert optimizer._engine.skipped and equal(parameters(model), before)
    step(model, optimizer)
    optimizer.step()
    optimizer.synchronize()
    assert not optimizer._engine.skipped and not equal(parameters(model), before)


def test_a_parameter_that_others_use_first_is_an_error():
    model = Net()
    optimizer = wrapped(model, factors=False)
    step(model, optimizer)
    optimizer.step()
    optimizer.zero_grad()
    x, _ = batch()
    loss = (torch.nn.functional.linear(x.flatten(1), model.first.weight)).sum()
    with pytest.raises(nt.NereusError, match="first.weight was used before its update"):
        loss.backward()


def test_a_module_may_use_the_parameters_of_its_parts():
    model = torch.nn.Sequential(torch.nn.Unflatten(1, (3, 64)),
                                torch.nn.TransformerEncoderLayer(64, 4, 96, dropout=0.0))
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model), sgd(plain)
    x = torch.randn(4, 192)
    for net, each in ((model, optimizer), (plain, reference)):
        for _ in range(3):
            each.zero_grad()
            net(x).square().mean().backward()
            each.step()
    optimizer.synchronize()
    assert equal(parameters(model), parameters(plain))


def test_parameters_without_a_gradient_are_left_alone():
    model = Net()
    model.unused = torch.nn.Linear(64, 64)
    before = model.unused.weight.detach().clone()
    optimizer = wrapped(model)
    for _ in range(3):
        step(model, optimizer)
        optimizer.step()
    optimizer.synchronize()
    assert torch.equal(model.unused.weight, before)
    assert model.unused.weight.grad is None


def test_a_job_that_goes_back_forgets_the_step(job):
    job.goes_back_at = 1
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.step()
    client, before = optimizer._engine._client, parameters(model)
    step(model, optimizer)
    assert client.waits == [] and equal(parameters(model), before)
    optimizer.step()
    optimizer.synchronize()
    assert not equal(parameters(model), before)


def test_a_job_that_goes_back_while_a_module_waits_is_an_error(job):
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.step()
    client, before = optimizer._engine._client, parameters(model)

    def wait(*_, **__):
        raise nt.JobWentBack("the job has gone back", 11)

    client.wait, job.goes_back_at = wait, 2
    with pytest.raises(nt.JobWentBack):
        step(model, optimizer)
    del client.wait
    step(model, optimizer)
    assert optimizer._engine.step_info.step == 2 and equal(parameters(model), before)
    optimizer.step()
    optimizer.synchronize()
    assert not equal(parameters(model), before)


def test_copies_of_a_model_wait_for_nothing():
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.step()
    optimizer.synchronize()
    copied = copy.deepcopy(model)
    step(model, optimizer)
    optimizer.step()
    waits = len(optimizer._engine._client.waits)
    copied(batch()[0])
    copied.state_dict()
    assert len(optimizer._engine._client.waits) == waits


def test_wrong_uses_are_named(job):
    with pytest.raises(nt.InvalidArgument, match="must be None or \"dear\""):
        nt.DistributedOptimizer(sgd(Net()), overlap="yes")
    with pytest.raises(nt.InvalidArgument, match="needs model="):
        nt.DistributedOptimizer(sgd(Net()), overlap="dear")
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    with pytest.raises(nt.InvalidArgument, match="no closure"):
        optimizer.step(lambda: 0)


def test_a_job_without_the_flag_is_an_error(job):
    job.decoupled = False
    model = Net()
    optimizer = wrapped(model)
    with pytest.raises(nt.NereusError, match="needs a job with --overlap=dear"):
        step(model, optimizer)


def test_a_job_with_the_flag_trains_a_program_without_it(caplog):
    model = Net()
    optimizer = nt.DistributedOptimizer(sgd(model), model=model)
    step(model, optimizer)
    assert "backward waits for all layers" in caplog.text
    assert all(bool(torch.isfinite(each).all()) for each in gradients(model))
