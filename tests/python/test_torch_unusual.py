"""nereus.torch and training programs that do unusual things, in a job of one worker: gradients and
parameters are those of torch alone, or an error says what to do."""

import contextlib
import copy
import random
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # pylint: disable=wrong-import-position
from torch.nn import functional  # pylint: disable=wrong-import-position

import nereus.torch as nt  # pylint: disable=wrong-import-position
from nereus.torch.checksum import checksums, differing  # pylint: disable=wrong-import-position
from nereus.torch import factors, state  # pylint: disable=wrong-import-position
# pylint: disable=wrong-import-position,unused-import
from one_worker import batch, equal, gradients, job, step, wrapped
from torch_optimizers import Sam
from torch_scenarios import Net, loss_of

STEPS = 5  # Factors travel from the second one on.


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def compare(change, make=Net, make_optimizer=sgd, lost=(), begin=lambda model: None,
            zero=lambda optimizer, model, number: optimizer.zero_grad(set_to_none=number % 2 == 0)):
    """Trains a wrapped model and a plain one alike.

    change: function of model, loss, number of the step and optimizer, which does backward.
    lost: names of weights that have lost their factors afterwards.
    """
    model = make()
    begin(model)
    plain = copy.deepcopy(model)
    begin(plain)
    optimizer = nt.DistributedOptimizer(make_optimizer(model), model=model)
    reference = make_optimizer(plain)
    for number in range(STEPS):
        for net, each in ((plain, reference), (model, optimizer)):
            zero(each, net, number)
            x, y = batch()
            change(net, x, y, number, each)
            each.step()
        assert equal(model.parameters(), plain.parameters()), number
    reasons = {layer["name"]: layer["reason"] for layer in optimizer.plan()}
    assert {name for name, reason in reasons.items() if reason} == set(lost), reasons
    return optimizer


def backward(net, x, y, *_):
    loss_of(net(x), y).backward()


# ---- Something looks at the gradient of a weight that goes by factors.

@pytest.mark.parametrize("since", [0, 1, 3])
def test_a_hook_of_a_weight_counts_from_the_step_on_in_which_it_comes(since):
    mask = torch.ones(72, 1)
    mask[36:] = 0

    def change(net, x, y, number, _):
        if number == since:
            net.first.weight.register_hook(lambda gradient: gradient * mask)
        backward(net, x, y)

    compare(change, lost=["first.weight"])


def test_a_hook_that_is_removed_has_no_effect_afterwards():
    def change(net, x, y, number, _):
        handle = None
        if number == 2:
            handle = net.first.weight.register_hook(lambda gradient: gradient * 2)
        backward(net, x, y)
        if handle is not None:
            handle.remove()

    compare(change, lost=["first.weight"])


@pytest.mark.skipif(not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"),
                    reason="this torch has no hooks after the accumulation of gradients")
def test_a_hook_after_the_accumulation_finds_the_gradient():
    def clamp(weight):
        weight.grad.clamp_(-1e-3, 1e-3)

    def change(net, x, y, number, _):
        if number == 2:
            net.first.weight.register_post_accumulate_grad_hook(clamp)
        backward(net, x, y)

    compare(change, lost=["first.weight"])


def looking(net, x, y, look):
    """Calls a function of the net in backward, when the gradients of all parameters have come."""
    x = x.clone().requires_grad_()

    def call(_):
        look(net)

    x.register_hook(call)
    loss_of(net(x), y).backward()


@pytest.mark.parametrize("since", [0, 3])
@pytest.mark.parametrize("name", ["first.weight", "second.weight", "head.bias"])
def test_a_gradient_that_is_read_in_backward_is_the_workers_own(name, since, job):
    job.factor = 0.5
    model = Net()
    plain = copy.deepcopy(model)
    optimizer = wrapped(model)
    for number in range(STEPS):
        seen = []
        for net in (plain, model):
            net.zero_grad(set_to_none=True)
            looking(net, *batch(), lambda net: number < since or seen.append(
                net.get_parameter(name).grad.clone()))
        assert not seen or equal([seen[1]], [seen[0]])
        assert equal(gradients(model), [each * 0.5 for each in gradients(plain)])
        optimizer.step()
        plain.load_state_dict(model.state_dict())
    lost = {layer for layer, reason in reasons(optimizer).items() if reason}
    assert lost == ({name} if name.endswith("weight") else set())


