"""ctypes view of worker/c_api/nereus.h: the library, its structs, and its errors.

A process loads one library: libnereus.so, or libnereus_cuda.so if its first client has
layers on a GPU. Both at once would register the messages of Nereus twice.
"""

import ctypes
import os
import threading

from .errors import FAILED_PRECONDITION, Forked, LibraryError, error_of

# Version of nereus.h that this file describes.
ABI_VERSION = 4

MEMORY_HOST = 0
MEMORY_CUDA = 1
OPTIMIZERS = {"server": 0, "worker": 1, "any": 2}
LAYER_KINDS = {"vector": 0, "fc": 1, "conv": 2, "embedding": 3}

_text = ctypes.c_char_p
_int32 = ctypes.c_int32
_int64 = ctypes.c_int64
_float = ctypes.c_float
_pointer = ctypes.c_void_p


class Sized(ctypes.Structure):
    """Struct whose first field is its size."""

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(self), **fields)


class Setting(ctypes.Structure):
    _fields_ = [("name", _text), ("value", _text)]


class ClientOptions(Sized):
    _fields_ = [
        ("size", ctypes.c_uint32), ("optimizer", _int32), ("coordinator_address", _text),
        ("job", _text), ("name", _text), ("host", _text), ("node", _text),
        ("control_port", _int32), ("data_port", _int32),
        ("settings", ctypes.POINTER(Setting)), ("settings_count", _int32),
        ("without_shared_memory", _int32), ("means_apart", _int32), ("memory", _int32),
        ("connect_timeout_ms", _int64), ("round_timeout_ms", _int64),
        ("stall_threshold_ms", _int64), ("device", _int32), ("scales_loss", _int32),
        ("staging_bytes", _int64), ("listen", _text), ("http_port", _int32),
        ("without_state", _int32), ("has_rank", _int32), ("rank", _int32), ("share", _text),
        ("share_weight", ctypes.c_double), ("share_limit_ms", _int64),
        ("share_memory_bytes", _int64), ("share_resident_bytes", _int64),
        ("share_turn_bytes", _int64), ("share_with_group", _int32),
        ("share_is_optional", _int32)]


class Layer(Sized):
    _fields_ = [
        ("size", ctypes.c_uint32), ("kind", _int32), ("name", _text), ("m", _int64),
        ("n", _int64), ("parameters_count", _int64), ("rows", _int64),
        ("has_factors", _int32), ("state_arrays", _int32), ("parameters", _pointer),
        ("state", _pointer), ("on_host", _int32), ("reserved", _int32)]


class Step(Sized):
    _fields_ = [
        ("size", ctypes.c_uint32), ("position", _int32), ("step", _int64),
        ("workers", _int32), ("local_position", _int32), ("local_workers", _int32),
        ("loss_scale", _float), ("contributions_before", _int64), ("went_back", _int32),
        ("should_leave", _int32)]


class Traits(Sized):
    _fields_ = [
        ("size", ctypes.c_uint32), ("rank", _int32), ("updates_parameters", _int32),
        ("unused", _int32), ("may_skip", _int32), ("sparse", _int32),
        ("uses_adam", _int32), ("learning_rate", _float), ("momentum", _float),
        ("weight_decay", _float), ("beta1", _float), ("beta2", _float),
        ("epsilon", _float), ("reserved", _int32)]


class Factors(Sized):
    _fields_ = [
        ("size", ctypes.c_uint32), ("reserved", _int32), ("output_gradient", _pointer),
        ("output_gradient_length", _int64), ("input", _pointer), ("input_length", _int64)]


# Types of the arguments of each function that returns a code.
FUNCTIONS = {
    "nereus_set_log_level": (_int32,),
    "nereus_collect_log": (_int32,),
    "nereus_next_log_line": (ctypes.POINTER(_int32), _text, _int64,
                             ctypes.POINTER(_int64)),
    "nereus_client_connect": (ctypes.POINTER(ClientOptions), ctypes.POINTER(Layer),
                              _int32, _pointer, ctypes.POINTER(_pointer)),
    "nereus_client_wait_connected": (_pointer, _int64, _pointer),
    "nereus_client_traits": (_pointer, ctypes.POINTER(Traits)),
    "nereus_client_begin_step": (_pointer, _int64, _pointer, ctypes.POINTER(Step)),
    "nereus_client_push": (_pointer, _int32, _int64, _pointer, _int64, _pointer),
    "nereus_client_push_factors": (_pointer, _int32, _int64, ctypes.POINTER(Factors),
                                   _pointer, _int64, _pointer),
    "nereus_client_set_factor_rows": (_pointer, ctypes.POINTER(_int64), _int32),
    "nereus_client_factor_rows": (_pointer, _int32, ctypes.POINTER(_int64)),
    "nereus_client_wait": (_pointer, _int32, _int64, _int64, _pointer),
    "nereus_client_wait_forward": (_pointer, _int32, _int64, _pointer),
    "nereus_client_wait_all": (_pointer, _int64, _int64, _pointer),
    "nereus_client_mean": (_pointer, _int32, ctypes.POINTER(_pointer),
                           ctypes.POINTER(_int64)),
    "nereus_client_skipped": (_pointer, _int64, ctypes.POINTER(_int32)),
    "nereus_client_checkpoint": (_pointer,),
    "nereus_client_take_turn": (_pointer, _int64),
    "nereus_client_give_turn": (_pointer,),
    "nereus_client_set_device_memory": (_pointer, _int64, _int64),
    "nereus_client_gather": (_pointer, _pointer, _int64, _int64, ctypes.POINTER(_int32)),
    "nereus_client_gathered": (_pointer, _int32, _pointer, _int64, ctypes.POINTER(_int64)),
    "nereus_client_report_json": (_pointer, _text, _int64, ctypes.POINTER(_int64)),
    "nereus_client_abort": (_pointer, _text),
    "nereus_client_leave": (_pointer, _int64, _pointer),
    "nereus_client_leave_early": (_pointer, _int64, _pointer),
    "nereus_lobby_enter": (ctypes.POINTER(ClientOptions), _int32, ctypes.POINTER(_pointer)),
    "nereus_lobby_gather": (_pointer, _pointer, _int64, _int64, ctypes.POINTER(_int32)),
    "nereus_lobby_gathered": (_pointer, _int32, _pointer, _int64, ctypes.POINTER(_int64)),
}


