"""Client of a job: a worker's handle on the parameters that all workers share.

Handle keeps the library's client, and all memory that the library uses. Client is what
users call. Every wait is done in parts (_waits), so that Ctrl-C ends it.
"""

import atexit
import contextlib
import ctypes
import json
import logging
import threading
import weakref
from typing import NamedTuple

from . import _exit, _log, _native, _waits, arguments, memory
from .errors import (FAILED_PRECONDITION, INVALID_ARGUMENT, OUT_OF_RANGE, InvalidArgument,
                     NereusError)
from .layer import BoundLayer
from .options import ROUND_TIMEOUT, Options, native_options

# Outcomes of a push after which the library does not use its arrays.
_REFUSALS = (INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE)


class Step(NamedTuple):
    """Step of the job (StepInfo in worker/public/client.h). This worker's examples begin at
    example (contributions_before + position) * batch."""

    step: int
    position: int
    workers: int
    local_position: int
    local_workers: int
    contributions_before: int
    loss_scale: float
    went_back: bool
    should_leave: bool = False


class Traits(NamedTuple):
    """Properties of the job (JobTraits in worker/public/client.h)."""

    rank: int
    updates_parameters: bool
    may_skip: bool
    sparse: bool
    uses_adam: bool
    learning_rate: float
    momentum: float
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float


class _Push:
    """Arrays of one push, which the library uses until the wait for it returns. They stay
    until the layer's next push, because the mean gradient may lie in them. Arrays of a
    round that failed stay until the client is closed."""

    def __init__(self, step, arrays):
        self.step = step
        self.arrays = arrays
        self.is_done = False


# Handles of clients that may be open. They keep the memory even if an exception takes all
# other references to it.
_open_handles = set()


class Handle:
    """Client of the library, and all memory that it uses.

    The library writes its pointer into the handle, and close may be called again: an
    exception of Ctrl-C, which may come between any two lines, loses no client.
    """

    def __init__(self, library, layers, name):
        self.library = library
        self.name = name  # Name of the client in messages.
        self.pointer = ctypes.c_void_p()
        self.is_closed = False  # True once close was called.
        self.has_left = False  # True after leave or abort.
        self.layers = layers  # BoundLayer of each layer.
        # Pushes of each layer in their order, as keys: any thread may add and remove them.
        self.pushes = [{} for _ in layers]
        self._closing = threading.RLock()  # A signal's handler may call close within close.

    def connect(self, settings, stream):
        """Begins to join the job."""
        structs = (_native.Layer * len(self.layers))(*(layer.struct for layer in self.layers))
        _open_handles.add(self)
        _native.check(self.library.nereus_client_connect(
            ctypes.byref(settings), structs, len(structs), stream,
            ctypes.byref(self.pointer)))

    def close(self):
        """Closes the library's client, and then gives its memory back. Does nothing in a
        forked child."""
        self.is_closed = True
        if _native.is_forked():
            return
        with self._closing:
            self.library.nereus_client_close(self.pointer)  # Ignores a closed client.
            self.layers = []
            for pushes in self.pushes:
                pushes.clear()
            _open_handles.discard(self)


def _close_forgotten(handle):
    """Closes the client of a Client that the program has dropped, or that is open when the
    process ends."""
    if not (handle.is_closed or handle.has_left or _native.is_forked() or _exit.has_failed()):
        logging.getLogger("nereus").warning(
            "%s was never closed, which looks to the job like a worker that died: call "
            "leave() and close(), or use it in a with statement", handle.name)
    handle.close()


def _number_of(step):
    """Returns the number of a step, which is a Step or its number."""
    return step.step if isinstance(step, Step) else arguments.integer(
        "step", step, what="a nereus.Step or its number")


