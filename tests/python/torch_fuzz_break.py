"""Takes fixes out of nereus.torch, to see that the fuzzer finds what they mend."""

import torch

from nereus.torch import alike, engine, factors, hook, layout, state, watched

_Engine, _Layer, _Factors = engine.Engine, layout.TorchLayer, factors.FactorLayer


def _no_late_step():
    """A step whose backward reached no parameter is no step of the job."""
    _Engine.end_step = lambda self, rounds, is_asked: None


def _no_question():
    """Gradients that the program has set are averaged, or not, without a word."""
    alike.Alike.changed = lambda self: []


def _no_hooks():
    """Hooks of a weight are not looked for."""
    _Factors._look = lambda self: None


def _no_watch():
    """Nobody notices that a gradient is read in backward."""
    watched.watch = lambda parameter, watcher: None


def _no_graph():
    """Factors are taken in a graph of gradients and by torch.autograd.grad, too."""
    take = _Factors.take

    def taken(self, output_gradient, rows):
        with torch.no_grad():
            self._node, node = None, self._node
            will, torch._C._will_engine_execute_node = torch._C._will_engine_execute_node, \
                lambda _: True
            try:
                return take(self, output_gradient, rows)
            finally:
                self._node, torch._C._will_engine_execute_node = node, will

    _Factors.take = taken


def _own_memory():
    """Small parameters are moved to the layer's memory when the worker joins."""
    bind = _Layer.bind

    def bound(self, state_arrays):
        made = bind(self, state_arrays)
        for slot in self.slots:
            if slot.index >= 0 and self.is_shared:
                slot.parameter.data = slot.place
        return made

    _Layer.bind = bound


def _remembered_buffers():
    """Running statistics are the tensors that they were when the worker joined."""
    init = layout.BufferSlot.__init__

    def begun(self, module, key, name, begin):
        init(self, module, key, name, begin)
        self._parameter = module._buffers[key]

    layout.BufferSlot.__init__ = begun
    layout.BufferSlot.parameter = property(lambda self: self._parameter)


def _second_forward():
    """The first forward runs twice."""
    before = _Engine._before_forward

    def twice(self, arguments):
        if self.rounds == 0 and not self._is_open:
            with torch.no_grad():
                self._model.forward(*arguments)
        before(self, arguments)

    _Engine._before_forward = twice


def _no_state():
    """The state that an optimizer has when its job is new is dropped."""
    restore = state.BoundState.restore

    def restored(self, numbers):
        restore(self, numbers)
        for optimizer in self._optimizers:
            optimizer.state.clear()

    state.BoundState.restore = restored


def _no_sparse():
    """Gradients of a small sparse table are taken for dense ones."""
    layout._dense = lambda gradient: gradient


def _hook_waits_for_the_end():
    """DDP's hook waits for means in a callback at the end of backward."""
    take = hook._HookEngine.take

    def taken(self, bucket):
        self._own = self._own or {""}
        return take(self, bucket)

    hook._HookEngine.take = taken
    hook._HookEngine._is_delayed = False


BROKEN = {
    "late": _no_late_step, "set": _no_question, "hooks": _no_hooks, "reads": _no_watch,
    "graph": _no_graph, "memory": _own_memory, "buffers": _remembered_buffers,
    "forward": _second_forward, "state": _no_state, "sparse": _no_sparse,
    "ddp": _hook_waits_for_the_end,
}
