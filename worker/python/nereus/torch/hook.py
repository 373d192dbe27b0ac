"""Communication hook for DistributedDataParallel, and Linears by factors beside it.

DDP stays: it decides when a bucket of gradients is ready, and Nereus carries it. Each parameter
of a bucket is pushed at once. The means are there when backward returns, as with DDP itself: they
are waited for in the last bucket, or, if Linears were taken out of DDP, at the end of backward.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import FAILED_PRECONDITION, InvalidArgument, NereusError
from . import factors, layout, process
from .engine import Engine

# Name of the attribute of a model that has the weights which factorize took out of DDP.
_FACTORIZED = "_nereus_factorized"


class _BucketLayer(layout.TorchLayer):
    """Layer whose gradients come in buckets of DDP, which get the means."""

    def collect(self):
        if not self.gathers and self.slots[0].bucket is not None:
            return layout.flat(self.slots[0].bucket)
        if self.gradient is None:
            self.gradient = torch.empty_like(self.values)
        for slot in self.slots:
            part = slot.view_of(self.gradient)
            if slot.bucket is None:
                part.zero_()
            else:
                part.copy_(slot.bucket)
        return self.gradient

    def distribute(self, is_used):
        for slot in self.slots:
            if self.gathers and slot.bucket is not None:
                slot.bucket.copy_(slot.view_of(self.pushed))

    def skip(self):
        """Makes the gradients of a skipped step infinite, as a GradScaler expects them."""
        for slot in self.slots:
            if slot.bucket is not None:
                slot.bucket.fill_(float("inf"))


class _HookEngine(Engine):
    """Engine whose gradients come from DDP, but for those of factorized weights.

    ddp: the module, or None: DDP's buckets then have all parameters, and the first ones name
    them.
    """

    def __init__(self, named, ddp, options, rows):
        self._ddp = ddp
        self._own = set(getattr(ddp.module, _FACTORIZED, ())) if ddp is not None else set()
        self._buckets = []  # Future and memory of each bucket of this step.
        self._has_last = False  # True if the last bucket of this step has come.
        # DDP's workers are always the same, so that none needs the optimizer's state.
        stand_in = torch.optim.SGD([each for _, each in named], lr=0.0)
        super().__init__([stand_in], named, ddp.module if ddp is not None else None, options,
                         sorted(name[:-len(".weight")] for name in self._own), rows, 1)

    @property
    def _is_last_pass(self):
        return self._ddp is None or self._ddp.require_backward_grad_sync

    def _hook_parameters(self, named):
        super()._hook_parameters([(name, each) for name, each in named if name in self._own])

    def _kind_of(self, name):
        return layout.TorchLayer if name in self._own else _BucketLayer

    def _mark(self):
        """The program's optimizer is its own, and so are the gradients that it uses."""

    def _find_strangers(self):
        return {}

    @torch.no_grad()
    def take(self, bucket):
        """Pushes the gradients of a bucket. Returns a future of their means."""
        # DDP calls the hook outside of a backward pass, too: with static_graph, and for a worker
        # that has no batches left (Join).
        self._begin_in_step()
        self._has_any = True
        memory = bucket.buffer()
        future = torch.futures.Future(devices=[memory.device] if memory.is_cuda else [])
        self._buckets.append((future, memory))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            if id(parameter) not in self._of_parameter:
                raise NereusError(
                    f"a parameter of shape {tuple(parameter.shape)} in a bucket of DDP is not one "
                    "of the module of CommHookState: each process has one DDP module with "
                    "comm_hook", FAILED_PRECONDITION)
            layer, slot = self._of_parameter[id(parameter)]
            slot.bucket = gradient
            slot.used = slot.came = True
            layer.missing -= 1
            if layer.missing == 0:
                self._push(layer)
        self._has_last = self._has_last or bucket.is_last()
        # Otherwise the means are waited for at the end of backward, when the gradients of all
        # factorized weights have come.
        if self._has_last and (not self._own or not self._ends or self._is_delayed):
            self._has_any = False
            self._finish_step()
        return future

    @property
    def _is_delayed(self):
        """True in the first averaged backward with static_graph: its buckets come after its end,
        and DDP waits for them before it lets `_end` run."""
        return getattr(self._ddp, "static_graph", False) and self.rounds == 0

    def _end(self):
        if self._has_any and self._is_last_pass and not self._has_last:
            self._ends = False
        else:
            super()._end()

    def _finish_step(self):
        self._has_last = False
        try:
            super()._finish_step()
        finally:
            buckets, self._buckets = self._buckets, []
            for slot in self._slots():
                slot.bucket = None
        for future, memory in buckets:
            future.set_result(memory)


