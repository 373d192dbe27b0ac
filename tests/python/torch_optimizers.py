"""Optimizers that are not torch's, in the ways in which other packages write theirs."""

import torch


class Plain(torch.optim.Optimizer):
    """An optimizer whose update of one parameter is `update(parameter, gradient, state, group)`."""

    def __init__(self, params, lr=0.01, **defaults):
        super().__init__(params, {"lr": lr, **defaults})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, self.state[parameter], group)
        return loss


def _moment(state, name, like):
    if name not in state:
        state[name] = torch.zeros_like(like)
    return state[name]


class Lion(Plain):
    def update(self, parameter, gradient, state, group):
        moment = _moment(state, "exp_avg", parameter)
        parameter.sub_(torch.tanh(50 * (0.9 * moment + 0.1 * gradient)), alpha=group["lr"])
        moment.lerp_(gradient, 0.01)


class Lamb(Plain):
    """Counts its steps in a number of Python."""

    def update(self, parameter, gradient, state, group):
        state["step"] = state.get("step", 0) + 1
        first = _moment(state, "exp_avg", parameter).lerp_(gradient, 0.1)
        second = _moment(state, "exp_avg_sq", parameter).lerp_(gradient.square(), 0.001)
        change = first / (1 - 0.9 ** state["step"]) / (second.sqrt() + 0.1)
        ratio = float(parameter.norm().clamp(0.1, 10) / change.norm().clamp(min=0.1))
        parameter.sub_(change, alpha=group["lr"] * ratio)


class AdaBelief(Plain):
    def update(self, parameter, gradient, state, group):
        state.setdefault("step", torch.zeros(())).add_(1)
        first = _moment(state, "exp_avg", parameter).lerp_(gradient, 0.1)
        second = _moment(state, "exp_avg_var", parameter).lerp_((gradient - first).square(), 0.01)
        parameter.sub_(first / (second.sqrt() + 0.1), alpha=group["lr"])


class NovoGrad(Plain):
    """Keeps one number for each parameter, as a tensor."""

    def update(self, parameter, gradient, state, group):
        norm = gradient.square().sum()
        second = state.setdefault("exp_avg_sq", torch.zeros(())).lerp_(norm, 0.1)
        moment = _moment(state, "exp_avg", parameter)
        moment.mul_(0.9).add_(gradient / (second.sqrt() + 0.1))
        parameter.sub_(moment, alpha=group["lr"])


class Lars(Plain):
    """Has no state before its first step, and a text among its options."""

    def __init__(self, params, lr=0.01, mode="lars"):
        super().__init__(params, lr, mode=mode)

    def update(self, parameter, gradient, state, group):
        trust = float(parameter.norm().clamp(0.1, 10) / gradient.norm().clamp(min=0.1))
        moment = _moment(state, "momentum_buffer", parameter).mul_(0.9).add_(gradient, alpha=trust)
        parameter.sub_(moment, alpha=group["lr"])


class Constructed(Plain):
    """Makes its state in its constructor."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, lr)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] = torch.full_like(parameter, 0.25)

    def update(self, parameter, gradient, state, group):
        state["sum"].add_(gradient.square())
        parameter.sub_(gradient / state["sum"].sqrt(), alpha=group["lr"])


class Lookahead(torch.optim.SGD):
    """Keeps slow weights beside those of SGD."""

    def step(self, closure=None):
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    slow = state.setdefault("slow", parameter.detach().clone())
                    state["count"] = state.get("count", 0) + 1
                    if state["count"] % 2 == 0:
                        slow.lerp_(parameter, 0.5)
                        parameter.copy_(slow)
        return loss


class RowWise(Plain):
    """One number for each row, as DLRM's optimizer of tables."""

    def update(self, parameter, gradient, state, group):
        rows = gradient.reshape(gradient.shape[0], -1).square().mean(1)
        total = state.setdefault("rows", torch.zeros(gradient.shape[0])).add_(rows)
        scale = (total.sqrt() + 0.1).reshape(-1, *[1] * (gradient.dim() - 1))
        parameter.sub_(gradient / scale, alpha=group["lr"])


class Factored(Plain):
    """Second moments as a row and a column, as Adafactor."""

    def update(self, parameter, gradient, state, group):
        squares = gradient.square()
        if gradient.dim() < 2:
            second = _moment(state, "exp_avg_sq", parameter).lerp_(squares, 0.1)
        else:
            row = state.setdefault("row", torch.zeros(gradient.shape[0])).lerp_(
                squares.mean(1), 0.1)
            column = state.setdefault("column", torch.zeros(gradient.shape[1])).lerp_(
                squares.mean(0), 0.1)
            second = row[:, None] * column / row.mean().clamp(min=1e-8)
        parameter.sub_(gradient / (second.sqrt() + 0.1), alpha=group["lr"])


class Bytes(Plain):
    """Keeps its moment in 8 bits."""

    def update(self, parameter, gradient, state, group):
        codes = state.setdefault("codes", torch.zeros(parameter.shape, dtype=torch.int8))
        scale = state.get("scale", 0.0)
        moment = codes.float() * scale * 0.9 + gradient
        state["scale"] = float(moment.abs().max()) / 127 or 1.0
        codes.copy_((moment / state["scale"]).round())
        parameter.sub_(moment, alpha=group["lr"])


class Sam(torch.optim.SGD):
    """Sharpness-aware minimisation: a step calls its closure twice."""

    def step(self, closure):
        loss = closure()
        moved = []
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    moved.append((parameter, 0.05 * parameter.grad))
                    parameter.add_(moved[-1][1])
        closure()
        with torch.no_grad():
            for parameter, by in moved:
                parameter.sub_(by)
        super().step()
        return loss


# Optimizers by name: functions of parameters. Large epsilons, so that the rounding of a sum does
# not decide about the direction of an update.
KNOWN = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True,
                                                   weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-2),
    "Adam with amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-2, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01, eps=1e-1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01, eps=1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01, eps=1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, eps=1e-2),
    "Adagrad with a sum": lambda p: torch.optim.Adagrad(p, lr=0.05,
                                                        initial_accumulator_value=0.25),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1, eps=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, eps=1e-1, momentum=0.5, centered=True),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.001),
    "Lion": Lion, "LAMB": Lamb, "AdaBelief": AdaBelief, "NovoGrad": NovoGrad, "LARS": Lars,
    "state of the constructor": Constructed,
    "Lookahead": lambda p: Lookahead(p, lr=0.05, momentum=0.5),
    "SAM": lambda p: Sam(p, lr=0.05, momentum=0.5),
}
# Their state is not known: a worker that joins later is refused, and a checkpoint does not have it.
UNKNOWN = {"row-wise Adagrad": RowWise, "Adafactor": Factored, "8-bit momentum": Bytes}
if hasattr(torch.optim, "Adafactor"):
    UNKNOWN["torch's Adafactor"] = lambda p: torch.optim.Adafactor(p, lr=0.01)
REFUSED = {"LBFGS": torch.optim.LBFGS, "SparseAdam": torch.optim.SparseAdam}
# Take no matrices and vectors together: for parts of a model.
PARTS = {}
if hasattr(torch.optim, "Muon"):
    PARTS["Muon"] = lambda p: torch.optim.Muon(p, lr=0.01)