class Client:
    """Worker of a job, for models of any framework.

        with nereus.Client([nereus.Layer("line", "vector", line)]) as client:
            while (step := client.begin_step()).step < 1000:
                ...  # Forward and backward write `gradient`.
                client.push(0, step, gradient)
                client.wait_all(step)

    Arrays are float32, contiguous and writable: numpy.ndarray, array.array, torch.Tensor,
    or anything with the buffer protocol, DLPack or __cuda_array_interface__. They are used
    without a copy. `layer` is the index or the name of a layer. `step` is a Step or its
    number. `timeout` is in seconds; None waits as long as Nereus does. `stream` is the
    cudaStream_t, as a number, that orders the call with a GPU's work.

    Errors of all calls: JobWentBack: call begin_step, and do its step. WorkerLost: close,
    and make a new client. InvalidArgument: correct the call. Stalled: the timeout has
    passed, and the call may be made again. Other NereusErrors: the job has ended, or the
    call came at the wrong time.

    The end of a with statement leaves the job; with an exception, and in close() without
    leave(), the job sees a worker that died and goes on without it. Any thread may make any
    call.
    """

    def __init__(self, layers, *, stream=None, **options):
        """Joins the job. Waits until the job has all its workers, and its parameters are in
        the layers' arrays.

        layers: all layers of the model, as nereus.Layer, in forward order.
        options: fields of nereus.Options. Variables of the environment, which `nereusctl
        run` sets, give those that are absent.

        Errors: InvalidArgument; Unreachable, no coordinator answered; ModelMismatch, the
        job has another model or setting; JobFinished.
        """
        _native.check_not_forked()
        self._options = Options.from_environment(**options)
        bound = [BoundLayer(index, layer) for index, layer in enumerate(layers)]
        if not bound:
            raise InvalidArgument("layers has no layer, must have at least 1")
        self._indices = {layer.name: index for index, layer in enumerate(bound)}
        self._lengths = [layer.parameters.length for layer in bound]
        stream = arguments.stream(stream)
        settings = _settings(self._options, bound)
        self._handle = Handle(_native.library(cuda=settings.memory == _native.MEMORY_CUDA),
                              bound, repr(self))
        self._closer = weakref.finalize(self, _close_forgotten, self._handle)
        self._closer.atexit = False  # _close_all does that.
        try:
            _native.note_client()
            _exit.note_new_client()
            _exit.watch()
            _log.start()
            self._handle.connect(settings, stream)
            self._await("connect", "nereus_client_wait_connected", (), (stream,),
                        timeout=None, joining=True)
            self._traits = self._read_traits()
        except BaseException:
            self.close()
            raise

    def __repr__(self):
        return f"nereus.Client(job={self._options.job!r}, name={self._options.name!r})"

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        try:
            if kind is None and not self._handle.has_left and not self.closed:
                self.leave()
        finally:
            self.close()

    @property
    def traits(self):
        """Properties of the job, which never change."""
        return self._traits

    @property
    def closed(self):
        """True after close."""
        return self._handle.is_closed

    def begin_step(self, timeout=None, *, stream=None):
        """Begins the next step and returns it. Waits while the job changes its members, by
        default without a limit. The caller pushes every layer in each step that it begins.
        Only its last step may have no push at all, if leave follows."""
        step = _native.Step()
        self._await("begin_step", "nereus_client_begin_step", (),
                    (arguments.stream(stream), ctypes.byref(step)), timeout)
        return Step(*(getattr(step, name) for name in Step._fields[:-2]),
                    bool(step.went_back), bool(step.should_leave))

    def push(self, layer, step, gradient, *, stream=None):
        """Contributes `gradient` of a layer and returns at once. The library uses the array
        until the wait for the layer returns; the caller must not touch it before. With
        optimizer="worker", the mean gradient replaces it.

        A layer with factors may be pushed so, too, if the step has more rows than
        factor_rows says: other workers may push factors in the same step."""
        index, name = self._layer(layer)
        values = self._gradient(name, index, gradient)
        self._push(index, step, (values,), "nereus_client_push", values.address,
                   values.length, arguments.stream(stream))

    def push_factors(self, layer, step, output_gradient, input, gradient=None, *,
                     stream=None):
        """Contributes the gradient of a layer with factors, as two matrices: its weight
        gradient is output_gradient (rows x m), transposed, times input (rows x n).

        gradient: array for the mean gradient. May be None if the job updates the
        parameters."""
        index, name = self._layer(layer)
        given = memory.view(f"the output gradient of layer {name}", output_gradient,
                            writable=False)
        inputs = memory.view(f"the input of layer {name}", input, writable=False)
        means = None if gradient is None else self._gradient(name, index, gradient)
        factors = _native.Factors(
            output_gradient=given.address, output_gradient_length=given.length,
            input=inputs.address, input_length=inputs.length)
        self._push(index, step, (given, inputs, means), "nereus_client_push_factors",
                   ctypes.byref(factors), means.address if means else None,
                   means.length if means else 0, arguments.stream(stream))

    def set_factor_rows(self, rows):
        """Tells the job what this caller has seen of its layers' factors: a number for each
        layer, in the order of `layers`. A number of rows; 0: nothing is known, or the layer
        has no factors; -1: the layer's gradient is no product of factors any more, and goes
        as a gradient from now on.

        A caller that joined with rows=0 calls this before the last push of its first step:
        the next step can then go by factors. Calls add up: -1 stays, and of two numbers the
        larger one counts."""
        numbers = [arguments.integer(f"rows[{index}]", number)
                   for index, number in enumerate(rows)]
        self._call("nereus_client_set_factor_rows", (ctypes.c_int64 * len(numbers))(*numbers),
                   len(numbers))

    def factor_rows(self, layer):
        """Returns the rows that push_factors must push of the layer, if the plan sends its
        factors in this step; otherwise 0: a caller that has the gradient may as well push
        it. Ask after begin_step, which can change the plan."""
        rows = ctypes.c_int64()
        self._call("nereus_client_factor_rows", self._layer(layer)[0], ctypes.byref(rows))
        return rows.value

    def takes_factors(self, layer):
        """Returns True if the plan sends the layer's factors (factor_rows)."""
        return self.factor_rows(layer) > 0

    def wait(self, layer, step, timeout=None, *, stream=None):
        """Waits until round `step` of a layer is done: its parameters, or its mean gradient,
        are there, and what was pushed belongs to the caller again. None: waits for
        round_timeout."""
        index, name = self._layer(layer)
        self._await(f"wait for layer {name}", "nereus_client_wait", (index, _number_of(step)),
                    (arguments.stream(stream),), self._wait_limit(timeout))
        self._note_done(index, _number_of(step))

    def wait_forward(self, layer, timeout=None, *, stream=None):
        """Waits for the last round of a layer, before its next forward. None: waits for
        round_timeout."""
        index, name = self._layer(layer)
        self._await(f"wait_forward for layer {name}", "nereus_client_wait_forward",
                    (index,), (arguments.stream(stream),), self._wait_limit(timeout))
        self._note_done(index, None)

    def wait_all(self, step, timeout=None, *, stream=None):
        """Waits for round `step` of all layers. None: waits for round_timeout."""
        self._await("wait_all", "nereus_client_wait_all", (_number_of(step),),
                    (arguments.stream(stream),), self._wait_limit(timeout))
        for index in range(len(self._indices)):
            self._note_done(index, _number_of(step))

    def mean(self, layer):
        """Returns the layer's mean gradient, as a read-only memoryview of floats, after the
        wait, with optimizer="worker" and memory of the host. Valid until the layer's next
        push, and until close."""
        index, name = self._layer(layer)
        address, length = ctypes.c_void_p(), ctypes.c_int64()
        self._call("nereus_client_mean", index, ctypes.byref(address),
                   ctypes.byref(length))
        if not address.value:
            raise NereusError(f"layer {name} has no mean gradient yet: push it, and wait for "
                              "it", FAILED_PRECONDITION)
        return memory.float_view(address.value, length.value,
                                 (self, list(self._handle.pushes[index])))

    def skipped(self, step):
        """Returns True if the job skipped `step` because of a NaN. The caller then leaves
        parameters and state as they are, too."""
        skipped = ctypes.c_int32()
        self._call("nereus_client_skipped", _number_of(step), ctypes.byref(skipped))
        return bool(skipped.value)

    @contextlib.contextmanager
    def device_turn(self, timeout=None):
        """Takes the turn at the device that this worker shares with other jobs (Options.share),
        for computing outside of a step, such as an evaluation:

            with client.device_turn():
                evaluate(batch)

        Other jobs wait meanwhile: take a turn for each batch. On a GPU, wait for the work that
        you have queued before the end. timeout: in seconds; None: no limit."""
        self._await("device_turn", "nereus_client_take_turn", (), (), timeout)
        try:
            yield
        finally:
            self._call("nereus_client_give_turn")

    def set_device_memory(self, resident_bytes, turn_bytes=0):
        """Says what memory of the shared device this worker keeps, and what it needs besides in
        its turn, in place of Options.share_resident_bytes and share_turn_bytes: a job that comes
        later waits for its first turn if its memory does not fit beside it. Does nothing if the
        device is not shared."""
        self._call("nereus_client_set_device_memory",
                   arguments.integer("resident_bytes", resident_bytes, 64),
                   arguments.integer("turn_bytes", turn_bytes, 64))

    def checkpoint(self):
        """Requests a checkpoint of the next step that no worker has begun."""
        self._call("nereus_client_checkpoint")

    def gather(self, value, timeout=None):
        """Collects one value of each worker, and returns all of them, a list of bytes by
        Step.position: a barrier, and a way to average a few numbers.

        Workers that have pushed all layers of the same last step gather together; before their
        first pushes, those that begin with the same step. They must gather equally often
        between the pushes of two steps. A worker that joins later gets what the first workers
        gathered before their first pushes.

        value: bytes, at most 65536. timeout: in seconds; None: no limit. After Stalled, call
        it again: the value of the first call counts.
        """
        if not isinstance(value, (bytes, bytearray)):
            raise InvalidArgument(f"value is {type(value).__name__}, must be bytes")
        count = ctypes.c_int32()
        self._await("gather", "nereus_client_gather", (bytes(value), len(value)),
                    (ctypes.byref(count),), timeout)
        return [self._gathered(index) for index in range(count.value)]

    def _gathered(self, index):
        length = ctypes.c_int64()
        self._call("nereus_client_gathered", index, None, 0, ctypes.byref(length))
        value = ctypes.create_string_buffer(length.value)
        self._call("nereus_client_gathered", index, value, length.value,
                   ctypes.byref(length))
        return value.raw

    def report(self):
        """Returns costs, traffic and measurements as a dict (docs/c_api.md, "Reports")."""
        capacity = 64 * 1024
        while True:
            text, length = ctypes.create_string_buffer(capacity), ctypes.c_int64()
            self._call("nereus_client_report_json", text, capacity, ctypes.byref(length))
            if length.value < capacity:
                return json.loads(text.value)
            capacity = length.value + 4096  # A later report may be longer.

    def abort(self, reason):
        """Ends the job for all workers, whose calls then raise an error with `reason`. A
        worker that only stops itself calls leave. If the job had ended before, because of an
        error with another code than FAILED_PRECONDITION, raises that error."""
        code = self._raw("nereus_client_abort", str(reason).encode())
        self._handle.has_left = True
        if code != FAILED_PRECONDITION:  # The library's answer to an abort.
            _native.check(code)

    def leave(self, timeout=None, *, stream=None, early=False):
        """Leaves the job after the last pushed step. Returns when the other workers are
        done, or need nothing more from this one. After a timeout, only leave and close may
        follow. early: the job is not done, and goes on without this worker: after SIGTERM
        (LeaveSignal), or if Step.should_leave."""
        function = "nereus_client_leave_early" if early else "nereus_client_leave"
        self._await("leave", function, (), (arguments.stream(stream),), timeout)
        self._handle.has_left = True

    def close(self):
        """Frees the client. Afterwards the arrays belong to the caller. Waits until other
        threads have left the client's calls. Does nothing the second time."""
        self._handle.close()
        self._closer.detach()

    # ---- Calls of the library.

    def _raw(self, function, *arguments):
        """Makes a call and returns its code."""
        _native.check_not_forked()
        if self.closed:
            raise InvalidArgument("the client was closed")
        handle = self._handle
        return getattr(handle.library, function)(handle.pointer, *arguments)

    def _call(self, function, *arguments):
        _native.check(self._raw(function, *arguments))

    def _await(self, what, function, before, after, timeout, joining=False):
        """Makes a call that waits, in parts, until it is done or `timeout` has passed. Its
        arguments are `before`, the time of a part, and `after`."""
        code = _waits.wait(
            what, lambda part: self._raw(function, *before, part, *after), timeout)
        _native.check(code, joining)

    def _wait_limit(self, timeout):
        """Returns the time of one wait, as Nereus limits it."""
        limit = self._options.round_timeout
        if limit is None:
            limit = ROUND_TIMEOUT
        return limit if timeout is None else min(arguments.seconds("timeout", timeout), limit)

    def _read_traits(self):
        traits = _native.Traits()
        self._call("nereus_client_traits", ctypes.byref(traits))
        return Traits(traits.rank, *(bool(getattr(traits, name))
                                     for name in Traits._fields[1:5]),
                      *(getattr(traits, name) for name in Traits._fields[5:]))

    # ---- Layers and their pushes.

    def _layer(self, layer):
        """Returns the index and the name of a layer, which is either of them."""
        names = list(self._indices)
        if isinstance(layer, str):
            if layer not in self._indices:
                raise InvalidArgument(f"there is no layer {layer}; the model has "
                                      + ", ".join(names))
            return self._indices[layer], layer
        layer = arguments.integer("layer", layer, what="the index or the name of a layer")
        if not 0 <= layer < len(names):
            raise InvalidArgument(f"there is no layer {layer}: the model has {len(names)} "
                                  "layers, numbered from 0")
        return layer, names[layer]

    def _gradient(self, name, index, gradient):
        return memory.view(f"the gradient of layer {name}", gradient,
                           length=self._lengths[index])

    def _push(self, index, step, arrays, function, *arguments):
        """Makes a call that pushes `arrays`. Keeps them before the call: Ctrl-C may raise
        an exception as soon as the library has them."""
        pushes, push = self._handle.pushes[index], _Push(_number_of(step), arrays)
        pushes[push] = None
        try:
            code = self._raw(function, index, push.step, *arguments)
        except NereusError:  # The library was not called.
            pushes.pop(push, None)
            raise
        if code in _REFUSALS:
            superfluous = [push]
        elif code == 0:
            superfluous = [old for old in list(pushes) if old.is_done]
        else:
            superfluous = []
        for old in superfluous:
            pushes.pop(old, None)
        _native.check(code)

    def _note_done(self, index, step):
        """Notes that a layer's last push is done, if it was in `step`. None: any step."""
        for last in list(self._handle.pushes[index])[-1:]:
            if step in (None, last.step):
                last.is_done = True


def _settings(options, layers):
    """Returns the options as nereus_client_options, and says which layers are on the host
    in a client of a GPU."""
    devices = sorted({layer.device for layer in layers if layer.device != memory.HOST})
    if len(devices) > 1:
        raise InvalidArgument(f"layers are on the GPUs {devices}, must be on one")
    for layer in layers:
        layer.struct.on_host = bool(devices) and layer.device == memory.HOST
    settings = native_options(options)
    if devices:
        settings.memory, settings.device = _native.MEMORY_CUDA, devices[0]
    return settings


def _close_all():
    """Closes the clients that are open when the process ends, before Python frees their
    arrays. They do not leave their jobs: the process may end because of an error, and the
    job would count its work as finished."""
    if _native.is_forked():
        return
    for handle in list(_open_handles):
        _close_forgotten(handle)
    _log.stop()


atexit.register(_close_all)