def reasons(optimizer):
    return {layer["name"]: layer["reason"] for layer in optimizer.plan()}


def add_one(net):
    net.second.weight.grad.add_(1)


def replace(net):
    net.second.weight.grad = net.second.weight.grad * 2


@pytest.mark.parametrize("change, how", [(add_one, "changed"), (replace, "set")])
@pytest.mark.parametrize("factors", ["auto", False])
@pytest.mark.parametrize("since", [0, 2])
def test_a_gradient_that_is_changed_after_it_was_sent_is_an_error(change, how, factors, since):
    model = Net()
    optimizer = wrapped(model, factors=factors)
    for _ in range(since):
        step(model, optimizer)
        optimizer.step()
    if since and not factors:
        how = "read, for the first time,"
    with pytest.raises(nt.NereusError, match=(
            f"second.weight was {how} in a backward pass after it was sent")):
        looking(model, *batch(), change)


def test_gradients_may_be_changed_in_backward_without_sync():
    def change(net, x, y, number, each):
        scope = each.no_sync() if hasattr(each, "no_sync") else contextlib.nullcontext()
        with scope:
            looking(net, x, y, add_one)
        if hasattr(each, "synchronize"):
            each.synchronize()

    compare(change, lost=["second.weight"])


def test_a_gradient_that_is_read_before_it_is_sent_is_the_workers_own():
    """Small parameters share a layer, which is sent when its last gradient has come."""
    seen = {}

    def change(net, x, y, number, _):
        hidden = []
        handle = net.first.register_forward_hook(lambda *values: hidden.append(values[-1]))
        loss = loss_of(net(x), y)
        handle.remove()

        def look(_):
            seen[id(net), number] = net.head.bias.grad.clone()

        hidden[0].register_hook(look)
        loss.backward()

    compare(change)
    for number in range(STEPS):
        one, other = (value for (_, at), value in seen.items() if at == number)
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7), number


def test_a_gradient_of_the_weight_alone_is_the_product():
    def change(net, x, y, *_):
        loss = loss_of(net(x), y)
        alone, = torch.autograd.grad(loss, net.first.weight, retain_graph=True)
        loss.backward()
        if not isinstance(net.first, torch.nn.Linear) or type(net.first) is torch.nn.Linear:
            assert torch.allclose(alone, net.first.weight.grad)
        assert alone.abs().sum() > 0

    compare(change)


def test_gradients_of_some_parameters_alone_are_those_of_torch():
    def change(net, x, y, number, _):
        loss = loss_of(net(x), y)
        if number == 2:
            loss.backward(inputs=[net.first.weight, net.head.bias])
        else:
            loss.backward()

    compare(change)


def test_a_penalty_on_gradients_goes_without_factors():
    def change(net, x, y, number, _):
        x = x.clone().requires_grad_()
        loss = loss_of(net(x), y)
        if number >= 2:
            slope, = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)
            loss = loss + 0.1 * slope.square().mean()
        loss.backward()

    compare(change, lost=["first.weight", "second.weight"])


def test_gradients_may_be_clipped_per_pass():
    """Reads the gradients between two backward passes of a step."""
    def change(net, x, y, number, each):
        half = len(x) // 2
        first = each.no_sync() if hasattr(each, "no_sync") else None
        if first is not None:
            with first:
                loss_of(net(x[:half]), y[:half]).backward()
        else:
            loss_of(net(x[:half]), y[:half]).backward()
        if number >= 2:
            for parameter in net.parameters():
                parameter.grad.clamp_(-1e-3, 1e-3)
        loss_of(net(x[half:]), y[half:]).backward()

    compare(change, lost=["first.weight", "second.weight"])


