"""Updates in the next forward (overlap="dear"), in one process. test_torch.py has real jobs."""

import copy
import gc
import io
import pickle
import threading
import time

import pytest

torch = pytest.importorskip("torch")
import nereus.torch as nt  # pylint: disable=wrong-import-position
# pylint: disable=wrong-import-position,unused-import
from one_worker import batch, equal, gradients, job, step
from torch_scenarios import Net, loss_of


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
    model.first(batch()[0].flatten(1))
    found = [names[index] for index in client.waits]
    assert found[:2] == ["nereus.torch", "first.weight"]
    assert not any(name.startswith("second.weight") for name in found)


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


class OwnParameter(torch.nn.Parameter):
    """Parameter of a class of the user, which counts the operations on it."""

    operations = []

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        cls.operations.append(function)
        with torch._C.DisableTorchFunction():
            return function(*arguments, **(options or {}))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loads = {"weights_only": False} if hasattr(torch, "get_autocast_dtype") else {}
    return torch.load(file, **loads)


def averaged(model):
    average = [torch.zeros_like(each) for each in model.parameters()]
    with torch.no_grad():
        for mean, each in zip(average, model.parameters()):
            mean.lerp_(each, 1.0)
    return average


# Functions of a model that read its parameters outside of a forward.
READS = {
    "detach": lambda model: [each.detach() for each in model.parameters()],
    "data": lambda model: [each.data for each in model.parameters()],
    "numpy": lambda model: [torch.as_tensor(each.detach().numpy())
                            for each in model.parameters()],
    "copy of the model": lambda model: list(copy.deepcopy(model).parameters()),
    "copies of parameters": lambda model: [copy.deepcopy(each) for each in model.parameters()],
    "saved model": lambda model: list(saved(model).parameters()),
    "pickled parameters": lambda model: [pickle.loads(pickle.dumps(each))
                                         for each in model.parameters()],
    "state_dict": lambda model: [model.state_dict()[name]
                                 for name, _ in model.named_parameters()],
    "state_dict of references": lambda model: [
        model.state_dict(keep_vars=True)[name] for name, _ in model.named_parameters()],
    "vector": lambda model: [torch.nn.utils.parameters_to_vector(model.parameters())],
    "list": lambda model: [torch.cat([each.flatten() for each in model.parameters()])],
    "list of parameters": lambda model: [torch.stack([model.first.bias, model.second.bias])],
    "named argument": lambda model: [torch.add(1, other=model.first.bias)],
    "average": averaged,
    "norm": lambda model: [torch.norm(each) for each in model.parameters()],
    "elements": lambda model: [torch.as_tensor(float(model.first.weight[0, 0]))],
}


@pytest.mark.parametrize("read", READS)
def test_a_parameter_that_is_read_outside_of_a_forward_is_never_stale(read):
    model = Net()
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model), sgd(plain)
    for net, each in ((model, optimizer), (plain, reference)):
        for _ in range(2):
            step(net, each)
            each.step()
    found, expected = READS[read](model), READS[read](plain)
    assert equal(found, expected)
    assert [type(each) for each in found] == [type(each) for each in expected]
    optimizer.synchronize()
    assert equal(parameters(model), parameters(plain))
    assert all(type(each) is torch.nn.Parameter for each in model.parameters())


def test_a_statistic_that_is_read_outside_of_a_forward_is_never_stale():
    model = with_statistics()
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model), sgd(plain)
    for net, each in ((model, optimizer), (plain, reference)):
        step(net, each)
        each.step()
    assert equal([model[1].running_mean], [plain[1].running_mean])
    assert equal(copy.deepcopy(model).buffers(), plain.buffers())
    assert type(model[1].running_mean) is torch.Tensor


def test_what_reads_no_values_waits_for_nothing():
    model = with_statistics()
    optimizer = wrapped(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    scaler = torch.cuda.amp.GradScaler(enabled=False)
    for _ in range(2):
        optimizer.zero_grad()
        x, y = batch()
        scaler.scale(loss_of(model(x), y)).backward()
        before = len(optimizer._engine._client.waits)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        for each in [*model.parameters(), *model.buffers()]:
            assert isinstance(each, torch.Tensor) and each in {each}
            assert each.size() == each.shape and each.numel() == each.shape.numel()
            assert each.dtype in (torch.float32, torch.int64) and each.device.type == "cpu"
            assert each.dim() == each.ndim and each.is_leaf and each.grad_fn is None
            assert each.is_floating_point() == torch.is_floating_point(each)
        assert all(each.requires_grad and isinstance(each, torch.nn.Parameter)
                   for each in model.parameters())
        model.eval()
        model.train()
        model.zero_grad(set_to_none=True)
        assert len(optimizer._engine._client.waits) == before


def test_each_module_of_a_forward_waits_for_its_own_layers():
    model = with_statistics()
    optimizer = wrapped(model, factors=False)
    step(model, optimizer)
    optimizer.step()
    client = optimizer._engine._client
    seen = []
    for module in model:
        module.register_forward_hook(lambda *_: seen.append(set(client.waits)))
    model(batch()[0])
    # Layer 1 has the statistics, 2 the small parameters, and 3 the Linear's weight.
    assert seen == [{0, 2}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2, 3}]
    assert len(client.waits) == 4


def test_what_is_written_to_a_parameter_comes_after_its_update():
    model = Net()
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model), sgd(plain)
    for net, each in ((model, optimizer), (plain, reference)):
        for _ in range(2):
            step(net, each)
            each.step()
            net.first.weight.data.mul_(0.5)
            with torch.no_grad():
                net.second.weight.clamp_(-0.05, 0.05)
                net.head.weight.copy_(net.head.weight * 2)
    optimizer.synchronize()
    assert equal(parameters(model), parameters(plain))


