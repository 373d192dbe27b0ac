"""Communication hook for DistributedDataParallel, and Linears by factors beside it.

DDP stays: it decides when a bucket of gradients is ready, and Nereus carries it. Each parameter
of a bucket is pushed at once; the means are there when backward returns, as with DDP itself.
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
    """Engine whose gradients come from DDP, but for those of factorized weights."""

    def __init__(self, ddp, options, rows):
        self._ddp = ddp
        self._own = set(getattr(ddp.module, _FACTORIZED, ()))
        self._buckets = []  # Future and memory of each bucket of this backward.
        named = [(name, each) for name, each in ddp.module.named_parameters()
                 if each.requires_grad]
        # DDP's workers are always the same, so that none needs the optimizer's state.
        stand_in = torch.optim.SGD([each for _, each in named], lr=0.0)
        super().__init__(stand_in, named, ddp.module, options, sorted(
            name[:-len(".weight")] for name in self._own), rows, 1)

    @property
    def _is_last_pass(self):
        return self._ddp.require_backward_grad_sync

    def _hook_parameters(self, named):
        super()._hook_parameters([(name, each) for name, each in named if name in self._own])

    def _layers_of(self, rows):
        return layout.layers_of(self._named, rows, lambda name: (
            layout.TorchLayer if name in self._own else _BucketLayer))

    @torch.no_grad()
    def take(self, bucket):
        """Pushes the gradients of a bucket. Returns a future of their means."""
        if self._client is None:
            raise NereusError(
                "a gradient came before the worker has joined its job, which it does in the "
                "first forward of the module that DDP has", FAILED_PRECONDITION)
        self._begin_backward()
        self._has_any = True
        memory = bucket.buffer()
        future = torch.futures.Future(devices=[memory.device] if memory.is_cuda else [])
        self._buckets.append((future, memory))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            layer, slot = self._of_parameter[id(parameter)]
            slot.bucket = gradient
            slot.used = slot.came = True
            layer.missing -= 1
            if layer.missing == 0:
                self._push(layer)
        return future

    @torch.no_grad()
    def _end(self):
        try:
            super()._end()
        finally:
            buckets, self._buckets = self._buckets, []
            for slot in (slot for layer in self._layers for slot in layer.slots):
                slot.bucket = None
        for future, memory in buckets:
            future.set_result(memory)


class CommHookState:
    """State of `comm_hook`: the worker's part in the job.

        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(nt.CommHookState(ddp), nt.comm_hook)

    All processes make one, after nereus.torch.init. Those that factorize their model join the
    job in its first forward, others at once.

    rows: dict from names of factorized weights to the rows of their inputs in one step. By
    default, they are measured at the first forward.
    """

    def __init__(self, ddp, rows=None):
        if not isinstance(ddp, DistributedDataParallel):
            raise InvalidArgument(f"ddp is {type(ddp).__name__}, must be "
                                  "DistributedDataParallel")
        options = process.options()
        process.check_free()
        if not options.coordinator:
            raise NereusError("comm_hook needs a job: start the program by torchrun or "
                              "`nereusctl run`, or set NEREUS_COORDINATOR",
                              FAILED_PRECONDITION)
        self.engine = _HookEngine(ddp, options, rows)
        process.register(self.engine)

    def plan(self):
        """Returns how each layer travels, as DistributedOptimizer.plan."""
        return self.engine.plan()

    def report(self):
        """Returns costs, traffic and measurements, as DistributedOptimizer.report."""
        return self.engine.report()


def comm_hook(state, bucket):
    """Communication hook of DDP: Nereus averages the gradients of a bucket."""
    return state.engine.take(bucket)


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