def test_gradients_of_one_pass_may_be_dropped():
    def change(net, x, y, number, each):
        scope = each.no_sync() if hasattr(each, "no_sync") else None
        if number >= 2:
            if scope is not None:
                with scope:
                    loss_of(net(x), y).backward()
            else:
                loss_of(net(x), y).backward()
            each.zero_grad(set_to_none=number % 2 == 0)
        backward(net, x, y)

    compare(change)


@pytest.mark.parametrize("zero", [
    lambda _, model, __: model.zero_grad(set_to_none=True),
    lambda _, model, __: model.zero_grad(set_to_none=False),
    lambda _, model, __: [each.grad.zero_() for each in model.parameters()
                          if each.grad is not None],
    lambda *_: None])
def test_gradients_are_set_to_zero_in_any_way(zero):
    compare(backward, zero=zero)


@pytest.mark.parametrize("how", ["model", "none", "zero"])
def test_gradients_are_set_to_zero_between_forward_and_backward(how):
    def change(net, x, y, *_):
        loss = loss_of(net(x), y)
        for parameter in net.parameters():
            if how == "none":
                parameter.grad = None
            elif how == "zero" and parameter.grad is not None:
                parameter.grad.zero_()
        if how == "model":
            net.zero_grad(set_to_none=False)
        loss.backward()

    compare(change, zero=lambda *_: None)


def test_another_tensor_in_the_weights_place_has_no_factors():
    def change(net, x, y, number, _):
        if number == 2:
            torch.nn.utils.parametrize.register_parametrization(net.first, "weight", Halved())
        backward(net, x, y)

    compare(change)


class Halved(nn.Module):
    def forward(self, weight):
        return weight * 0.5


# ---- Gradients that no backward has averaged.

@pytest.mark.parametrize("form", ["leaf", "none", "no backward"])
def test_a_step_whose_backward_reaches_no_parameter_counts_as_zero(form):
    def change(net, x, y, number, _):
        if number in (0, 3):
            loss = torch.zeros((), requires_grad=True) if form == "leaf" else net(x).sum() * 0
            if form != "no backward":
                loss.backward()
        else:
            backward(net, x, y)

    optimizer = compare(change, zero=lambda each, *_: each.zero_grad(set_to_none=True))
    assert optimizer._engine.step_info.step == STEPS - 1


def by_hand(net, x, y):
    for parameter, gradient in zip(net.parameters(), torch.autograd.grad(
            loss_of(net(x), y), list(net.parameters()))):
        parameter.grad = gradient


@pytest.mark.parametrize("first", [0, 2])
def test_gradients_that_are_set_are_an_error(first):
    model = Net()
    optimizer = wrapped(model)
    for number in range(first + 1):
        optimizer.zero_grad()
        (by_hand if number == first else backward)(model, *batch())
        if number < first:
            optimizer.step()
    before = [each.detach().clone() for each in model.parameters()]
    with pytest.raises(nt.NereusError, match=(
            r"the gradient of parameter first.weight was set or changed by the program.*"
            r"call optimizer.synchronize\(\)")):
        optimizer.step()
    assert equal(model.parameters(), before)


@pytest.mark.parametrize("first", [0, 2])
def test_gradients_that_are_set_are_averaged_on_request(first, job):
    job.factor = 0.5

    def change(net, x, y, number, each):
        if number < first:
            backward(net, x, y)
        else:
            by_hand(net, x, y)
        if hasattr(each, "_engine"):
            each.synchronize()
        else:
            for parameter in net.parameters():
                parameter.grad.mul_(0.5)

    compare(change, lost=["first.weight", "second.weight"] if first == 0 else [])