@pytest.mark.parametrize("to_none", [
    lambda model: model.zero_grad(set_to_none=True),
    lambda model: setattr(model.first.weight, "grad", None)])
@pytest.mark.parametrize("before_step", [False, True])
def test_gradients_that_are_set_to_none_do_not_add_up(to_none, before_step):
    model = Net()
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model), sgd(plain)
    for net, each in ((model, optimizer), (plain, reference)):
        for count in (4, 3, 2):
            x, y = batch(count)
            loss_of(net(x), y).backward()
            if before_step:
                to_none(net)
            each.step()
            if not before_step:
                to_none(net)
            assert net.first.weight.grad is None
    optimizer.synchronize()
    assert equal(parameters(model), parameters(plain))


def test_a_gradient_of_the_caller_takes_the_place_of_the_mean():
    model = Net()
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model), sgd(plain)
    for net, each in ((model, optimizer), (plain, reference)):
        step(net, each)
        net.first.weight.grad = torch.ones_like(net.first.weight)
        each.step()
    optimizer.synchronize()
    assert equal(parameters(model), parameters(plain))


def test_a_parameter_of_a_class_of_the_user_keeps_its_class():
    model = Net()
    model.first.weight = OwnParameter(model.first.weight.detach().clone())
    optimizer = wrapped(model, factors=False)
    before = model.first.weight.detach().clone()
    step(model, optimizer)
    optimizer.step()
    OwnParameter.operations.clear()
    assert isinstance(model.first.weight, OwnParameter)
    assert not torch.equal(model.first.weight, before)
    assert torch.equal in OwnParameter.operations
    assert type(model.first.weight) is OwnParameter


def test_a_parameter_may_be_used_outside_of_its_module():
    model = Net()
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model, factors=False), sgd(plain)
    x, y = batch()
    for net, each in ((model, optimizer), (plain, reference)):
        for _ in range(3):
            each.zero_grad()
            penalty = (x.flatten(1) @ net.first.weight.t()).square().mean()
            (penalty + loss_of(net(x), y)).backward()
            each.step()
    optimizer.synchronize()
    assert equal(parameters(model), parameters(plain))


def test_a_scripted_part_of_a_model_waits_for_its_parameters():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 32),
                                torch.jit.script(torch.nn.Linear(32, 10)))
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 32),
                                torch.nn.Linear(32, 10))
    plain.load_state_dict(model.state_dict())
    optimizer, reference = wrapped(model), sgd(plain)
    for net, each in ((model, optimizer), (plain, reference)):
        for _ in range(3):
            step(net, each)
            each.step()
    optimizer.synchronize()
    assert equal(parameters(model), parameters(plain))


def test_a_graph_that_is_older_than_the_update_is_an_error():
    model = Net()
    optimizer = wrapped(model, factors=False)
    step(model, optimizer)
    optimizer.synchronize()
    x, y = batch()
    losses = [loss_of(model(x), y) for _ in range(2)]
    losses[0].backward()
    with pytest.raises(nt.NereusError, match="of a graph that is older than its update"):
        losses[1].backward()


class Multiplied(torch.optim.SGD):
    """Optimizer that multiplies matrices, which autocast would round."""

    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None and each.dim() == 2:
                    each.grad = each.grad @ torch.eye(each.shape[1])
        return super().step(closure)


@pytest.mark.parametrize("context", [
    torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)])
def test_an_update_is_not_done_in_the_mode_of_the_forward(context):
    model = Net()
    plain = copy.deepcopy(model)
    for net in (model, plain):
        optimizer = Multiplied(net.parameters(), lr=0.1, momentum=0.9)
        if net is model:
            optimizer = nt.DistributedOptimizer(optimizer, model=net, overlap="dear")
        for _ in range(3):
            step(net, optimizer)
            optimizer.step()
            with context():
                net(batch()[0])
    assert equal(parameters(model), parameters(plain))


def test_a_model_outlives_its_optimizer():
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.step()
    nt.process._Process.engine = None
    del optimizer
    gc.collect()
    parameters(model)
    assert all(type(each) is torch.nn.Parameter for each in model.parameters())


def test_threads_that_read_a_parameter_wait_for_one_update(job):
    model = Net()
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model), sgd(plain)
    for net, each in ((model, optimizer), (plain, reference)):
        step(net, each)
        each.step()
    original, found = job.wait, []

    def slow(self, index, *arguments, **options):
        time.sleep(0.05)
        original(self, index, *arguments, **options)

    job.wait = slow
    threads = [threading.Thread(target=lambda: found.append(parameters(model)))
               for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and all(equal(each, parameters(plain)) for each in found)


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
    before = parameters(model)
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.step()
    step(model, optimizer)
    assert optimizer._engine._client.waits == [] and equal(parameters(model), before)
    optimizer.step()
    optimizer.synchronize()
    assert not equal(parameters(model), before)


def test_a_job_that_goes_back_while_a_module_waits_is_an_error(job):
    model = Net()
    before = parameters(model)
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.step()
    client = optimizer._engine._client

    def wait(*_, **__):
        raise nt.JobWentBack("the job has gone back", 11)

    client.wait, job.goes_back_at = wait, 2
    for _ in range(2):  # A parameter whose mean does not come is not read without it.
        with pytest.raises(nt.JobWentBack):
            model.first.weight.detach()
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
