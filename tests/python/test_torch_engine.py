"""The engine of nereus.torch in one process: what it does with gradients when training loops do
unusual things. test_torch.py has real jobs."""

import copy
import io
import os
import re

import pytest

torch = pytest.importorskip("torch")
import nereus
from nereus import options  # pylint: disable=wrong-import-position
import nereus.torch as nt  # pylint: disable=wrong-import-position
from nereus.torch import factors, layout, state  # pylint: disable=wrong-import-position
# pylint: disable=wrong-import-position,unused-import
from one_worker import batch, equal, gradients, job, step, wrapped
from torch_scenarios import Net, Tied, loss_of


def test_a_weight_that_is_used_twice_under_autocast_has_no_factors():
    model = Tied()
    plain = copy.deepcopy(model)
    optimizer = wrapped(model)
    x, y = batch()
    for net in (model, plain):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = net(x)
        assert output.dtype == torch.bfloat16
        loss_of(output.float(), y).backward()
    assert reasons(optimizer)["second.weight"].startswith("its gradient is not")
    found, expected = model.second.weight.grad, plain.second.weight.grad
    assert float((found - expected).norm() / expected.norm()) < 2e-2


def reasons(optimizer):
    return {layer["name"]: layer["reason"] for layer in optimizer.plan()}


def test_small_parameters_come_where_the_first_of_them_is_needed():
    # The last ones share a layer with the first, which the forward pass waits for first.
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(64, 64, bias=False),
                                torch.nn.Linear(2, 3))
    names = [layer.slots[0].name for layer in layout.layers_of(list(model.named_parameters()))]
    assert names == ["0.weight", "1.weight"]


def test_a_model_need_not_be_called():
    class Container(Net):
        def loss(self, x, y):
            return loss_of(self.forward(x), y)

    model = Container()
    plain = copy.deepcopy(model)
    optimizer = wrapped(model)
    for _ in range(3):
        for net in (model, plain):
            net.zero_grad(set_to_none=True)
            net.loss(*batch()).backward()
        assert equal(gradients(model), gradients(plain))
        optimizer.step()
        plain.load_state_dict(model.state_dict())


LATER_USES = {
    "loss": lambda net, x, y: loss_of(net(x), y) + net.first.weight.square().sum() * 0.1,
    "function": lambda net, x, y: loss_of(net(x) + torch.nn.functional.linear(
        x.flatten(1), net.first.weight).sum() * 0.1, y),
}


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("use", list(LATER_USES))
def test_a_weight_that_gets_another_use_later_goes_by_its_gradient(use, to_none):
    model = Net()
    plain = copy.deepcopy(model)
    optimizer = wrapped(model)
    for number in range(4):
        for net in (model, plain):
            net.zero_grad(set_to_none=to_none)
            (LATER_USES[use](net, *batch()) if number >= 2
             else loss_of(net(batch()[0]), batch()[1])).backward()
        assert equal(gradients(model), gradients(plain)), number
        optimizer.step()
        plain.load_state_dict(model.state_dict())


def test_a_batch_may_be_done_again_after_a_backward_that_sent_nothing():
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    expected = gradients(model)
    x, y = batch()
    optimizer.zero_grad()
    loss = loss_of(model(x), y)

    def fail(_):
        raise MemoryError("no memory")

    loss.register_hook(fail)
    with pytest.raises(MemoryError):
        loss.backward()
    step(model, optimizer)
    assert equal(gradients(model), expected)


def test_a_backward_that_fails_half_way_is_an_error_at_the_next_forward():
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    x, y = batch()
    x.requires_grad_()

    def fail(_):
        raise MemoryError("no memory")

    x.register_hook(fail)
    with pytest.raises(MemoryError):
        loss_of(model(x), y).backward()
    with pytest.raises(nt.NereusError, match="failed after it had sent gradients"):
        step(model, optimizer)