class CommHookState:
    """State of `comm_hook`: the worker's part in the job.

        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(nt.CommHookState(ddp), nt.comm_hook)

    All processes make one, after nereus.torch.init. It joins the job at once. Without `ddp`, for
    frameworks that make the DDP module later, it joins in the first backward; then no Linear goes
    by factors, and running statistics are DDP's.

    rows: dict from names of factorized weights to the rows of their inputs in one step. By
    default, those of the first step.
    """

    def __init__(self, ddp=None, rows=None):
        if ddp is not None and not isinstance(ddp, DistributedDataParallel):
            raise InvalidArgument(f"ddp is {type(ddp).__name__}, must be "
                                  "DistributedDataParallel")
        options = process.options()
        process.check_free()
        if not options.coordinator:
            raise NereusError("comm_hook needs a job: start the program by torchrun or "
                              "`nereusctl run`, or set NEREUS_COORDINATOR",
                              FAILED_PRECONDITION)
        self._options = options
        self._first = []  # Buckets of the first backward, until the worker has joined.
        self.engine = None
        if ddp is not None:
            self._join([(name, each) for name, each in ddp.module.named_parameters()
                        if each.requires_grad], ddp, rows)

    def _join(self, named, ddp=None, rows=None):
        process.check_free()
        self.engine = _HookEngine(named, ddp, self._options, rows)
        process.register(self.engine)

    def take(self, bucket):
        """Pushes the gradients of a bucket. Returns a future of their means."""
        if self.engine is not None:
            return self.engine.take(bucket)
        # The job needs all parameters, in an order that is the same on all workers.
        future = torch.futures.Future(devices=[bucket.buffer().device]
                                      if bucket.buffer().is_cuda else [])
        self._first.append((bucket, future))
        if bucket.is_last():
            parameters = [each for taken, _ in self._first for each in taken.parameters()]
            self._join([(f"parameter.{index}", each) for index, each in enumerate(parameters)])
            first, self._first = self._first, []
            means = [self.engine.take(taken) for taken, _ in first]
            for (_, each), mean in zip(first, means):
                each.set_result(mean.value())
        return future

    def plan(self):
        """Returns how each layer travels, as DistributedOptimizer.plan."""
        return self.engine.plan() if self.engine is not None else []

    def report(self):
        """Returns costs, traffic and measurements, as DistributedOptimizer.report."""
        return self.engine.report() if self.engine is not None else None


def comm_hook(state, bucket):
    """Communication hook of DDP: Nereus averages the gradients of a bucket."""
    if not isinstance(state, CommHookState):
        raise InvalidArgument(f"the state of comm_hook is {type(state).__name__}, must be a "
                              "nereus.torch.CommHookState")
    return state.take(bucket)


def factorize(model, names="auto"):
    """Takes Linears out of DDP, so that they may go by their factors. Call it before DDP gets
    the model, which it returns, and use `comm_hook`.

    names: "auto", or the names of modules. Errors: InvalidArgument, there is no such Linear.
    """
    found, _ = factors.candidates(model, names)
    setattr(model, _FACTORIZED, list(found))
    ignored = list(getattr(model, "_ddp_params_and_buffers_to_ignore", []))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, ignored + list(found))
    return model
