"""DistributedOptimizer: a torch optimizer whose gradients are the means of all workers."""

import contextlib

import torch

from ..errors import FAILED_PRECONDITION, InvalidArgument, NereusError
from . import process
from .engine import Engine
from .factors import new_object


class _Skipped(Exception):
    """The job has skipped the step whose closure has just ended."""


class _Undo:
    """Parameters and state of an optimizer as they are when the job may skip a later part of its
    step."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._parameters = [(each, each.detach().clone()) for group in optimizer.param_groups
                            for each in group["params"]]
        self._state = {key: {name: value.clone() if isinstance(value, torch.Tensor) else value
                             for name, value in state.items()}
                       for key, state in optimizer.state.items()}

    @torch.no_grad()
    def __call__(self):
        for parameter, values in self._parameters:
            parameter.copy_(values)
        for key in list(self._optimizer.state):
            if key not in self._state:
                del self._optimizer.state[key]
        for key, state in self._state.items():
            self._optimizer.state[key] = state


def _with_closure(engine, optimizer, step, closure, options):
    """Calls the step of an optimizer with a closure, each call of which is a step of the job. If
    the job skips one of them, the optimizer is as before."""
    undo = loss = None

    def around():
        nonlocal undo, loss
        rounds = engine.rounds
        with torch.enable_grad():
            loss = closure()
        engine.end_step(rounds, is_asked=False)
        engine.check_update()
        if engine.skipped:
            raise _Skipped
        if engine.may_skip and undo is None:
            undo = _Undo(optimizer)
        return loss

    try:
        return step(around, **options)
    except _Skipped:
        if undo is not None:
            undo()
        return loss


def _update(engine, optimizer, step, arguments, options):
    """Calls the step of an optimizer, unless the job has skipped the step."""
    closure = options.pop("closure", None)
    if closure is None and arguments:
        closure, arguments = arguments[0], arguments[1:]
    engine.alone_steps += 1
    if closure is not None:
        if engine.defers:
            raise InvalidArgument('step takes no closure with overlap="dear": the update comes '
                                  "in the next forward")
        if not engine.has_job:
            return step(closure, *arguments, **options)
        result = _with_closure(engine, optimizer, step, closure, options)
    else:
        engine.end_step(optimizer._rounds, is_asked=False)
        engine.check_update()
        result = None
        if engine.defers:
            engine.defer_step(optimizer, lambda: step(*arguments, **options))
        elif not engine.skipped:
            result = step(*arguments, **options)
    optimizer._rounds = engine.rounds
    engine.note_update()
    return result


class _Distributed:
    """Methods that DistributedOptimizer adds to an optimizer. The object stays the same, so
    schedulers and gradient scalers that have it work as before."""

    def step(self, *arguments, **options):
        """Updates the parameters from the mean gradients, as the optimizer itself does. Does
        nothing if the job has skipped the step. If no backward has averaged gradients since the
        last call, those of this worker count as they are, or as zero."""
        return _update(self._engine, self, super().step, arguments, options)

    step.hooked = True  # torch calls the hooks of a step in the optimizer's own one.

    def zero_grad(self, *arguments, **options):
        """Sets all gradients to zero, or to None, as the optimizer itself does."""
        self._engine.begin_zero()
        if not self._engine.defers:
            super().zero_grad(*arguments, **options)
        self._engine.drop_gradients()

    def state_dict(self):
        """Returns the optimizer's state after the last step."""
        self._engine.finish()
        return super().state_dict()

    def load_state_dict(self, state_dict):
        """Loads the optimizer's state."""
        self._engine.finish()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group):
        """Adds a group of parameters, in a process that trains alone."""
        if self._engine.has_job:
            raise NereusError(
                "add_param_group came after the optimizer was wrapped, so that the job does not "
                "know its parameters: give the optimizer all its groups before you wrap it, with "
                "lr=0 for those that are to train later", FAILED_PRECONDITION)
        super().add_param_group(param_group)

    def __reduce_ex__(self, protocol):
        # Copies, and what is loaded from a file, are plain optimizers.
        return new_object, (self.plain_class,), self.__getstate__()

    @contextlib.contextmanager
    def no_sync(self):
        """Within the context, backward adds up gradients and sends nothing."""
        before, self._engine.accumulates = self._engine.accumulates, True
        try:
            yield
        finally:
            self._engine.accumulates = before

    def synchronize(self):
        """Averages the gradients as they are, unless backward has averaged them since the last
        step: those that the program has set by other means, or those of a worker whose backward
        reached no parameter. With overlap="dear", waits for the mean gradients, and updates the
        parameters if `step` was called. All workers call it alike."""
        self._engine.synchronize(self._rounds)

    def skip_synchronize(self):
        """Does nothing. For programs that were written for Horovod."""
        return contextlib.nullcontext()

    def set_backward_passes_per_step(self, passes):
        """Sets the number of backward passes of a step, in a process that trains alone."""
        if self._engine.has_job and passes != self._engine.passes:
            raise NereusError("backward_passes_per_step cannot change after the worker has "
                              "joined its job: give it to DistributedOptimizer",
                              FAILED_PRECONDITION)
        self._engine.passes = passes

    def plan(self):
        """Returns how each layer travels: a list of dicts with name, scheme, wire, rows (of
        its factors; 0: none) and, for a Linear without factors, the reason."""
        return self._engine.plan()

    def report(self):
        """Returns costs, traffic and measurements as a dict (docs/c_api.md, "Reports");
        None if this process trains alone."""
        return self._engine.report()


