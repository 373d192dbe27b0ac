"""Engine of nereus.torch: sends each gradient when backward has made it, and waits for the
means at the end of backward (wait-free backpropagation, Poseidon, section 3).

A step of the job begins with the first forward or the first gradient after the last step. It
ends with the last backward of the step, in a callback of torch's engine.
"""

import logging
import weakref

import torch

from .. import Client
from ..errors import FAILED_PRECONDITION, ModelMismatch, NereusError
from . import factors, layout, state

_log = logging.getLogger("nereus")


class Engine:
    """Training of one model by one optimizer, as a worker of a job.

    options: nereus.Options, or None if this process trains alone.
    rows: dict from names of weights to rows of their factors; None: measured at the first
    forward.
    """

    def __init__(self, optimizer, named, model, options, names_of_factors, rows, passes):
        self.passes = passes  # Backward passes in a step.
        self.accumulates = False  # True within no_sync.
        self.step_info = None
        self._optimizer = optimizer
        self._named = named
        self._model = model
        self._options = options
        self._client = None
        self._passes_done = 0
        self._is_open = False  # True from begin_step to the end of the last backward.
        self._ends = False  # True if the end of this backward was queued.
        self._has_any = False  # True if a gradient came in this backward.
        self._is_checked = False  # True after the first step.
        self._nodes = []  # Nodes of torch's graph with hooks, which must live.
        self._layers = []
        self._of_parameter = {}  # Layer and slot, by the id of the parameter.
        self._reasons = {}  # Why Linears have no factors.
        self._candidates = {}
        if options is None:
            return
        if model is not None and names_of_factors:
            self._candidates, self._reasons = factors.candidates(model, names_of_factors)
            trained = {name for name, _ in named}
            self._candidates = {name: module for name, module in self._candidates.items()
                                if name in trained}
        if model is not None:
            self._hook_model()
        if rows is not None or not self._candidates:
            self._connect({name: count for name, count in (rows or {}).items()
                           if name in self._candidates})

    # ---- The model, and the connection.

    def _hook_model(self):
        before, watch = self._weak("_before_forward"), self._weak("_watch")
        hooked = weakref.ref(self._model)

        # Copies of the model have copies of its hooks.
        def before_forward(module, args, kwargs=None):
            if module is hooked():
                before((args, kwargs or {}))

        def after_forward(module, _, output):
            if module is hooked():
                watch(output)

        try:
            self._model.register_forward_pre_hook(before_forward, with_kwargs=True)
        except TypeError:  # torch before 2.0.
            self._model.register_forward_pre_hook(before_forward)
        self._model.register_forward_hook(after_forward)

    def _before_forward(self, arguments):
        if self._client is None:
            if not torch.is_grad_enabled():
                return
            rows, reasons = factors.measure(self._model, arguments, self._named,
                                            self._candidates)
            self._reasons.update(reasons)
            self._connect(rows)
        if torch.is_grad_enabled() and self._model.training:
            self._begin()

    def _watch(self, output):
        """Queues the end of the backward pass as soon as that begins: in the gradient of a
        checkpointed module, the callback would come too early."""
        queue_end = self._weak("_queue_end")
        if torch.is_grad_enabled() and self._client is not None:
            for tensor in factors.tensors(output):
                tensor.register_hook(lambda _: queue_end())

    def _connect(self, rows):
        rows = {name: count * self.passes for name, count in rows.items()}
        self._layers = layout.layers_of(self._named, rows)
        self._device = self._named[0][1].device
        slots = sorted((slot for layer in self._layers for slot in layer.slots),
                       key=lambda slot: slot.index)
        statistics = (layout.statistics_layer(self._model, self._device)
                      if self._model is not None else None)
        kinds = state.kinds_of_state(self._optimizer)
        if kinds is None:
            _log.warning("%s is an optimizer whose state is not known: a worker that joins a "
                         "running job begins without its state, and so differs from the "
                         "others", type(self._optimizer).__mro__[1].__name__)
        tensor_names, number_names = kinds or ([], [])
        self._extras = state.Extras(slots, number_names)
        self._state = state.BoundState(self._optimizer, list(self._layers), tensor_names)
        if statistics is not None:
            self._layers.append(statistics)
        bound = [layer.bind(len(tensor_names)) for layer in self._layers]
        self._state.adopt()
        self._extras.write(self._optimizer)
        strides = [f"{slot.name} {slot.parameter.stride()}" for slot in slots
                   if not slot.parameter.is_contiguous()]
        self._options.settings = {
            **self._options.settings, "backward_passes_per_step": self.passes,
            "memory_format": "; ".join(strides)[:200] or "contiguous"}
        bound.append(self._extras.layer(len(tensor_names)))
        try:
            self._client = Client(bound, stream=self._stream(), **vars(self._options))
        except ModelMismatch as error:
            raise ModelMismatch(
                f"{error}. Rows of factors are those of each worker's first forward: if "
                "these differ, pass the same rows= on all workers, or factors=False",
                error.code) from None
        try:
            self._hook_parameters()
            self._state.restore(self._extras.numbers())
        except BaseException:
            self._client.close()
            raise

    def _hook_parameters(self):
        for index, layer in enumerate(self._layers):
            layer.index = index
            if isinstance(layer, layout.StatisticsLayer):
                continue
            for slot in layer.slots:
                self._of_parameter[id(slot.parameter)] = layer, slot
                # The hook of a tensor would come before the gradient is accumulated.
                node = slot.parameter.expand_as(slot.parameter).grad_fn.next_functions[0][0]
                node.register_hook(self._hook(layer, slot))
                self._nodes.append(node)
            if layer.rows:
                module = self._candidates[layer.name]
                layer.capture = factors.Capture(module, self._weak("_begin_backward"))

    def _hook(self, layer, slot):
        on_gradient = self._weak("_on_gradient")
        return lambda *_: on_gradient(layer, slot)

    def _weak(self, name):
        """Returns a function that calls a method of this engine while that lives. Modules and
        torch's graph keep such functions."""
        engine = weakref.ref(self)

        def call(*arguments):
            alive = engine()
            return getattr(alive, name)(*arguments) if alive is not None else None

        return call

    def _stream(self):
        """Returns the number of torch's current stream; None without a GPU."""
        device = self._named[0][1].device
        return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None

    # ---- Steps.

    def _begin(self):
        """Begins a step of the job, unless one is open."""
        if self._is_open:
            return
        self._state.adopt()
        if self.step_info is not None:
            self._extras.write(self._optimizer)
        for layer in self._layers:
            for slot in layer.slots:
                slot.check_address()
        self.step_info = self._client.begin_step(stream=self._stream())
        if self.step_info.went_back:
            self._state.restore(self._extras.numbers())
        self._is_open = True
        self._passes_done = 0
        for layer in self._layers:
            layer.begin()
            if layer.capture is not None:
                layer.capture.clear()
                layer.sends_factors = (self._device.type == "cuda"
                                       or self._client.takes_factors(layer.index))
                layer.capture.keeps = layer.sends_factors or not self._is_checked
                layer.capture.gives_product = not layer.sends_factors or not self._is_checked

    @property
    def _is_last_pass(self):
        return not self.accumulates and self._passes_done + 1 >= self.passes

    def _begin_backward(self):
        self._begin()
        self._queue_end()

    def _queue_end(self):
        """Queues `_end`, to be called when this backward pass is done."""
        if not self._ends:
            self._ends = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _on_gradient(self, layer, slot):
        """Called when a parameter's gradient is accumulated."""
        try:
            self._begin_backward()
            if layer.capture is not None:
                layer.capture.commit()
            if slot.parameter.grad is None and not layer.has_factors:
                return
            if layer.pushed is not None:
                raise NereusError(
                    f"the gradient of parameter {slot.name} came a second time in one "
                    "backward pass, after it was sent: use checkpoint(..., "
                    "use_reentrant=False) for modules that are used twice",
                    FAILED_PRECONDITION)
            self._has_any = True
            slot.used = True
            if not slot.came:
                slot.came = True
                layer.missing -= 1
            if self._is_last_pass and layer.missing == 0:
                self._push(layer)
        except BaseException:
            self._give_up()
            raise

    def _push(self, layer):
        stream, step = self._stream(), self.step_info
        capture = layer.capture
        if capture is not None and capture.rows > layer.rows:
            raise NereusError(
                f"layer {layer.name} has {capture.rows} rows in this step, more than the "
                f"{layer.rows} that its workers agreed on: pass rows={{'{layer.name}': "
                f"{-(-capture.rows // self.passes)}}} to DistributedOptimizer, or "
                "factors=False",
                FAILED_PRECONDITION)
        if capture is None or not layer.sends_factors:
            if capture is not None and not self._is_checked:
                self._check(layer)
            layer.pushed = layer.collect()
            self._scale(layer.pushed)
            self._client.push(layer.index, step, layer.pushed, stream=stream)
            return
        self._push_factors(layer, stream)

    def _push_factors(self, layer, stream):
        slot, capture = layer.slots[0], layer.capture
        if not self._is_checked and slot.used:
            self._check(layer)
            slot.parameter.grad = None
        if capture.rows == 0:  # No gradient in this step.
            given = slot.parameter.new_zeros(layer.rows, slot.parameter.shape[0])
            inputs = slot.parameter.new_zeros(layer.rows, slot.parameter.shape[1])
        else:
            given, inputs = capture.stacked(layer.rows)
        if self.step_info.loss_scale != 1:
            given = given * self.step_info.loss_scale
        layer.kept = None
        grad = slot.parameter.grad
        if grad is not None and (grad.is_cuda or bool(grad.any())):
            layer.kept = grad.clone()  # torch adds gradients to those that are there.
        layer.pushed = layer.mean_place()
        self._client.push_factors(layer.index, self.step_info, given, inputs, layer.pushed,
                                  stream=stream)
        capture.clear()

    def _check(self, layer):
        """Compares the product of the first step's factors with torch's gradient."""
        slot, capture = layer.slots[0], layer.capture
        if slot.parameter.grad is None or capture.rows == 0:
            return
        difference = capture.difference(slot.parameter.grad)
        if not difference <= capture.tolerance:
            raise NereusError(
                f"the gradient of {layer.name} is not the product of its factors (they "
                f"differ by {100 * difference:.2g} %): the loss uses the weight itself. Pass "
                "factors=False, or the names of other modules", FAILED_PRECONDITION)

    def _scale(self, values):
        if self.step_info.loss_scale != 1:
            values.mul_(self.step_info.loss_scale)

    def _end(self):
        """Ends a backward pass: after the last one of a step, waits for all means."""
        has_any, self._ends, self._has_any = self._has_any, False, False
        for layer in self._layers:
            if layer.capture is not None:
                layer.capture.drop_pending()
        if not has_any:  # torch.autograd.grad, which leaves gradients alone.
            return
        try:
            if not self._is_last_pass:
                self._passes_done += 0 if self.accumulates else 1
                for layer in self._layers:
                    layer.begin_pass()
                return
            for layer in reversed(self._layers):
                if layer.pushed is None:
                    self._push(layer)
            self._extras.write_flags()
            self._client.push(len(self._layers), self.step_info, self._extras.gradient)
            self._wait()
        except BaseException:
            self._give_up()
            raise

    def _wait(self):
        self._client.wait_all(self.step_info, stream=self._stream())
        flags = self._extras.gradient.tolist()
        skipped = (self._client.traits.may_skip and self._client.skipped(self.step_info))
        for layer in self._layers:
            if skipped:
                if isinstance(layer, layout.StatisticsLayer):
                    continue
                layer.pushed.fill_(float("inf"))  # As a GradScaler expects it.
            layer.distribute(lambda slot: skipped or flags[slot.index] > 0)
            if layer.capture is not None and layer.sends_factors and \
                    layer.kept is not None:
                layer.slots[0].parameter.grad.add_(layer.kept)
                layer.kept = None
            layer.pushed = None
        self._is_open = False
        self._is_checked = True

    def _give_up(self):
        """After an error, the next forward begins a step anew."""
        self._ends = self._has_any = self._is_open = False

    # ---- For the optimizer.

    def check_parameters(self):
        """Checks that Nereus knows all parameters that the optimizer updates."""
        if self._client is None:
            return
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) not in self._of_parameter:
                    raise NereusError(
                        f"a parameter of shape {tuple(parameter.shape)} has a gradient, but "
                        "was frozen, or not in the optimizer, when that was wrapped: wrap "
                        "the optimizer once it has all parameters", FAILED_PRECONDITION)

    def plan(self):
        """Returns a list of dicts, one for each layer: its name, how it travels, rows of its
        factors (0: none), and for a Linear without factors the reason."""
        if self._client is None:
            return []
        found = []
        for layer, reported in zip(self._layers, self._client.report()["layers"]):
            found.append({"name": layer.name, "scheme": reported["scheme"],
                          "wire": reported["wire"], "rows": layer.rows,
                          "reason": self._reasons.get(layer.name, "")})
        return found

    def report(self):
        """Returns the client's report (docs/c_api.md, "Reports"); None without a job."""
        return self._client.report() if self._client is not None else None

    def leave(self):
        """Leaves the job after the last step."""
        if self._client is None or self._client.closed:
            return
        self._state.adopt()
        self._extras.write(self._optimizer)
        try:
            self._client.leave(stream=self._stream())
        finally:
            self._client.close()
