"""Lobby: gatherings of the processes that were started together, before they join a job."""

import atexit
import ctypes
import os
import weakref

from . import _launcher, _log, _native, _waits, arguments
from .errors import FAILED_PRECONDITION, InvalidArgument, NereusError
from .options import Options, native_options


class _Handle:
    """Lobby of the library. The library writes its pointer into the handle, and close may be
    called again: an exception of Ctrl-C, which may come between any two lines, loses no
    lobby."""

    def __init__(self, library):
        self.library = library
        self.pointer = ctypes.c_void_p()
        self.is_closed = False

    def close(self):
        """Closes the library's lobby. Does nothing in a forked child."""
        self.is_closed = True
        if not _native.is_forked():
            self.library.nereus_lobby_close(self.pointer)  # Ignores a closed lobby.


class Lobby:
    """Gatherings of the processes that a launcher has started together, before they join their
    job. A process needs its model to make a Client; until then, this is the way to agree on
    something, or to wait for each other:

        with nereus.Lobby() as lobby:
            if lobby.rank == 0:
                download()
            seed = lobby.gather(os.urandom(8))[0]  # That of process 0, when all are here.
        ...  # Make the model, and nereus.Client.

    A process that was killed and is started again gets the values that the first processes
    gathered, one gathering after the other. If a process dies, the others go on waiting: the
    launcher starts it again, or ends the job. All processes must gather equally often before
    they make their clients, at most 64 times.

    rank: number of this process among those that were started together.
    count: number of these processes.
    """

    def __init__(self, count=None, **options):
        """Makes a lobby; connects in the first gather.

        count: number of the processes that were started together. None: that of the launcher.
        options: fields of nereus.Options. The variables of `nereusctl run`, torchrun, mpirun
        and srun give those that are absent, `rank` among them.

        Errors: InvalidArgument, also if no launcher has set the rank or the count.
        """
        _native.check_not_forked()
        self._options = Options.from_environment(**options)
        self.rank = self._options.rank
        self.count = _count() if count is None else arguments.integer("count", count, 32)
        if self.rank is None or self.count is None:
            name, variable = ("rank", "NEREUS_RANK") if self.rank is None else (
                "count", "NEREUS_LOCAL_SIZE")
            raise InvalidArgument(
                f"no launcher has set the {name} of this process: start the program by "
                f"`nereusctl run`, torchrun, mpirun or srun, give `{name}`, or set {variable}")
        self._handle = _Handle(_native.any_library())
        self._closer = weakref.finalize(self, self._handle.close)
        self._closer.atexit = False  # _close_all does that.
        try:
            _native.note_client()
            _log.start()
            settings = native_options(self._options)
            _open_handles.add(self._handle)
            _native.check(self._handle.library.nereus_lobby_enter(
                ctypes.byref(settings), self.count, ctypes.byref(self._handle.pointer)))
        except BaseException:
            self.close()
            raise

    def __repr__(self):
        return f"nereus.Lobby(job={self._options.job!r}, rank={self.rank}, count={self.count})"

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        self.close()

    @property
    def closed(self):
        """True after close."""
        return self._handle.is_closed

    def gather(self, value, timeout=None):
        """Collects one value of each process, and returns all of them, a list of bytes by the
        numbers of the processes.

        value: bytes, at most 65536. timeout: in seconds; None: no limit. Errors: Stalled, the
        timeout has passed: call it again; the value of the first call counts, and the text
        names the missing processes. InvalidArgument. Unreachable, no coordinator has answered
        for connect_timeout. JobFinished. Other NereusErrors: the job has failed, it has another
        number of workers than `count`, or the processes do not gather equally often.
        """
        if not isinstance(value, (bytes, bytearray)):
            raise InvalidArgument(f"value is {type(value).__name__}, must be bytes")
        count = ctypes.c_int32()
        code = _waits.wait(
            "gather", lambda part: self._raw("nereus_lobby_gather", bytes(value), len(value),
                                             part, ctypes.byref(count)), timeout)
        # There is no model yet that could mismatch.
        _native.check(code, joining=code != FAILED_PRECONDITION)
        return [self._gathered(index) for index in range(count.value)]

    def _gathered(self, index):
        length = ctypes.c_int64()
        _native.check(self._raw("nereus_lobby_gathered", index, None, 0, ctypes.byref(length)))
        value = ctypes.create_string_buffer(length.value)
        _native.check(self._raw("nereus_lobby_gathered", index, value, length.value,
                                ctypes.byref(length)))
        return value.raw

    def close(self):
        """Frees the lobby. Does nothing the second time."""
        self._handle.close()
        self._closer.detach()
        _open_handles.discard(self._handle)

    def _raw(self, function, *arguments):
        """Makes a call and returns its code."""
        _native.check_not_forked()
        closed = NereusError("the lobby was closed", FAILED_PRECONDITION)
        if self.closed:
            raise closed
        code = getattr(self._handle.library, function)(self._handle.pointer, *arguments)
        # If another thread closes it just before the call, the library knows no such lobby.
        if code != 0 and self.closed:
            raise closed
        return code


def _count():
    """Returns the number of processes that the launcher has started; None if it has set none."""
    launched = _launcher.number(1)
    if launched is not None:
        return launched
    size = os.environ.get("NEREUS_LOCAL_SIZE")
    if size and not size.isdigit():
        raise InvalidArgument(f'the variable NEREUS_LOCAL_SIZE is "{size}", which is not a '
                              "number")
    return int(size) if size else None


# Handles of lobbies that may be open.
_open_handles = set()


def _close_all():
    """Closes the lobbies that are open when the process ends."""
    for handle in list(_open_handles):
        handle.close()


atexit.register(_close_all)