def test_a_gradient_that_is_set_beside_backward_is_an_error():
    class Two(Net):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

    model = Two()
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.step()
    step(model, optimizer)
    model.scale.grad = torch.ones(3)
    with pytest.raises(nt.NereusError, match="parameter scale has a gradient that the program"):
        optimizer.step()


def test_gradients_may_be_changed_between_backward_and_step():
    def change(net, x, y, number, _):
        backward(net, x, y)
        if number % 2:
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        else:
            for parameter in net.parameters():
                parameter.grad = parameter.grad * 0.5

    optimizer = compare(change)
    assert not optimizer._engine._client.aborted


def test_gradients_that_come_late_beside_changed_ones_end_the_job():
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # As if on another worker.
    optimizer.step()
    optimizer._engine._alike.is_late = True
    with pytest.raises(nt.NereusError, match=(
            r"in step 0 backward reached no parameter on a worker.*changed gradients.*"
            r"call optimizer.synchronize\(\) after backward")) as error:
        step(model, optimizer)
    assert optimizer._engine._client.aborted == [str(error.value)]


def test_workers_that_add_to_other_gradients_end_the_job(job):
    """A worker whose gradients were set to zero, and one whose were not, would differ."""
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.step()
    step(model, optimizer)  # By factors.
    optimizer.step()
    push = job.push

    def pushed(self, index, step_of, gradient, **options):
        if index == 0:
            # The mean with a worker that has set its gradients to zero.
            gradient[len(list(model.parameters())) + 3] *= 0.5
        push(self, index, step_of, gradient, **options)

    job.push = pushed
    with pytest.raises(nt.NereusError, match="set gradients to zero on all workers alike"):
        backward(model, *batch())


def test_fewer_passes_than_agreed_count_as_they_are():
    model = Net()
    optimizer = wrapped(model, backward_passes_per_step=2)
    plain = copy.deepcopy(model)
    for number in range(4):
        optimizer.zero_grad()
        plain.zero_grad()
        for _ in range(1 if number == 2 else 2):
            for net in (model, plain):
                backward(net, *batch())
        optimizer.step()
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
        assert equal(model.parameters(), plain.parameters()), number


def test_a_step_before_the_first_backward_changes_nothing():
    model = Net()
    before = copy.deepcopy(model)
    optimizer = wrapped(model)
    optimizer.step()
    assert equal(model.parameters(), before.parameters())


def test_a_parameter_that_another_optimizer_trains_is_an_error():
    model = Net()
    optimizer = nt.DistributedOptimizer(
        torch.optim.SGD([*model.first.parameters(), *model.second.parameters()], lr=0.1),
        model=model)
    other = torch.optim.SGD(model.head.parameters(), lr=0.1)
    step(model, optimizer)
    optimizer.step()
    other.step()
    with pytest.raises(nt.NereusError, match=(
            "parameter head.weight of the model was changed.*a list of all optimizers")):
        step(model, optimizer)


def test_a_part_of_the_model_that_nothing_trains_is_no_error():
    model = Net()
    optimizer = nt.DistributedOptimizer(torch.optim.SGD(model.head.parameters(), lr=0.1),
                                        model=model)
    for _ in range(3):
        step(model, optimizer)
        optimizer.step()
    assert optimizer._engine.step_info.step == 2


def test_parameters_that_change_without_a_step_of_the_job_are_looked_at(job):
    model = Net()
    optimizer = wrapped(model)
    with torch.no_grad():
        model.first.weight.mul_(2)
    optimizer._engine._client.gather = lambda own: [own, own[:-4] + b"else"]
    with pytest.raises(nt.NereusError, match="parameters were changed, and no gradient was"):
        nt.shutdown()


# ---- Several optimizers, and closures.