def DistributedOptimizer(optimizer, named_parameters=None, compression=None,
                         backward_passes_per_step=1, op=None, sparse_as_dense=False, *,
                         model=None, factors="auto", rows=None, overlap=None):
    """Makes `optimizer` one of all workers, and returns it: after each backward, the
    gradients of its parameters are the means over all workers. Joins the job, which gives all
    workers the parameters of the first one.

    optimizer: a torch optimizer, or a list of all optimizers of the model.
    named_parameters: names for messages and plans; by default those of `model`.
    compression: None; the job's --wire says how gradients travel.
    backward_passes_per_step: number of backward passes whose gradients a step adds up.
    op: None; gradients are averaged.
    sparse_as_dense: no matter: gradients of sparse embeddings travel as dense ones. The
        optimizer gets their means as sparse ones.
    model: the module whose Linears may go by factors. The running statistics of its
        BatchNorms are averaged in each step.
    factors: "auto", a list of names of modules, or False.
    rows: dict from names of weights to the rows of their inputs on one worker in one
        backward pass, such as {"fc1.weight": 32}. By default, those of the first step.
    overlap: None: backward returns with the mean gradients. "dear": it does not wait; each
        parameter is updated when it is used, which is in the next forward (DeAR). Needs
        `model`, and `synchronize` before gradients are clipped.

    Errors: InvalidArgument; those of nereus.Client.
    """
    options = process.options()
    process.check_free()
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    _check(optimizers, compression, backward_passes_per_step, op, overlap, model)
    named = _named(optimizers, named_parameters, model)
    engine = Engine(optimizers, named, model, options if options.coordinator else None,
                    factors, rows, backward_passes_per_step, overlap == "dear")
    process.register(engine)
    for each in optimizers:
        _wrap(each, engine)
    return optimizer


def _check(optimizers, compression, passes, op, overlap, model):
    for each in optimizers:
        if not isinstance(each, torch.optim.Optimizer):
            raise InvalidArgument(f"optimizer is {type(each).__name__}, must be a "
                                  "torch.optim.Optimizer, or a list of them")
        if isinstance(each, (torch.optim.LBFGS, torch.optim.SparseAdam)):
            raise InvalidArgument(
                f"{type(each).__name__} is not supported: "
                + ("it decides by the loss of one worker; use another one"
                   if isinstance(each, torch.optim.LBFGS) else
                   "it needs to know the rows whose gradient is zero; use Adam, and sparse=False"))
    if compression is not None and getattr(compression, "__name__", "") != "NoneCompressor":
        raise InvalidArgument("compression is not supported here: run the job with "
                              "--wire=bf16 or --wire=fp16")
    if op is not None:
        raise InvalidArgument("op must be None: gradients are averaged")
    if not isinstance(passes, int) or passes < 1:
        raise InvalidArgument(f"backward_passes_per_step is {passes!r}, must be a positive "
                              "number")
    if overlap not in (None, "dear"):
        raise InvalidArgument(f'overlap is {overlap!r}, must be None or "dear"')
    if overlap is not None and model is None:
        raise InvalidArgument('overlap="dear" needs model=: its modules wait for their '
                              "parameters")


def _wrap(optimizer, engine):
    plain = type(optimizer)
    optimizer.__class__ = type(plain.__name__, (_Distributed, plain), {"plain_class": plain})
    optimizer._engine = engine
    optimizer._rounds = 0  # Engine.rounds after the last step.
    if "step" in vars(optimizer):
        optimizer.step = _around(engine, optimizer, optimizer.step)


def _around(engine, optimizer, step):
    """Returns the step of an optimizer to which a scheduler was given before it was
    wrapped: the scheduler has put its own function there."""
    def around(*arguments, **options):
        return _update(engine, optimizer, step, arguments, options)

    vars(around).update(vars(step))
    return around


def _named(optimizers, named_parameters, model):
    """Returns names and parameters of all trained parameters, in the order of the model."""
    if named_parameters is None and model is not None:
        named_parameters = model.named_parameters()
    trained = list({id(parameter): parameter for optimizer in optimizers
                    for group in optimizer.param_groups
                    for parameter in group["params"]}.values())
    if named_parameters is None:
        named_parameters = ((f"parameter.{i}", each) for i, each in enumerate(trained))
    names = {}
    for name, parameter in named_parameters:
        names.setdefault(id(parameter), name)
    if len(set(names.values())) != len(names):
        raise InvalidArgument("named_parameters has two parameters of one name")
    found = []
    order = {key: index for index, key in enumerate(names)}
    for parameter in sorted(trained, key=lambda each: order.get(id(each), -1)):
        if id(parameter) not in names:
            raise InvalidArgument(f"a parameter of shape {tuple(parameter.shape)} in the "
                                  "optimizer is missing in named_parameters, or in model")
        if parameter.requires_grad:
            found.append((names[id(parameter)], parameter))
    if not found:
        raise InvalidArgument("the optimizer has no parameter that requires a gradient")
    devices = {parameter.device for _, parameter in found}
    if len(devices) > 1:
        raise InvalidArgument(f"parameters are on {sorted(map(str, devices))}, must be on one "
                              "device")
    if any(isinstance(each, torch.nn.parameter.UninitializedParameter) for _, each in found):
        raise InvalidArgument("a parameter has no shape yet: call the model once, before you "
                              "wrap the optimizer")
    return found