def test_a_skipped_step_changes_nothing(job):
    job.may_skip, job.skips = True, (1,)
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.step()
    before = [each.detach().clone() for each in model.parameters()]
    step(model, optimizer)
    assert all(bool(torch.isinf(each.grad).all()) for each in model.parameters())
    optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before))
    step(model, optimizer)
    optimizer.step()
    assert not torch.equal(model.first.weight, before[0])


def test_a_closure_whose_step_is_skipped_changes_nothing(job):
    job.may_skip, job.skips = True, (1,)
    model = Net()
    optimizer = wrapped(model)

    def closure():
        optimizer.zero_grad()
        x, y = batch()
        loss = loss_of(model(x), y)
        loss.backward()
        return loss

    for skipped in (False, True, False):
        before = model.first.weight.detach().clone()
        assert float(optimizer.step(closure).detach()) > 0
        assert torch.equal(model.first.weight, before) == skipped


def test_an_overflow_in_the_first_step_is_no_wrong_product():
    model = Net()
    optimizer = wrapped(model)
    x, y = batch()
    optimizer.zero_grad()
    (loss_of(model(x), y) * float("inf")).backward()
    step(model, optimizer)
    plain = copy.deepcopy(model)
    plain.zero_grad()
    loss_of(plain(x), y).backward()
    assert equal(gradients(model), gradients(plain))


def test_gradients_that_the_caller_keeps_stay():
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.zero_grad(set_to_none=True)
    step(model, optimizer)
    kept = [each.grad for each in model.parameters()]
    copies = [each.clone() for each in kept]
    optimizer.zero_grad(set_to_none=True)
    x, y = batch(3)
    loss_of(model(x), y).backward()
    assert all(torch.equal(one, other) for one, other in zip(kept, copies))


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_add_up_without_zero_grad(to_none):
    model = Net()
    plain = copy.deepcopy(model)
    optimizer = wrapped(model)
    for _ in range(3):
        for net in (model, plain):
            x, y = batch()
            for _ in range(2):
                loss_of(net(x), y).backward()
        assert equal(gradients(model), gradients(plain))
        optimizer.zero_grad(set_to_none=to_none)
        plain.zero_grad(set_to_none=to_none)


def test_a_batch_that_is_dropped_does_not_count():
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    expected = gradients(model)
    x, y = batch(3)
    with optimizer.no_sync():
        loss_of(model(x), y).backward()
    step(model, optimizer)  # Begins with zero_grad.
    assert equal(gradients(model), expected)


def test_a_scheduler_from_before_the_wrap_does_not_hide_an_unknown_parameter():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    nt.DistributedOptimizer(optimizer, model=model)
    step(model, optimizer)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    other = torch.nn.Parameter(torch.ones(3))
    optimizer.param_groups[0]["params"].append(other)
    other.sum().backward()
    with pytest.raises(nt.NereusError, match="frozen, or not in the optimizer"):
        optimizer.step()


def test_a_group_of_parameters_cannot_be_added_later():
    model = Net()
    optimizer = wrapped(model)
    other = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(nt.NereusError, match=(
            "add_param_group came after the optimizer was wrapped.* give the optimizer all its "
            "groups before you wrap it")):
        optimizer.add_param_group({"params": [other]})
    assert len(optimizer.param_groups) == 1
    step(model, optimizer)
    optimizer.step()


def test_a_process_alone_may_add_a_group_of_parameters(monkeypatch):
    monkeypatch.setattr(nt.process._Process, "options", nereus.Options(optimizer="worker"))
    model = Net()
    optimizer = wrapped(model)
    other = torch.nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [other]})
    other.sum().backward()
    optimizer.step()
    assert torch.allclose(other, torch.full((3,), 0.9))