def test_a_list_of_optimizers_trains_one_model():
    model = Net()
    plain = copy.deepcopy(model)

    def make(net):
        return [torch.optim.Adam(net.first.parameters(), lr=0.01),
                torch.optim.SGD([*net.second.parameters(), *net.head.parameters()], lr=0.1,
                                momentum=0.9)]

    optimizers = nt.DistributedOptimizer(make(model), model=model)
    assert [type(each).__name__ for each in optimizers] == ["Adam", "SGD"]
    for net, each in ((model, optimizers), (plain, make(plain))):
        for _ in range(STEPS):
            for optimizer in each:
                optimizer.zero_grad()
            backward(net, *batch())
            for optimizer in each:
                optimizer.step()
    assert equal(model.parameters(), plain.parameters())
    assert optimizers[0]._engine.step_info.step == STEPS - 1


def closure_of(optimizer, model, count=4):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model(batch(count)[0]), batch(count)[1])
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("may_skip", [False, True])
def test_a_closure_may_be_called_twice(job, may_skip):
    job.may_skip = may_skip
    model = Net()
    plain = copy.deepcopy(model)
    optimizer = nt.DistributedOptimizer(Sam(model.parameters(), lr=0.1), model=model)
    reference = Sam(plain.parameters(), lr=0.1)
    for _ in range(3):
        found = optimizer.step(closure_of(optimizer, model))
        expected = reference.step(closure_of(reference, plain))
        assert torch.allclose(found, expected)
    assert equal(model.parameters(), plain.parameters())


@pytest.mark.parametrize("skipped", [2, 3])
def test_a_step_whose_second_closure_is_skipped_changes_nothing(job, skipped):
    job.may_skip, job.skips = True, (skipped,)
    model = Net()
    optimizer = nt.DistributedOptimizer(Sam(model.parameters(), lr=0.1, momentum=0.9),
                                        model=model)
    optimizer.step(closure_of(optimizer, model))
    before = copy.deepcopy(model)
    momentum = optimizer.state[model.first.weight]["momentum_buffer"].clone()
    optimizer.step(closure_of(optimizer, model))
    assert equal(model.parameters(), before.parameters())
    assert torch.equal(optimizer.state[model.first.weight]["momentum_buffer"], momentum)
    optimizer.step(closure_of(optimizer, model))
    assert not equal(model.parameters(), before.parameters())


# ---- Memory is the program's.

def test_small_parameters_stay_where_they_are():
    model = Net()
    addresses = [each.data_ptr() for each in model.parameters()]
    optimizer = wrapped(model)
    for _ in range(2):
        step(model, optimizer)
        optimizer.step()
    assert [each.data_ptr() for each in model.parameters()] == addresses


class Shared(Net):
    """Two weights, and two biases, share memory but are parameters of their own."""

    def __init__(self):
        super().__init__()
        self.third = nn.Linear(72, 72)
        self.third.weight.data = self.second.weight.data
        self.third.bias.data = self.second.bias.data

    def forward(self, x):
        x = functional.relu(self.second(functional.relu(self.first(x.flatten(1)))))
        return self.head(torch.tanh(self.third(x)))


def test_parameters_that_share_memory_stay_so():
    torch.manual_seed(1)
    plain = Shared()
    torch.manual_seed(1)
    model = Shared()
    optimizer, reference = wrapped(model), torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(STEPS):
        for net, each in ((model, optimizer), (plain, reference)):
            step(net, each)
            each.step()
    assert model.second.weight.data_ptr() == model.third.weight.data_ptr()
    assert equal(model.parameters(), plain.parameters())


def test_parameters_may_be_views_of_one_tensor():
    def begin(net):
        together = torch.cat([each.detach().reshape(-1) for each in net.parameters()])
        begun = 0
        for parameter in net.parameters():
            end = begun + parameter.numel()
            parameter.data = together[begun:end].view(parameter.shape)
            begun = end

    compare(backward, begin=begin)


def exchange(net, number):
    if number == 1:
        net.first.weight.data = net.first.weight.data.clone()
    if number == 2:
        net.head.bias.data = net.head.bias.data * 0.5
    if number == 3:
        other = copy.deepcopy(net.state_dict())
        net.load_state_dict({name: value * 0.9 for name, value in other.items()})