def _declare(library):
    """Sets the types of the library's functions."""
    library.nereus_version.restype = ctypes.c_char_p
    library.nereus_last_error.restype = ctypes.c_char_p
    library.nereus_client_close.restype = None
    library.nereus_client_close.argtypes = (_pointer,)
    library.nereus_lobby_close.restype = None
    library.nereus_lobby_close.argtypes = (_pointer,)
    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = _int32
        function.argtypes = arguments


def _candidates(file):
    """Yields the paths at which the library may be, the first ones first."""
    chosen = os.environ.get("NEREUS_LIBRARY")
    if chosen:
        yield chosen
        return  # Another library than the chosen one would surprise the user.
    yield os.path.join(os.path.dirname(os.path.abspath(__file__)), file)
    yield file  # The loader looks into LD_LIBRARY_PATH, and where the system has libraries.


def load(file):
    """Loads a library and checks its version. Errors: LibraryError, with all places that
    were tried and the loader's reasons."""
    failures = []
    for path in _candidates(file):
        try:
            library = ctypes.CDLL(path)
            version = library.nereus_abi_version()
        except (OSError, AttributeError) as error:
            failures.append(f"{path}: {error}")
            continue
        if version < ABI_VERSION:
            raise LibraryError(
                f"{path} has version {version} of the C interface, and this package needs "
                f"at least {ABI_VERSION}: install a newer Nereus")
        _declare(library)
        return library
    raise LibraryError(
        f"{file} was not found. Set NEREUS_LIBRARY to its path (deploy/install.sh puts it "
        "into PREFIX/lib). Tried:" + "".join(f"\n  {failure}" for failure in failures))


_lock = threading.Lock()
_loaded = None
_has_cuda = False

# True in a process that was forked after its parent had made a client.
_forked = False
_made_client = False


def _after_fork_in_child():
    global _forked, _lock
    _forked = _forked or _made_client
    _lock = threading.Lock()  # A thread of the parent may have held it.


os.register_at_fork(after_in_child=_after_fork_in_child)


def is_forked():
    """Returns True if this process was forked from one with a client."""
    return _forked


def check_not_forked():
    """Raises Forked in a process that was forked from one with a client."""
    if _forked:
        raise Forked(
            "this process was forked from a process with a nereus.Client, whose threads it "
            "does not have: start it by exec, or by multiprocessing's \"spawn\", and "
            "connect in it", FAILED_PRECONDITION)


def library(cuda=False):
    """Returns the library, and loads it at the first call. cuda: it must know memory of a
    GPU."""
    global _loaded, _has_cuda
    with _lock:
        if _loaded is None:
            _loaded = load("libnereus_cuda.so" if cuda else "libnereus.so")
            _has_cuda = cuda
        elif cuda and not _has_cuda and not os.environ.get("NEREUS_LIBRARY"):
            raise LibraryError(
                "a layer is on a GPU, and this process has loaded libnereus.so, which knows "
                "host memory only: connect the client with layers on a GPU first, or set "
                "NEREUS_LIBRARY to the path of libnereus_cuda.so, which knows both")
        return _loaded


def any_library():
    """Returns the library, and loads it at the first call: before the model is made, it is not
    known whether its layers will be on a GPU. Takes libnereus_cuda.so, which knows memory of a
    GPU and of the host, if it is installed."""
    global _loaded, _has_cuda
    with _lock:
        if _loaded is None:
            try:
                _loaded, _has_cuda = load("libnereus_cuda.so"), True
            except LibraryError:
                pass  # A machine without GPUs; library() says what is wrong with the other.
    return library()


def note_client():
    """Says that this process makes a client, so that processes forked from it must not use
    the library."""
    global _made_client
    _made_client = True


def check(code, joining=False):
    """Raises the exception for a code, if it is one of a failure. joining: as for
    errors.error_of."""
    if code != 0:
        text = _loaded.nereus_last_error().decode("utf-8", "replace")
        raise error_of(code, text, joining)