class Counting(torch.optim.SGD):
    """Optimizer whose state cannot be found out."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["rows"] = torch.zeros(parameter.shape[0], 7)
        return super().step(closure)


def test_state_of_other_shapes_is_said_and_kept(caplog):
    model = Net()
    optimizer = Counting(model.parameters(), lr=0.1)
    optimizer.step()
    nt.DistributedOptimizer(optimizer, model=model)
    step(model, optimizer)
    assert "the state of Counting is not known" in caplog.text
    assert len(optimizer.state) == len(list(model.parameters()))


class Fixed(torch.optim.Adam):
    """Has a default that is no argument, as AdamW since torch 2.6."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)
        self.defaults["decoupled"] = True
        for group in self.param_groups:
            group["decoupled"] = True

    def step(self, closure=None):
        assert all(group["decoupled"] for group in self.param_groups)
        return super().step(closure)


@pytest.mark.parametrize("made", [Fixed, torch.optim.AdamW])
def test_state_is_known_if_a_default_is_no_argument(made):
    optimizer = made([torch.zeros(2, 2, requires_grad=True)])
    assert state.kinds_of_state([optimizer]) == (["exp_avg", "exp_avg_sq"], ["step"])


def test_loaded_state_is_kept_and_lives_in_the_layers():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x, y = batch()
    loss_of(model(x), y).backward()
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    nt.DistributedOptimizer(optimizer, model=model)
    model(x)
    after = optimizer.state_dict()["state"]
    for index, state in before.items():
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(after[index][name]))


class Strange(Net):
    """Returns what models return: results of topk, and an object that has itself."""

    def forward(self, x):
        output = super().forward(x)
        holder = type("Output", (), {})()
        holder.itself, holder.logits, holder.best = holder, output, output.topk(2)
        return holder


def test_outputs_of_any_kind_are_understood():
    model = Strange()
    optimizer = wrapped(model)
    x, y = batch()
    loss_of(model(x).logits, y).backward()
    assert optimizer.plan()[0]["rows"] == 4


def test_a_return_to_a_checkpoint_in_the_middle_of_a_step_is_an_error(job):
    job.goes_back_at = 1
    model = Net()
    optimizer = nt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    step(model, optimizer)
    x, y = batch()
    with pytest.raises(nt.JobWentBack, match="do the step again"):
        loss_of(model(x), y).backward()
    step(model, optimizer)


def test_a_return_to_a_checkpoint_between_two_gradients_is_no_dead_end(job, monkeypatch):
    job.goes_back_at = 2
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    pushes = []

    def push(self, *arguments, **options):
        pushes.append(arguments)
        raise nt.JobWentBack("the job has gone back", 11)

    with monkeypatch.context() as context:
        context.setattr(job, "push", push)
        x, y = batch()
        with pytest.raises(nt.JobWentBack):
            loss_of(model(x), y).backward()
    assert len(pushes) == 1 and optimizer._engine._client.pushed
    step(model, optimizer)


def test_models_and_optimizers_can_be_saved_and_copied():
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    file = io.BytesIO()
    torch.save((model, optimizer), file)
    file.seek(0)
    loads = {"weights_only": False} if hasattr(torch, "get_autocast_dtype") else {}
    found, other = torch.load(file, **loads)
    assert type(found.first) is torch.nn.Linear and type(other) is torch.optim.SGD
    found(batch()[0])
    copy.deepcopy(optimizer).step()