def test_storage_may_be_exchanged(job):
    given = []
    original = job.push

    def push(self, index, *arguments, **options):
        given.append((self.layers[index].name, self.layers[index].parameters.clone()))
        original(self, index, *arguments, **options)

    job.push = push
    seen = []

    def change(net, x, y, number, each):
        exchange(net, number)
        if hasattr(each, "_engine"):
            seen.append(net.first.bias.detach().clone())
        backward(net, x, y)

    compare(change)
    # A worker that joins gets the values at each push.
    biases = [values for name, values in given if name.startswith("first.bias")]
    assert all(torch.equal(values[:72], bias) for values, bias in zip(biases, seen))


@pytest.mark.skipif("assign" not in nn.Module.load_state_dict.__code__.co_varnames,
                    reason="load_state_dict has no assign")
def test_parameters_that_are_assigned_are_not_trained_as_in_torch():
    def change(net, x, y, number, _):
        if number == 2:
            net.load_state_dict({name: value * 0.9 for name, value in
                                 copy.deepcopy(net.state_dict()).items()}, assign=True)
        backward(net, x, y)

    compare(change)


@pytest.mark.parametrize("move, text", [
    (lambda model: model.to(torch.float16), "had shape .*torch.float32, on cpu when"),
    (lambda model: setattr(model.first.weight, "data", torch.zeros(144, 72)),
     r"first.weight has shape \(144, 72\).*it had shape \(72, 144\)")])
def test_a_parameter_of_another_kind_is_an_error(move, text):
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    optimizer.step()
    move(model)
    with pytest.raises(nt.InvalidArgument, match=text):
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()


def test_averages_may_be_swapped_in_for_an_evaluation():
    def change(net, x, y, number, _):
        backward(net, x, y)
        kept = [each.data for each in net.parameters()]
        for parameter in net.parameters():
            parameter.data = parameter.data * 0.5
        with torch.no_grad():
            net(x)
        for parameter, values in zip(net.parameters(), kept):
            parameter.data = values

    compare(change)


# ---- Buffers.

def statistics_model():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(400, 10))


RESETS = {
    "assigned": lambda net: setattr(net[1], "running_mean", torch.full((4,), 0.25)),
    "reset": lambda net: net[1].reset_running_stats(),
    "averaged": lambda net: torch.optim.swa_utils.update_bn([batch()[0]], net),
}


@pytest.mark.parametrize("way", ["two graphs", "one graph twice"])
def test_a_backward_may_come_after_statistics_were_averaged(way):
    """As that of a generator, whose loss comes from a graph with the critic's BatchNorm."""
    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(144)
            self.head = nn.Linear(144, 10)

        def forward(self, x):
            return self.head(self.norm(x.flatten(1)))

    def change(net, x, y, number, optimizer):
        first = functional.cross_entropy(net(x), y)
        second = net(2 * x).square().mean() if way == "two graphs" else 0.1 * first
        first.backward(retain_graph=way != "two graphs")
        second.backward()

    compare(change, make=Critic)



@pytest.mark.parametrize("how", list(RESETS))
def test_running_statistics_may_be_other_tensors(how):
    torch.manual_seed(1)
    model = statistics_model()
    plain = copy.deepcopy(model)
    optimizer, reference = wrapped(model), torch.optim.SGD(plain.parameters(), lr=0.1)
    for number in range(STEPS):
        for net, each in ((model, optimizer), (plain, reference)):
            if number == 2:
                RESETS[how](net)
            step(net, each, count=3 + number)
            each.step()
        assert equal(model.buffers(), plain.buffers()), number


