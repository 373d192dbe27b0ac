"""Engine of nereus.torch: sends each gradient when backward has made it, and waits for the
means at the end of backward (wait-free backpropagation, Poseidon, section 3).

A step of the job begins with the first forward or the first gradient after the last step. It
ends with the last backward of the step, in a callback of torch's engine. If backward reached no
parameter, or not often enough, it ends in optimizer.step(): each call of that follows a step of the
job in which this worker took part, so that all workers make the same updates.
"""

import logging
import weakref

import torch

from ..client import Client, Step
from ..errors import FAILED_PRECONDITION, JobWentBack, LeftEarly, ModelMismatch, NereusError
from ..leave_signal import LeaveSignal
from . import factors, layout, state, watched
from .alike import Alike
from .checksum import checksums, differing
from .deferred import DeferredUpdates
from .hooks import WeakCall

_log = logging.getLogger("nereus")


class Engine:
    """Training of one model by one or several optimizers, as a worker of a job. Joins the job.

    options: nereus.Options, or None if this process trains alone.
    named: names and parameters of all layers, in the order of the model.
    model: the module, or None. names_of_factors: "auto", names of modules, or False.
    rows: dict from names of weights to rows of their factors in one backward pass, or None.
    passes: backward passes in a step.
    defers: True if parameters are updated in the next forward (DeferredUpdates).
    """

    def __init__(self, optimizers, named, model, options, names_of_factors, rows, passes,
                 defers=False):
        self.passes = passes
        self.accumulates = False  # True within no_sync.
        self.step_info = None
        self.skipped = False  # True if the job has skipped the last step.
        self.alone_steps = 0  # Steps of the optimizer in a process that trains alone.
        self.rounds = 0  # Steps whose means this worker has waited for, or defers.
        self._step_sent = None  # Last step whose gradients were all sent.
        self._used = None  # For each parameter, True if a worker had its gradient.
        self._optimizers = optimizers
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
        self._nodes = []  # Nodes of torch's graph with hooks, which must live.
        self._layers = []
        self._of_parameter = {}  # Layer and slot, by the id of the parameter.
        self._watchers = {}  # What a read of a parameter's gradient calls, by the slot's index.
        self._deferred = None  # DeferredUpdates, if parameters are updated in forward.
        self._told_rows = None  # Rows that the job was told.
        self._told_memory = None  # Memory that other jobs on the GPU were told.
        self._reasons = {}  # Why Linears have no factors, by the names of their weights.
        self._looks = False  # True if the program reads gradients in backward.
        if options is None:
            return
        if defers:
            self._deferred = DeferredUpdates(optimizers, self._settle)
        modules = {}
        if model is not None:
            if names_of_factors:
                modules, self._reasons = factors.candidates(model, names_of_factors)
            self._hook_model()
        self._hook_parameters(named)
        self._layers = self._make_layers(modules, rows or {})
        self._strangers = self._find_strangers()
        self._connect()

    # ---- The model, and the connection.

    @property
    def may_skip(self):
        """True if the job skips steps with a NaN."""
        return self._client is not None and self._client.traits.may_skip

    @property
    def client(self):
        """The nereus.Client; None before the first step, and in a process that trains alone."""
        return self._client

    @property
    def has_job(self):
        """True if this process does not train alone."""
        return self._options is not None

    def _hook_model(self):
        before = WeakCall(self._before_forward, self._model)
        self._model.register_forward_pre_hook(before)
        self._model.register_forward_hook(WeakCall(self._watch, self._model))

    def _hook_parameters(self, named):
        engine = weakref.ref(self)

        def hook_of(parameter):  # A WeakCall takes a microsecond longer.
            def on_gradient(*_):
                found = engine()
                if found is not None:
                    found._on_gradient(parameter)

            return on_gradient

        for _, parameter in named:
            # The hook of a tensor would come before the gradient is accumulated.
            with torch.enable_grad():
                node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(hook_of(parameter))
            self._nodes.append(node)

    def _before_forward(self, _):
        if not torch.is_grad_enabled():
            return
        if self._ends:
            self._recover()
        if self._model.training:
            self._begin()

    def _watch(self, _, output):
        """Queues the end of the backward pass as soon as that begins: in the gradient of a
        checkpointed module, the callback would come too early."""
        if torch.is_grad_enabled():
            begin = WeakCall(self._begin_watched)
            for tensor in factors.tensors(output):
                tensor.register_hook(lambda _: begin())

    def _begin_watched(self):
        """Called when the backward pass of an output begins. It may be that of an earlier forward,
        in a step of its own."""
        if not self._is_open and self._reaches_parameters():
            self._begin_in_step()
        self._queue_end()

    def _reaches_parameters(self):
        """Returns True if the backward pass that runs leaves gradients in parameters."""
        try:
            return any(map(torch._C._will_engine_execute_node, self._nodes))
        except RuntimeError:  # torch.autograd.grad leaves none.
            return False

    def _make_layers(self, modules, rows):
        begin_backward = WeakCall(self._begin_backward)

        def kind_of(name):
            if name in modules:
                return lambda slots: factors.FactorLayer(
                    slots, modules[name], begin_backward, rows.get(name, 0) * self.passes)
            return self._kind_of(name)

        return layout.layers_of(self._named, kind_of)

    def _kind_of(self, _):
        return layout.TorchLayer

    def _find_strangers(self):
        """Returns the model's trained parameters that no layer has, by their names, with the
        number of their changes."""
        if self._model is None:
            return {}
        known = {id(parameter) for _, parameter in self._named}
        return {name: (parameter, parameter._version)
                for name, parameter in self._model.named_parameters()
                if parameter.requires_grad and id(parameter) not in known}

    def _connect(self):
        slots = sorted((slot for layer in self._layers for slot in layer.slots),
                       key=lambda slot: slot.index)
        sparse = layout.sparse_weights(self._model)
        for slot in slots:
            slot.is_sparse = id(slot.parameter) in sparse
        kinds = state.kinds_of_state(self._optimizers, sparse)
        self._alike = Alike(self._optimizers, [slot for slot in slots if slot.index >= 0],
                            "" if kinds is not None else state.class_names(self._optimizers))
        if kinds is None:
            _log.warning("the state of %s is not known: no worker can join later, and a "
                         "checkpoint does not have it", state.class_names(self._optimizers))
        tensor_names, number_names = kinds or ([], [])
        self._extras = state.Extras(self._optimizers, slots, number_names)
        trained = list(self._layers)
        statistics = (layout.statistics_layer(self._model, self._device)
                      if self._model is not None else None)
        # Layers are in the order of forward. What is pushed last and needed first begins.
        if statistics is not None:
            self._layers.insert(0, statistics)
        if self._deferred is not None:
            layout.check_separate(self._layers)
        bound = [self._extras.layer(len(tensor_names)),
                 *(layer.bind(len(tensor_names)) for layer in self._layers)]
        self._state = state.BoundState(self._optimizers, trained, tensor_names)
        self._state.adopt_all()
        self._extras.write()
        strides = [layout.wire_name(f"{slot.name}{slot.form}") for slot in slots if slot.form]
        self._options.settings = {
            **self._options.settings, "backward_passes_per_step": self.passes,
            "memory_format": "; ".join(strides)[:200] or "contiguous"}
        self._options.scales_loss = True
        if self._shares_gpu and not self._options.share_memory_bytes:
            self._options.share_memory_bytes = torch.cuda.mem_get_info(self._device)[1]
        self._options.optimizer_has_state = bool(tensor_names)  # Said above if not known.
        for index, layer in enumerate(self._layers):
            layer.index = index + 1
            for slot in layer.slots:
                if slot.index >= 0:
                    self._of_parameter[id(slot.parameter)] = layer, slot
                    self._watchers[slot.index] = WeakCall(self._note_read, None, layer, slot)
        self._client = Client(bound, stream=self._stream(), **vars(self._options))
        try:
            if self._deferred is not None:
                self._deferred.hook(self._model, self._layers)
            self._take_over()
            self._other_buffers = self._compare_buffers()
        except BaseException:
            self._client.close()
            raise
        self._versions = self._versions_now()
        self._signal = LeaveSignal()

    @torch.no_grad()
    def _take_over(self):
        """Takes what the job has written to the layers' memory."""
        self._differences = self._extras.read_groups()
        self._state.restore(self._extras.numbers())
        for layer in self._layers:
            layer.take_over()

    def _compare_buffers(self):
        """Returns the names of the model's buffers that have other values than those of the first
        worker had when it joined, but for running statistics, which the job gives to all."""
        if self._model is None:
            return []
        found = dict(layout.other_buffers(self._model, self._device))
        own = checksums(found)
        return differing(found, own, self._client.gather(own)[0])

    def _judge_start(self):
        """Looks, in this worker's first step, at what differs from the job."""
        differences, self._differences = self._differences, []
        state.judge_numbers(differences, self.step_info, self._client)
        buffers, self._other_buffers = self._other_buffers, []
        if buffers and self.step_info.step == 0:
            reason = (f"the buffers {', '.join(buffers)} of the model have other values than "
                      "those of the first worker, so that replicas would differ: call "
                      "torch.manual_seed with the same number on all workers before the model is "
                      "made, or load one state_dict everywhere. A buffer that is to differ is "
                      "filled after the optimizer was wrapped")
            self._client.abort(reason)
            raise ModelMismatch(reason, FAILED_PRECONDITION)

    def _stream(self):
        """Returns the number of torch's current stream; None without a GPU."""
        if self._device.type != "cuda":
            return None
        return torch.cuda.current_stream(self._device).cuda_stream

    @property
    def _shares_gpu(self):
        return self._device.type == "cuda" and bool(self._options.share)

    def _tell_memory(self):
        """Tells other jobs on this GPU what memory of it this process keeps, and needs besides in
        its turn. Called before the last push of a step, which ends the turn."""
        if not self._shares_gpu:
            return
        if self._options.share_release:
            torch.cuda.empty_cache()
        kept = torch.cuda.memory_reserved(self._device)
        most = torch.cuda.max_memory_reserved(self._device)
        if (kept, most) != self._told_memory:
            self._told_memory = kept, most
            self._client.set_device_memory(kept, max(0, most - kept))

    # ---- Steps.

    def begin_step(self):
        """Begins a step of the job, unless one is open, and returns it."""
        if self._options is None:
            self.step_info = Step(self.alone_steps, 0, 1, 0, 1, self.alone_steps, 1.0, False)
        else:
            self._begin()
        return self.step_info

    def _begin(self):
        """Begins a step of the job, unless one is open."""
        if self._is_open:
            return
        with torch.no_grad():
            self._check_strangers()
            self.step_info = self._client.begin_step(stream=self._stream())
            self._leave_if_asked()
            if self.step_info.went_back:
                if self._deferred is not None:
                    self._deferred.forget()
                self._take_over()
                self._alike.forget()
            if self._differences or self._other_buffers or self.rounds == 0:
                self._judge_start()
            self._is_open = True
            self._begin_passes()

    def _begin_passes(self):
        """Forgets the gradients of the open step, of which none was sent."""
        self._passes_done = 0
        for layer in self._layers:
            if not self._is_pending(layer):
                layer.begin(self._client)

    def _is_pending(self, layer):
        """Returns True if the layer's mean of the last step was not waited for."""
        return self._deferred is not None and layer in self._deferred

    @property
    def _is_last_pass(self):
        return not self.accumulates and self._passes_done + 1 >= self.passes

    def _begin_backward(self):
        self._begin_in_step()
        self._queue_end()

    def _begin_in_step(self):
        """Begins a step, unless one is open, where its forward is over."""
        if not self._is_open:
            self._begin()
            if self.step_info.went_back:
                raise JobWentBack(
                    "the job has gone back to a checkpoint, so that this backward is of "
                    "other parameters: do the step again, beginning with its forward",
                    FAILED_PRECONDITION)

    def _queue_end(self):
        """Queues `_end`, to be called when this backward pass is done."""
        if not self._ends:
            self._ends = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
            for layer in self._layers:
                if layer.may_have_factors and not self._is_pending(layer):
                    layer.begin_backward()

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

    def begin_zero(self):
        """Called before the program's optimizer sets the gradients to zero."""
        self._release()
        for layer in self._layers:
            if layer.may_have_factors and layer.pushed is None:
                layer.drop_parts()

    def drop_gradients(self):
        """Forgets gradients that were accumulated in the open step, when the caller sets
        them to zero."""
        if self._deferred is not None:
            self._deferred.drop_gradients()
        for layer in self._layers:
            if not self._is_pending(layer):
                layer.note_zero()
        if self._is_open and not self._ends and all(
                layer.pushed is None for layer in self._layers):
            self._begin_passes()

    def _on_gradient(self, parameter):
        """Called when a parameter's gradient is accumulated."""
        layer, slot = self._of_parameter[id(parameter)]
        if self._is_pending(layer):
            raise NereusError(
                f'parameter {slot.name} has a gradient of a graph that is older than its '
                'update: with overlap="dear", do all backward passes of a step before its last '
                "one, or call optimizer.synchronize() before the forward that makes the graph",
                FAILED_PRECONDITION)
        self._begin_backward()
        if layer.may_have_factors:
            layer.note_accumulated()
        if watched.raw_gradient(parameter) is None and not layer.has_withheld():
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

    @torch.no_grad()
    def _push(self, layer):
        try:
            self._state.adopt(layer)
            layer.send(self._client, self.step_info, self._stream())
            if self._ends:
                self._watch_sent(layer)
        except JobWentBack:
            self._is_open = False  # The next forward begins the step after the checkpoint.
            self._release()
            raise

    def _release(self):
        """Ends the watch for reads of gradients."""
        for layer in self._layers:
            for slot in layer.slots:
                watched.release(slot.parameter)

    def _watch_sent(self, layer):
        """Lets a program that reads a gradient in the rest of the backward pass have this
        worker's own."""
        for slot in layer.slots:
            if slot.index >= 0:
                watched.watch(slot.parameter, self._watchers[slot.index])

    def _note_read(self, layer, slot, sets):
        layer.note_read(slot, sets)
        self._looks = True
        for each in self._layers:
            each.copies = True

    @torch.no_grad()
    def _end(self):
        """Ends a backward pass: after the last one of a step, waits for all means, unless
        updates are deferred."""
        has_any, self._ends, self._has_any = self._has_any, False, False
        if not has_any:  # torch.autograd.grad, which leaves gradients alone.
            return
        if not self._is_last_pass:
            self._passes_done += 0 if self.accumulates else 1
            for layer in self._layers:
                layer.begin_pass()
            self._mark()
            return
        self._finish_step()

    def _finish_step(self):
        """Pushes the layers that were not pushed, and waits for all means, unless updates are
        deferred."""
        try:
            self.finish()
            for layer in reversed(self._layers):
                if layer.pushed is None:
                    self._push(layer)
            self._release()
            for layer in self._layers:
                layer.end_backward(self._looks)
            self._tell_rows()
            self._extras.write()
            adds = any(layer.adds for layer in self._layers if layer.may_have_factors)
            self._extras.write_flags(self._alike.flags(adds, self.rounds == 0),
                                     self.step_info.loss_scale)
            self._tell_memory()
            self._client.push(0, self.step_info, self._extras.gradient,
                              stream=self._stream())
            self._step_sent, self._used = self.step_info, None
            if self._deferred is not None:
                self._deferred.begin(self._layers)
            else:
                self._client.wait_all(self.step_info, stream=self._stream())
                for layer in self._layers:
                    self._give_mean(layer)
                self._mark()
        finally:
            self._is_open = False
        self.rounds += 1

    def _tell_rows(self):
        """Tells the job the rows of factors, when they have changed. In time for the second step
        that is before the first one is done."""
        rows = [0] + [layer.rows if layer.may_have_factors else 0 for layer in self._layers]
        if rows != self._told_rows and any(rows):
            self._told_rows = rows
            self._client.set_factor_rows(rows)

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
            layer.begin(self._client)
        return self.skipped

    def _give_mean(self, layer):
        if self._used is None:
            self._used, flags = self._extras.read_flags()
            self._judge(flags)
            self.skipped = self.may_skip and self._client.skipped(self._step_sent)
        if self.skipped:
            layer.skip()
        else:
            layer.distribute(lambda slot: self._used[slot.index])
        layer.pushed = None

    # ---- Gradients that no backward has averaged.

    def _slots(self):
        """Yields the slots of all parameters."""
        for layer in self._layers:
            for slot in layer.slots:
                if slot.index >= 0:
                    yield slot

    def _mark(self):
        """Notes the gradients as they are now."""
        if self._deferred is None:
            self._alike.mark()

    @torch.no_grad()
    def end_step(self, rounds, is_asked):
        """Does a step of the job if there was none since `rounds`: backward has reached no
        parameter on this worker, which counts as zero, or it came less often than
        backward_passes_per_step. Called before an update.

        is_asked: True if the program asks for the average of what it has put into .grad.
        Errors: NereusError, it has put gradients there and does not ask.
        """
        if self._client is None or self.rounds != rounds:
            return
        for slot in self._slots():
            slot.is_elsewhere()  # After a change of type torch calls no hook.
        changed = self._alike.changed() if self._deferred is None else []
        if changed and not is_asked:
            raise NereusError(
                f"the gradient of parameter {changed[0].name} was set or changed by the program "
                "since the last backward pass, and is not the mean over all workers: call "
                "optimizer.synchronize() after gradients are set and before they are clipped or "
                "used, on all workers alike, and they are averaged", FAILED_PRECONDITION)
        self._begin_in_step()
        self.finish()
        for layer in self._layers:
            if layer.may_have_factors and layer.slots[0] in changed:
                layer.forget_before()
            elif layer.may_have_factors and not layer.slots[0].used:
                layer.take_all()
        for slot in self._slots():
            slot.used = slot.used or watched.raw_gradient(slot.parameter) is not None
        self._finish_step()
        self._alike.is_late = not is_asked

    def synchronize(self, rounds):
        """Does a step of the job if there was none since `rounds`; with updates in the next forward
        only if it was begun. Waits for all means."""
        if self._is_open or self._deferred is None:
            self.end_step(rounds, is_asked=True)
        self.finish()

    def check_update(self):
        """Checks what the optimizer is about to use. Errors: NereusError."""
        if self._client is None:
            return
        for optimizer in self._optimizers:
            layout.check_known(optimizer, self._of_parameter)
        self._check_strangers()
        if self._deferred is None and self._used is not None:
            self._alike.check_update(self._used)

    def note_update(self):
        """Called after an update."""
        if self._client is not None:
            self._alike.note_update()
            self._mark()

    def _judge(self, flags):
        """Ends the job if the workers' loops differ. Errors: NereusError, they do."""
        reason = self._alike.judge(flags, self._step_sent.step)
        if reason:
            self._client.abort(reason)
            raise NereusError(reason, FAILED_PRECONDITION)

    def _check_strangers(self):
        """Checks that nothing updates trained parameters of the model whose gradients are not
        averaged."""
        for name, (parameter, version) in self._strangers.items():
            if parameter._version == version:
                continue
            self._strangers[name] = parameter, parameter._version
            if parameter.grad is not None:
                raise NereusError(
                    f"parameter {name} of the model was changed, has a gradient of this worker "
                    "alone, and is not in the optimizer that was wrapped: give "
                    "DistributedOptimizer a list of all optimizers of the model, or freeze it",
                    FAILED_PRECONDITION)

    # ---- For the optimizer.

    @property
    def defers(self):
        """True if updates wait for the next forward."""
        return self._deferred is not None

    def defer_step(self, optimizer, step):
        """Does a step of an optimizer when the means are there. step: function without
        arguments, which updates the parameters of all its groups."""
        self._deferred.step(optimizer, step)

    def finish(self):
        """Waits for all means of the last step, and updates the parameters."""
        if self._deferred is not None:
            self._deferred.finish_all()

    def parameters(self):
        """Returns the parameters of all layers."""
        return [slot.parameter for slot in self._slots()]

    def plan(self):
        """Returns a list of dicts, one for each layer: its name, how it travels, rows of its
        factors (0: none), and for a Linear without factors the reason."""
        if self._client is None:
            return []
        found = []
        for layer, reported in zip(self._layers, self._client.report()["layers"][1:]):
            reason, rows = self._reasons.get(layer.slots[0].name, ""), 0
            if layer.may_have_factors:
                reason, rows = layer.reason, max(0, layer.rows)
                if not reason and rows == 0:
                    reason = "no step has had its gradient yet, so that its rows are not known"
            found.append({"name": layer.name, "scheme": reported["scheme"],
                          "wire": reported["wire"], "rows": rows, "reason": reason})
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
        self._check_strangers()
        if self.rounds == 0 and not early:
            self._check_untrained()
        with torch.no_grad():
            self._state.adopt_all()
            self._extras.write()
        try:
            self._client.leave(stream=self._stream(), early=early)
        finally:
            self.close()

    def _check_untrained(self):
        """Checks that parameters are those of all workers, although no gradient was averaged."""
        if self._versions == self._versions_now():
            return
        own = checksums({slot.name: slot.parameter for slot in self._slots()})
        if all(each == own for each in self._client.gather(own)):
            return
        reason = ("parameters were changed, and no gradient was averaged: workers have trained by "
                  "themselves. Gradients are averaged in backward(), or in "
                  "optimizer.synchronize() after they were set by other means")
        self._client.abort(reason)
        self.close()
        raise NereusError(reason, FAILED_PRECONDITION)

    def _versions_now(self):
        return [slot.parameter._version for slot in self._slots()]

    def close(self):
        """Frees the client, without leaving the job."""
        if self._client is not None:
            self._signal.close()
            self._client.close()