class Changing(Net):
    """Changes its input and has a memory."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.ones(1))
        self.calls = 0

    def forward(self, x):
        x.mul_(0.5)
        self.average = self.average * 1.5
        self.calls += 1
        return super().forward(x)


def test_the_forward_of_the_program_runs_once_in_a_step():
    model = Changing()
    optimizer = wrapped(model)
    for number in range(3):
        x, y = batch()
        before, state = x.clone(), torch.random.get_rng_state()
        loss_of(model(x), y).backward()
        optimizer.step()
        assert torch.equal(x, before * 0.5) and model.calls == number + 1
        assert float(model.average) == 1.5 ** (number + 1)
        assert torch.equal(torch.random.get_rng_state(), state)


def test_a_graph_of_gradients_works_without_factors():
    model = Net()
    optimizer = wrapped(model, factors=False)
    for _ in range(3):
        optimizer.zero_grad()
        x, y = batch()
        loss_of(model(x), y).backward(create_graph=True)
    shared = next(each.gradient for each in optimizer._engine._layers if each.is_shared)
    assert shared is not None and not shared.requires_grad


def test_a_gradient_of_the_input_alone_ends_no_step():
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    expected = gradients(model)
    optimizer.zero_grad()
    x, y = batch()
    x.requires_grad_()
    output = model(x)
    torch.autograd.grad(output.sum(), x, retain_graph=True)
    loss_of(output, y).backward()
    assert equal(gradients(model), expected)
    assert optimizer._engine.step_info.step == 1


def test_statistics_of_batch_norm_follow_their_mean(job):
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4))
    plain = copy.deepcopy(model)
    seen = []  # What a worker that joins would get, at each push.
    original = job.push

    def push(self, index, *arguments, **options):
        if self.layers[index].name.startswith("1.running_mean"):
            seen.append(self.layers[index].parameters.clone())
        original(self, index, *arguments, **options)

    job.push = push
    optimizer = wrapped(model)
    after = [torch.cat([torch.zeros(4), torch.ones(4)])]
    for count in (3, 4, 5):
        for net in (model, plain):
            net.zero_grad()
            net(batch(count)[0]).square().mean().backward()
        after.append(torch.cat([plain[1].running_mean, plain[1].running_var]).clone())
        found = torch.cat([model[1].running_mean, model[1].running_var])
        assert torch.allclose(found, after[-1])
    assert optimizer._engine.step_info.step == 2
    assert all(torch.allclose(one, other) for one, other in zip(seen, after))


def test_a_parameter_may_be_frozen_between_the_wrap_and_the_first_forward():
    model = Net()
    optimizer = wrapped(model)
    model.head.weight.requires_grad_(False)
    step(model, optimizer)
    assert model.head.weight.grad is None and model.head.bias.grad is not None


@pytest.mark.parametrize("options, message", [
    ({"factors": ["frist"]}, "factors names 'frist', which is no torch.nn.Linear"),
    ({"compression": "fp16"}, "--wire=bf16"),
    ({"backward_passes_per_step": 0}, "must be a positive number")])
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(nt.InvalidArgument, match=message):
        wrapped(Net(), **options)


def test_optimizers_that_cannot_work_are_refused():
    with pytest.raises(nt.InvalidArgument, match="LBFGS is not supported"):
        nt.DistributedOptimizer(torch.optim.LBFGS(Net().parameters()))


def test_passes_cannot_change_in_a_job():
    optimizer = wrapped(Net())
    optimizer.set_backward_passes_per_step(1)
    with pytest.raises(nt.NereusError, match="cannot change"):
        optimizer.set_backward_passes_per_step(2)


def test_ranks_before_the_first_step_are_those_of_torchrun(monkeypatch):
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert (nt.rank(), nt.size(), nt.local_rank()) == (5, 8, 1)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("NEREUS_LOCAL_RANK", raising=False)
    with pytest.raises(nt.NereusError, match="RANK"):
        nt.rank()


def test_numbers_of_groups_keep_all_their_bits():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 / 3, eps=1e-8)
    nt.DistributedOptimizer(optimizer, model=model)
    step(model, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1 / 3
    assert optimizer.param_groups[0]["eps"] == 1e-8


def test_the_check_of_factors_ends():
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    calls = []
    original = factors.FactorLayer._product
    factors.FactorLayer._product = lambda *arguments: calls.append(1) or original(*arguments)
    try:
        step(model, optimizer)
    finally:
        factors.FactorLayer._product = original
    assert not calls


def test_a_plan_may_change_to_factors_and_back(job):
    model = Net()
    optimizer = wrapped(model)
    for sends in (False, True, True, False, True):
        job.sends_factors = sends
        plain = copy.deepcopy(model)
        step(model, optimizer)
        loss_of(plain(batch()[0]), batch()[1]).backward()
        assert equal(gradients(model), gradients(plain))
        optimizer.step()


def test_the_worker_joins_at_once_and_steps_begin_on_request():
    with pytest.raises(nt.NereusError, match="needs a DistributedOptimizer"):
        nt.begin_step()
    model = Net()
    before = copy.deepcopy(model)
    optimizer = wrapped(model)
    assert equal(model.parameters(), before.parameters())
    for number in range(3):
        begun = nt.begin_step()
        assert (begun.step, begun.position, begun.workers) == (number, 0, 1)
        assert nt.begin_step() is begun
        step(model, optimizer)
        assert nt.step_info() is begun
        optimizer.step()
    assert [layer["rows"] for layer in optimizer.plan() if layer["rows"]] == [4, 4]


def test_a_process_alone_counts_its_steps(monkeypatch):
    monkeypatch.setattr(nt.process._Process, "options", nereus.Options(optimizer="worker"))
    model = Net()
    optimizer = wrapped(model)
    for number in range(2):
        assert nt.begin_step().contributions_before == nt.begin_step().step == number
        step(model, optimizer)
        optimizer.step()


@pytest.mark.parametrize("variable, meant", [
    ("NEREUS_COORDINATR", "NEREUS_COORDINATOR"), ("NEREUS_COORDINATORS", "NEREUS_COORDINATOR"),
    ("NEREUS_COORDINATOR_ADDR", "NEREUS_COORDINATOR"), ("NEREUS_LOCALRANK", "NEREUS_LOCAL_RANK")])
def test_a_process_does_not_train_alone_because_of_a_misspelt_variable(monkeypatch, variable,
                                                                       meant):
    monkeypatch.delenv("NEREUS_COORDINATOR")
    monkeypatch.setenv(variable, "127.0.0.1:1")
    with pytest.raises(nt.InvalidArgument, match=(
            f"the variable {variable} has no meaning; did you mean {meant}\\?.*"
            f"unset {variable}")):
        nt.init()
    monkeypatch.setenv("NEREUS_COORDINATOR", "127.0.0.1:1")
    nt.init()


@pytest.mark.parametrize("variable", ["NEREUS_FAVOURITE", "NEREUS_WIRE", "NEREUS_HOST"])
def test_a_process_alone_names_the_variables_that_do_not_count(monkeypatch, caplog, variable):
    monkeypatch.delenv("NEREUS_COORDINATOR")
    monkeypatch.setenv(variable, "127.0.0.1:1")
    nt.init()
    assert "this process trains alone" in caplog.text and variable in caplog.text


def test_variables_of_nereus_programs_are_not_misspelt(monkeypatch, root):
    monkeypatch.delenv("NEREUS_COORDINATOR")
    with open(os.path.join(root, "common", "flags", "variables.h"), encoding="utf-8") as file:
        found = re.findall(r"[\w-]+", " ".join(re.findall(r'"([^"]*)"', file.read())))
    with open(os.path.join(root, "docs", "operating.md"), encoding="utf-8") as file:
        found += re.findall(r"^\| `([a-z0-9-]+)` \|", file.read(), re.M)
    assert {"hosts", "wire", "NEREUS_LIBRARY"} <= set(found)
    for name in found:
        name = name.strip("-").upper().replace("-", "_")
        monkeypatch.setenv(name if name.startswith("NEREUS_") else f"NEREUS_{name}", "1")
    monkeypatch.delenv("NEREUS_COORDINATOR")
    assert options.misspelt_variable() is None


def test_numbers_that_are_loaded_after_the_worker_has_joined_count():
    model = Net()
    optimizer = wrapped(model)
    loaded = optimizer.state_dict()
    loaded["param_groups"][0]["lr"] = 0.75
    optimizer.load_state_dict(loaded)
    step(model, optimizer)
    assert 0.75 in optimizer._engine._client.layers[0].parameters


@pytest.fixture
def other_numbers(job):
    """Makes the worker join a job whose numbers of the optimizer are twice this worker's."""
    original = job.__init__

    def joined(self, layers, **options):
        original(self, layers, **options)
        layers[0].parameters.mul_(2)

    job.__init__ = joined
    return job