def test_statistics_of_several_types_are_averaged(job):
    job.factor = 0.5  # Means of changes are half of this worker's.
    class Halves(nn.Sequential):
        def forward(self, x):
            self[2].running_mean.add_(1)
            return self[1](self[0](x))

    model = Halves(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4).half())
    model[2].requires_grad_(False)
    optimizer = wrapped(model)
    optimizer.zero_grad()
    model(batch()[0]).square().mean().backward()
    assert torch.equal(model[2].running_mean, torch.full((4,), 0.5).half())
    assert float(model[1].running_mean.abs().sum()) > 0


def test_buffers_that_differ_from_the_first_worker_are_an_error(job):
    class Queue(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("queue", torch.randn(5, 3))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    job.gather = lambda self, own: [own[:4] + b"else", own]
    model = Queue()
    wrapped(model)
    with pytest.raises(nt.ModelMismatch, match="the buffers queue of the model.*manual_seed"):
        model(batch()[0])
    nt.process._Process.engine = None
    job.begins_at = 5  # The job's workers have gone on with theirs.
    wrapped(model)
    model(batch()[0])


def test_tensors_that_differ_are_named_however_many_there_are():
    for count in (3, 300, 1000):
        named = {f"{number:04}": torch.full((2,), float(number)) for number in range(count)}
        own = checksums(named)
        assert len(own) <= 1200 and differing(named, own, own) == []
        for place in (0, count - 1):
            other = {**named, f"{place:04}": torch.zeros(2) - 1}
            found, = differing(named, own, checksums(other))
            assert found == f"{place:04}" or found == "0299 or a later one"
    assert differing(named, own, own[:-4]) != []


# ---- The forward, and types.

def test_a_forward_may_use_any_random_numbers():
    class Dropping(Net):
        def forward(self, x):
            x = super().forward(x)
            return x * 0.5 if random.random() < 0.5 else functional.dropout(x)

    random.seed(1)
    torch.manual_seed(1)
    states = []

    def change(net, x, y, number, _):
        if id(net) not in [key for key, *_ in states]:
            states.append((id(net), random.getstate(), torch.random.get_rng_state()))
        random.seed(number)
        torch.manual_seed(number)
        backward(net, x, y)

    compare(change, make=Dropping)


def test_any_name_of_a_module_is_taken():
    names = ["größe", "重み", "with space", "tab\there", 'a "quote" and \\ backslash', "n" * 300,
             "n" * 299 + "m", "\ud800"]
    model = nn.ModuleDict({name: nn.Linear(72, 72) for name in names})
    optimizer = wrapped(model)
    sum(model[name](torch.ones(2, 72)).sum() for name in names).backward()
    found = [layer.name for layer in optimizer._engine._client.layers]
    assert len(set(found)) == len(found)
    assert all(name.isascii() and name.isprintable() and len(name) <= 256 for name in found)


def test_a_small_sparse_table_beside_a_linear():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(20, 8, sparse=True)
            self.head = nn.Linear(8, 10)

        def forward(self, x):
            return self.head(self.table((x.flatten(1)[:, :5] * 5).long().abs() % 20).mean(1))

    compare(backward, make=Table,
            make_optimizer=lambda net: torch.optim.SGD(net.parameters(), lr=0.1))


def test_the_mean_of_sparse_gradients_is_sparse():
    """An optimizer may compute something else from a sparse gradient than from a dense one."""
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.EmbeddingBag(20, 10, sparse=True)

        def forward(self, x):
            return self.table((x.flatten(1)[:, :5] * 5).long().abs() % 20)

    layouts = []

    class RowWise(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            gradient = self.param_groups[0]["params"][0].grad
            layouts.append(gradient.layout)
            if gradient.is_sparse:
                rows = gradient.coalesce().indices()[0]
                state = self.state[self.param_groups[0]["params"][0]]
                state.setdefault("rows", torch.zeros(20))[rows] += 1
            super().step(closure)

    optimizer = compare(backward, make=Bag,
                        make_optimizer=lambda net: RowWise(net.parameters(), lr=0.1))
    assert set(layouts) == {torch.sparse_coo, torch.strided}, layouts
    assert layouts.count(torch.strided) == 1  # Of the trial step.
    assert optimizer._engine._alike._unknown == "RowWise"


def test_a_large_sparse_table_is_told_once_with_its_bytes():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5000, 8, sparse=True)

        def forward(self, x):
            return self.table((x.flatten(1)[:, :10] * 50).long().abs() % 5000).sum(2)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compare(backward, make=Table,
                make_optimizer=lambda net: torch.optim.SGD(net.parameters(), lr=0.1))
    told = [str(each.message) for each in caught if "are sparse" in str(each.message)]
    assert len(told) == 1 and "table.weight" in told[0] and "0.16 MB" in told[0]


# ---- Streams of a GPU.

class Stream:
    """Stands for a stream of torch.cuda."""

    device = "cuda:0"

    def __init__(self, name, log):
        self.name, self.log = name, log

    def record_event(self):
        self.log.append(f"record on {self.name}")
        return self.name

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event}")


