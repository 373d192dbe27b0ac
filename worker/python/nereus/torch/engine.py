"""Engine of nereus.torch: sends each gradient when backward has made it, and waits for the
means at the end of backward (wait-free backpropagation, Poseidon, section 3).

A step of the job begins with the first forward or the first gradient after the last step. It
ends with the last backward of the step, in a callback of torch's engine.
"""

import logging

import torch

from ..client import Client, Step
from ..errors import FAILED_PRECONDITION, JobWentBack, LeftEarly, ModelMismatch, NereusError
from ..leave_signal import LeaveSignal
from . import factors, layout, state
from .deferred import DeferredUpdates
from .hooks import WeakCall

_log = logging.getLogger("nereus")


class Engine:
    """Training of one model by one optimizer, as a worker of a job.

    options: nereus.Options, or None if this process trains alone.
    rows: dict from names of weights to rows of their factors; None: measured at the first
    forward.
    defers: True if parameters are updated in the next forward (DeferredUpdates).
    example: arguments of a forward by which rows are measured at once.
    """

    def __init__(self, optimizer, named, model, options, names_of_factors, rows, passes,
                 defers=False, example=None):
        self.passes = passes  # Backward passes in a step.
        self.accumulates = False  # True within no_sync.
        self.step_info = None
        self.skipped = False  # True if the job has skipped the last step.
        self.alone_steps = 0  # Steps of the optimizer in a process that trains alone.
        self._step_sent = None  # Last step whose gradients were all sent.
        self._used = None  # For each parameter, True if a worker had its gradient.
        self._optimizer = optimizer
        self._named = named
        self._model = model
        self._options = options
        self._client = None
        self._signal = None  # LeaveSignal, from the joining on.
        self._device = named[0][1].device
        self._passes_done = 0
        self._is_open = False  # True from begin_step to the end of the last backward.
        self._ends = False  # True from the first gradient of a backward to its end.
        self._has_any = False  # True if a gradient came in this backward.
        self._measures = False  # True while rows are measured.
        self._nodes = []  # Nodes of torch's graph with hooks, which must live.
        self._layers = []
        self._of_parameter = {}  # Layer and slot, by the id of the parameter.
        self._deferred = None  # DeferredUpdates, if parameters are updated in forward.
        self._differences = []  # Texts: numbers of the groups that were not those of the job.
        self._reasons = {}  # Why Linears have no factors.
        self._candidates = {}
        if options is None:
            return
        if defers:
            self._deferred = DeferredUpdates(optimizer, self._settle)
        if model is not None and names_of_factors:
            self._candidates, self._reasons = factors.candidates(model, names_of_factors)
            trained = {name for name, _ in named}
            self._candidates = {name: module for name, module in self._candidates.items()
                                if name in trained}
        if model is not None:
            self._hook_model()
        self._hook_parameters(named)
        if rows is not None or not self._candidates:
            self._connect({name: count for name, count in (rows or {}).items()
                           if name in self._candidates})
        elif example is not None:
            self._measure_and_connect(example if isinstance(example, tuple) else (example,), {})

    # ---- The model, and the connection.

    @property
    def may_skip(self):
        """True if the job skips steps with a NaN."""
        return self._client is not None and self._client.traits.may_skip

    @property
    def has_job(self):
        """True if this process does not train alone."""
        return self._options is not None

    @property
    def is_connected(self):
        """True if the worker has joined the job."""
        return self._client is not None

    def _hook_model(self):
        before = WeakCall(self._before_forward, self._model)
        try:
            self._model.register_forward_pre_hook(before, with_kwargs=True)
        except TypeError:  # torch before 2.0.
            self._model.register_forward_pre_hook(before)
        self._model.register_forward_hook(WeakCall(self._watch, self._model))

    def _hook_parameters(self, named):
        on_gradient = WeakCall(self._on_gradient)
        for _, parameter in named:
            # The hook of a tensor would come before the gradient is accumulated.
            with torch.enable_grad():
                node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, parameter=parameter: on_gradient(parameter))
            self._nodes.append(node)

    def _before_forward(self, args, kwargs=None):
        if not torch.is_grad_enabled():
            return
        if self._client is None:
            if self._measures:
                return
            self._measure_and_connect(args, kwargs or {})
        if self._ends:
            self._recover()
        if self._model.training:
            self._begin()

    def _measure_and_connect(self, args, kwargs):
        self._measures = True
        try:
            rows, reasons = factors.measure(self._model, (args, kwargs), self._candidates)
        finally:
            self._measures = False
        self._reasons.update(reasons)
        self._connect(rows)

    def _watch(self, _, output):
        """Queues the end of the backward pass as soon as that begins: in the gradient of a
        checkpointed module, the callback would come too early."""
        if torch.is_grad_enabled() and self._client is not None:
            queue_end = WeakCall(self._queue_end)
            for tensor in factors.tensors(output):
                tensor.register_hook(lambda _: queue_end())

    def _connect(self, rows):
        rows = {name: count * self.passes for name, count in rows.items()}
        self._layers = self._layers_of(rows)
        slots = sorted((slot for layer in self._layers for slot in layer.slots),
                       key=lambda slot: slot.index)
        kinds = state.kinds_of_state(self._optimizer)
        if kinds is None:
            _log.warning("the state of %s is not known: a worker that joins a running job "
                         "begins without it, and so differs from the others",
                         state.plain_class(self._optimizer).__name__)
        tensor_names, number_names = kinds or ([], [])
        self._extras = state.Extras(self._optimizer, slots, number_names)
        trained = list(self._layers)
        statistics = (layout.statistics_layer(self._model, self._device)
                      if self._model is not None else None)
        # Layers are in the order of forward. What is pushed last and needed first begins.
        if statistics is not None:
            self._layers.insert(0, statistics)
        bound = [self._extras.layer(len(tensor_names)),
                 *(layer.bind(len(tensor_names)) for layer in self._layers)]
        self._state = state.BoundState(self._optimizer, trained, tensor_names)
        self._state.adopt_all()
        self._extras.write()
        strides = [f"{slot.name} {slot.parameter.stride()}" for slot in slots
                   if not slot.parameter.is_contiguous()]
        self._options.settings = {
            **self._options.settings, "backward_passes_per_step": self.passes,
            "memory_format": "; ".join(strides)[:200] or "contiguous"}
        self._options.scales_loss = True
        self._options.optimizer_has_state = bool(tensor_names)  # Said above if not known.
        for index, layer in enumerate(self._layers):
            layer.index = index + 1
            for slot in layer.slots:
                self._of_parameter[id(slot.parameter)] = layer, slot
        try:
            client = Client(bound, stream=self._stream(), **vars(self._options))
        except ModelMismatch as error:
            if "; ours is " not in str(error):  # Settings differ, not a layer.
                raise
            raise ModelMismatch(
                f"{error}. Rows of factors are those of each worker's first forward: if "
                "these differ, pass the same rows= on all workers, or factors=False",
                error.outcome) from None
        try:
            self._check_overlap(client.traits.decoupled)
            self._take_over()
            for layer in self._layers:
                if layer.rows:
                    layer.capture = factors.Capture(self._candidates[layer.slots[0].name],
                                                    WeakCall(self._begin_backward))
        except BaseException:
            client.close()
            raise
        self._client = client
        self._signal = LeaveSignal()

    def _layers_of(self, rows):
        return layout.layers_of(self._named, rows)

    def _check_overlap(self, decoupled):
        if self._deferred is None:
            if decoupled:
                _log.warning("the job has --overlap=dear, but backward waits for all layers: "
                             'pass overlap="dear" to DistributedOptimizer')
            return
        if not decoupled:
            raise NereusError('overlap="dear" needs a job with --overlap=dear, in which means '
                              "come in the order of forward", FAILED_PRECONDITION)
        self._deferred.hook(self._model, self._layers)

    @torch.no_grad()
    def _take_over(self):
        """Takes what the job has written to the layers' memory."""
        self._differences = self._extras.read_groups()
        self._state.restore(self._extras.numbers())
        for layer in self._layers:
            layer.take_over()

    def _stream(self):
        """Returns the number of torch's current stream; None without a GPU."""
        if self._device.type != "cuda":
            return None
        return torch.cuda.current_stream(self._device).cuda_stream

    # ---- Steps.

    def begin_step(self):
        """Begins a step of the job, unless one is open, and returns it."""
        if self._options is None:
            self.step_info = Step(self.alone_steps, 0, 1, 0, 1, self.alone_steps, 1.0, False)
        elif self._client is None:
            raise NereusError(
                "this worker has not joined its job yet: pass example= to "
                "DistributedOptimizer, the arguments of a forward, and it joins at once",
                FAILED_PRECONDITION)
        else:
            self._begin()
        return self.step_info

    def _begin(self):
        """Begins a step of the job, unless one is open."""
        if self._is_open:
            return
        with torch.no_grad():
            for layer in self._layers:
                if not self._is_pending(layer):
                    layer.check_addresses()
            self.step_info = self._client.begin_step(stream=self._stream())
            self._leave_if_asked()
            if self.step_info.went_back:
                if self._deferred is not None:
                    self._deferred.forget()
                self._take_over()
            differences, self._differences = self._differences, []
            state.judge_numbers(differences, self.step_info, self._client)
            self._is_open = True
            self._begin_passes()

    def _begin_passes(self):
        """Forgets the gradients of the open step, of which none was sent."""
        self._passes_done = 0
        for layer in self._layers:
            if not self._is_pending(layer):
                self._begin_layer(layer)

    def _begin_layer(self, layer):
        if layer.capture is not None:
            layer.sends_factors = (self._device.type == "cuda"
                                   or self._client.takes_factors(layer.index))
        layer.begin()

    def _is_pending(self, layer):
        """Returns True if the layer's mean of the last step was not waited for."""
        return self._deferred is not None and layer in self._deferred

    @property
    def _is_last_pass(self):
        return not self.accumulates and self._passes_done + 1 >= self.passes

    def _begin_backward(self):
        if not self._is_open:
            self._begin()
            if self.step_info.went_back:
                raise JobWentBack(
                    "the job has gone back to a checkpoint, so that this backward is of "
                    "other parameters: do the step again, beginning with its forward",
                    FAILED_PRECONDITION)
        self._queue_end()

    def _queue_end(self):
        """Queues `_end`, to be called when this backward pass is done."""
        if not self._ends:
            self._ends = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _recover(self):
        """After a backward that failed, for example without memory."""
        self._ends = self._has_any = False
        if not self._is_open:
            return
        if any(layer.pushed is not None for layer in self._layers):
            raise NereusError(
                "the last backward failed after it had sent gradients, so that its step "
                "cannot be done again: end this process, and start it anew",
                FAILED_PRECONDITION)
        self._begin_passes()

    def drop_gradients(self):
        """Forgets gradients that were accumulated in the open step, when the caller sets
        them to zero."""
        if self._deferred is not None:
            self._deferred.drop_gradients()
        if self._is_open and not self._ends and \
                all(layer.pushed is None for layer in self._layers):
            self._begin_passes()

    @torch.no_grad()
    def _on_gradient(self, parameter):
        """Called when a parameter's gradient is accumulated."""
        if self._client is None:
            if self._measures:
                return
            raise NereusError(
                "a gradient came before the worker has joined its job, which it does in "
                "model(...): call the model that you gave to DistributedOptimizer, or pass "
                "factors=False, and it joins at once", FAILED_PRECONDITION)
        layer, slot = self._of_parameter[id(parameter)]
        if self._is_pending(layer):
            raise NereusError(
                f'parameter {slot.name} has a gradient of a graph that is older than its '
                'update: with overlap="dear", do all backward passes of a step before its last '
                "one, or call optimizer.synchronize() before the forward that makes the graph",
                FAILED_PRECONDITION)
        self._begin_backward()
        if layer.capture is not None:
            layer.capture.commit()
        if parameter.grad is None and not layer.has_factors:
            return
        if layer.pushed is not None:
            raise NereusError(
                f"the gradient of parameter {slot.name} came a second time in one backward "
                "pass, after it was sent: use checkpoint(..., use_reentrant=False) for "
                "modules that are used twice", FAILED_PRECONDITION)
        self._has_any = True
        slot.used = True
        if not slot.came:
            slot.came = True
            layer.missing -= 1
        if self._is_last_pass and layer.missing == 0:
            self._push(layer)

    def _push(self, layer):
        try:
            self._send(layer)
        except JobWentBack:
            self._is_open = False  # The next forward begins the step after the checkpoint.
            raise

    def _send(self, layer):
        self._state.adopt(layer)
        capture = layer.capture
        if capture is not None:
            layer.check_factors(self.passes)
            if layer.sends_factors and capture.rows <= layer.rows:
                self._push_factors(layer)
                return
        layer.pushed = layer.collect()
        if self.step_info.loss_scale != 1:
            layer.pushed.mul_(self.step_info.loss_scale)
        self._client.push(layer.index, self.step_info, layer.pushed, stream=self._stream())

    def _push_factors(self, layer):
        output_gradient, inputs = layer.take_factors()
        if self.step_info.loss_scale != 1:
            output_gradient = output_gradient * self.step_info.loss_scale
        layer.pushed = layer.place_for_mean()
        self._client.push_factors(layer.index, self.step_info, output_gradient, inputs,
                                  layer.pushed, stream=self._stream())

    @torch.no_grad()
    def _end(self):
        """Ends a backward pass: after the last one of a step, waits for all means, unless
        updates are deferred."""
        has_any, self._ends, self._has_any = self._has_any, False, False
        for layer in self._layers:
            if layer.capture is not None:
                layer.capture.drop_pending()
        if not has_any:  # torch.autograd.grad, which leaves gradients alone.
            return
        if not self._is_last_pass:
            self._passes_done += 0 if self.accumulates else 1
            for layer in self._layers:
                layer.begin_pass()
            return
        try:
            self.finish()
            for layer in reversed(self._layers):
                if layer.pushed is None:
                    self._push(layer)
            self._extras.write()
            self._extras.write_flags()
            self._client.push(0, self.step_info, self._extras.gradient)
            self._step_sent, self._used = self.step_info, None
            if self._deferred is not None:
                self._deferred.begin(self._layers)
            else:
                self._client.wait_all(self.step_info, stream=self._stream())
                for layer in self._layers:
                    self._give_mean(layer)
        finally:
            self._is_open = False

    def _settle(self, layer):
        """Waits for the mean of a layer in the last step, and gives it to the parameters.
        Returns True if the job has skipped the step."""
        try:
            if self._used is None:
                self._client.wait(0, self._step_sent)
            self._client.wait(layer.index, self._step_sent, stream=self._stream())
        except JobWentBack:
            self._is_open = False  # The next forward begins the step after the checkpoint.
            raise
        self._give_mean(layer)
        if self._is_open:
            self._begin_layer(layer)
        return self.skipped

    def _give_mean(self, layer):
        if self._used is None:
            self._used = [value > 0 for value in self._extras.gradient.tolist()]
            self.skipped = self.may_skip and self._client.skipped(self._step_sent)
        if self.skipped:
            layer.skip()
        else:
            layer.distribute(lambda slot: self._used[slot.index])
        layer.pushed = None

    # ---- For the optimizer.

    @property
    def defers(self):
        """True if updates wait for the next forward."""
        return self._deferred is not None

    def defer_step(self, step):
        """Does a step of the optimizer when the means are there. step: function without
        arguments, which updates the parameters of all groups."""
        self._deferred.step(step)

    def finish(self):
        """Waits for all means of the last step, and updates the parameters."""
        if self._deferred is not None:
            self._deferred.finish_all()

    def check_parameters(self):
        """Checks that Nereus knows all parameters that the optimizer updates."""
        if self._client is not None:
            layout.check_known(self._optimizer, self._of_parameter)

    def plan(self):
        """Returns a list of dicts, one for each layer: its name, how it travels, rows of its
        factors (0: none), and for a Linear without factors the reason."""
        if self._client is None:
            return []
        found = []
        for layer, reported in zip(self._layers, self._client.report()["layers"][1:]):
            found.append({"name": layer.name, "scheme": reported["scheme"],
                          "wire": reported["wire"], "rows": layer.rows,
                          "reason": self._reasons.get(layer.slots[0].name, "")})
        return found

    def report(self):
        """Returns the client's report (docs/c_api.md, "Reports"); None without a job."""
        return self._client.report() if self._client is not None else None

    def gather(self, value):
        """Returns the values of all workers (nereus.Client.gather)."""
        return self._client.gather(value)

    def _leave_if_asked(self):
        """Leaves the job early after SIGTERM, or if an operator drains this worker."""
        code = LeaveSignal.EXIT_CODE if self._signal.is_set else 0
        if code or self.step_info.should_leave:
            self.leave(early=True)
            raise LeftEarly(f"left the job early, {'SIGTERM' if code else 'drained'}", code)

    def leave(self, early=False):
        """Leaves the job after the last step; early: it is not done."""
        if self._client is None or self._client.closed:
            return
        self.finish()
        with torch.no_grad():
            self._state.adopt_all()
            self._extras.write()
        try:
            self._client.leave(stream=self._stream(), early=early)
        finally:
            self._signal.close()
            self._client.close()