def test_a_worker_that_joins_later_takes_the_jobs_numbers_with_a_warning(other_numbers, caplog):
    other_numbers.begins_at = 3
    optimizer = wrapped(Net(), factors=False)
    assert optimizer.param_groups[0]["lr"] == 0.2
    nt.begin_step()
    assert "the optimizer has lr=0.1 in parameter group 0 on this worker and 0.2 in the job, " \
        "which counts" in caplog.text
    assert not optimizer._engine._client.aborted


def adam_of_groups(model, betas=(0.9, 0.25), amsgrad=False):
    return torch.optim.Adam([{"params": list(model.first.parameters())},
                             {"params": list(model.second.parameters()), "betas": betas,
                              "weight_decay": 0.5}], lr=0.25, amsgrad=amsgrad)


def test_other_numbers_are_an_error_for_workers_that_begin_a_job_together(other_numbers, caplog):
    model = Net()
    optimizer = nt.DistributedOptimizer(adam_of_groups(model), model=model, factors=False)
    with pytest.raises(nt.ModelMismatch, match=(
            r"lr=0.25 in parameter group 0 on this worker and 0.5 in the job; .*"
            r"betas\[1\]=0.25 in parameter group 1 on this worker and 0.5 in the job; .*"
            r"weight_decay=0.5 in parameter group 1 on this worker and 1 in the job.* "
            r"give the optimizers of all workers the same")) as error:
        model(batch()[0])
    assert optimizer._engine._client.aborted == [str(error.value)]
    assert "which counts" not in caplog.text