@pytest.mark.parametrize("is_other", [True, False])
def test_factors_are_pushed_after_the_stream_that_made_them(monkeypatch, job, is_other):
    """Backward runs on the stream of the forward, and hooks on that of the wrap."""
    log = []
    forward = Stream("forward", log)
    wrap = Stream("wrap", log) if is_other else forward
    model = Net()
    optimizer = wrapped(model)
    step(model, optimizer)
    made = factors._Made
    monkeypatch.setattr(made, "now", classmethod(
        lambda cls, _: cls(forward, forward.record_event())))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: wrap)
    monkeypatch.setattr(torch.Tensor, "record_stream",
                        lambda self, stream: log.append(f"kept for {stream.name}"))
    push_factors = job.push_factors

    def push(self, *arguments, **options):
        log.append("push")
        push_factors(self, *arguments, **options)

    job.push_factors = push
    step(model, optimizer)
    layer = ["record on forward"] + ["wrap waits for forward", "kept for wrap",
                                     "kept for wrap"] * is_other + ["push"]
    assert log == layer * 2


# ---- State of optimizers.

class Own(torch.optim.Optimizer):
    """Makes its state in the constructor, as DLRM's optimizer does."""

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["seen"] = torch.full_like(parameter, 0.5)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                seen = self.state[parameter]["seen"].add_(parameter.grad.abs())
                parameter.sub_(group["lr"] * parameter.grad / (1 + seen))


@pytest.mark.parametrize("make", [
    lambda net: Own(net.parameters()),
    lambda net: torch.optim.Adagrad(net.parameters(), lr=0.1),
    lambda net: torch.optim.Adagrad(net.parameters(), lr=0.1, initial_accumulator_value=0.5)])
def test_state_that_the_constructor_makes_is_kept(make):
    compare(backward, make_optimizer=make)


class Bytes(torch.optim.SGD):
    """Keeps 8-bit state of the parameter's shape."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["codes"] = torch.zeros(parameter.shape, dtype=torch.uint8)
        return super().step(closure)


class Switching(torch.optim.SGD):
    """Keeps 8-bit state of large parameters only."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                dtype = torch.uint8 if parameter.numel() >= 4096 else torch.float32
                self.state[parameter]["codes"] = torch.zeros(parameter.shape, dtype=dtype)
        return super().step(closure)


def test_state_that_depends_on_the_size_is_not_known():
    for size, is_known in ((10, True), (80, False)):
        optimizer = Switching([torch.zeros(size, size, requires_grad=True)], lr=0.1)
        assert (state.kinds_of_state([optimizer]) is not None) == is_known


def test_state_that_is_not_float_is_not_known(caplog):
    assert state.kinds_of_state([Bytes([torch.zeros(2, 3, requires_grad=True)], lr=0.1)]) is None
    compare(backward, make_optimizer=lambda net: Bytes(net.parameters(), lr=0.1))
    assert "the state of Bytes is not known" in caplog.text