@pytest.mark.parametrize("own, jobs, text", [
    (torch.optim.SGD, {"nesterov": True}, "nesterov=False .* and True in the job"),
    (torch.optim.Adam, {"amsgrad": True}, "amsgrad=False .* and True in the job"),
    (torch.optim.Adam, {"betas": (0.5, 0.999)}, r"betas\[0\]=0.9 .* and 0.5 in the job"),
    (torch.optim.Adam, {"foreach": True}, None)])
def test_what_is_compared_with_the_job(job, own, jobs, text):
    defaults = {"lr": 0.1, "momentum": 0.9} if own is torch.optim.SGD else {"lr": 0.1}
    first, found = Net(), {}
    original = job.__init__

    def joined(self, layers, **options):
        original(self, layers, **options)
        values = found.setdefault("values", layers[0].parameters.clone())
        layers[0].parameters.copy_(values)

    job.__init__ = joined
    nt.DistributedOptimizer(own(first.parameters(), **{**defaults, **jobs}), model=first,
                            factors=False)
    nt.process._Process.engine = None
    model = Net()
    optimizer = nt.DistributedOptimizer(own(model.parameters(), **defaults), model=model,
                                        factors=False)
    if text is None:
        model(batch()[0])
        assert not optimizer.param_groups[0]["foreach"]
        return
    with pytest.raises(nt.ModelMismatch, match=text):
        model(batch()[0])
    name, value = next(iter(jobs.items()))
    assert optimizer.param_groups[0][name] == value


def test_jobs_on_a_gpu_hear_of_its_memory_when_it_changes(monkeypatch):
    told, kept = [], [300]
    engine = nt.engine.Engine.__new__(nt.engine.Engine)
    engine._device, engine._told_memory = torch.device("cuda", 1), None
    engine._options = options.Options(share="/dev/shm/gpu1", share_release=True)
    engine._client = type("Client", (), {
        "set_device_memory": staticmethod(lambda *numbers: told.append(numbers))})
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: kept.append(kept.pop() - 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: kept[0])
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 500)
    engine._tell_memory()
    kept[0] = 300
    engine._tell_memory()
    assert told == [(200, 300)]
    engine._options.share_release = False
    kept[0] = 500
    engine._tell_memory()
    assert told[1:] == [(500, 0)]
    engine._options.share = ""
    kept[0] = 400
    engine._tell_memory()
    assert len(told) == 2
