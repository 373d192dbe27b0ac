"""Address of an array's values: of any framework, without a copy and without its import.

`view` looks for the first of these that the array has: __cuda_array_interface__ (as CuPy,
Numba), torch's data_ptr, the buffer protocol (NumPy, array.array, ctypes),
__array_interface__, and DLPack (TensorFlow and others).
"""

import ctypes
import math
import sys
from typing import Any, NamedTuple, Tuple

from .errors import InvalidArgument


class Memory(NamedTuple):
    """Values of an array. `owner` keeps the memory where it is."""

    address: int
    length: int  # Number of values.
    shape: Tuple[int, ...]
    readonly: bool
    device: int  # Number of the GPU; -1: host memory.
    owner: Any


HOST = -1

_FLOAT_BYTES = 4

# Names of float32 in the buffer protocol, and in the array interfaces.
_FLOAT_FORMATS = ("f", "=f", "@f", "<f" if sys.byteorder == "little" else ">f")
_FLOAT_TYPESTR = ("<f4" if sys.byteorder == "little" else ">f4", "=f4", "|f4")


def view(name, array, writable=True, length=None):
    """Returns the memory of an array's values.

    name: name of the array in messages. writable: the library writes it. length: number of
    values that it must have. Errors: InvalidArgument; the values are not float32, not in
    C order, not aligned, a copy, read-only, none, or of another number.
    """
    memory = _find(name, array)
    if memory.length == 0:
        raise InvalidArgument(f"{name} has shape {memory.shape} and so no value, must have "
                              f"{length or 'at least 1'}")
    if length is not None and memory.length != length:
        raise InvalidArgument(f"{name} has {memory.length} values (shape {memory.shape}), "
                              f"must have {length}")
    if memory.address % _FLOAT_BYTES != 0:
        raise InvalidArgument(f"{name} is at address {memory.address:#x}, must be aligned to "
                              f"{_FLOAT_BYTES} bytes: pass an aligned copy, and keep it")
    if writable and memory.readonly:
        raise InvalidArgument(f"{name} is read-only, must be writable: Nereus writes its "
                              "results there; pass a writable copy")
    return memory


def _find(name, array):
    for reader in (_read_cuda, _read_torch, _read_buffer, _read_interface, _read_dlpack):
        memory = reader(name, array)
        if memory is not None:
            return memory
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    raise InvalidArgument(
        f"{name} is a {kind}, must be an array with the buffer protocol, DLPack or "
        "__cuda_array_interface__: numpy.ndarray, array.array, torch.Tensor")


def _check_type(name, dtype, is_float32):
    if not is_float32:
        raise InvalidArgument(f"{name} has values of type {dtype}, must be float32")


def _check_order(name, shape, strides, item=1):
    """Checks that values lie one after the other. strides: of each dimension, in units of
    `item`; None: C order."""
    expected = item
    for count, stride in reversed(list(zip(shape, strides or ()))):
        if count > 1 and stride != expected:
            raise InvalidArgument(
                f"{name} has shape {tuple(shape)} and strides {tuple(strides)}, must be "
                "contiguous in C order: pass a contiguous copy, and keep it")
        expected *= max(count, 1)


def _read_cuda(name, array):
    # A torch tensor of the host raises AttributeError, and one that requires grad another.
    if hasattr(type(array), "data_ptr"):
        return None
    return _of_interface(name, array, "__cuda_array_interface__")


def _read_interface(name, array):
    return _of_interface(name, array, "__array_interface__")


def _of_interface(name, array, attribute):
    interface = getattr(array, attribute, None)
    if not isinstance(interface, dict):
        return None
    typestr = interface["typestr"]
    _check_type(name, typestr, typestr in _FLOAT_TYPESTR)
    shape = tuple(interface["shape"])
    _check_order(name, shape, interface.get("strides"), item=4)
    if interface.get("data") is None:
        return None  # The buffer protocol has it.
    address, readonly = interface["data"]
    device = HOST
    if attribute == "__cuda_array_interface__":
        device = _cuda_device(array)
    return Memory(address, math.prod(shape), shape, bool(readonly), device, array)


def _cuda_device(array):
    """Returns the number of an array's GPU; 0 for frameworks that do not say it."""
    device = getattr(array, "device", 0)
    for attribute in ("id", "index"):
        device = getattr(device, attribute, device)
    return device if isinstance(device, int) else 0


def _read_torch(name, array):
    if not all(hasattr(array, part) for part in ("data_ptr", "detach", "stride")):
        return None
    dtype = str(array.dtype)
    _check_type(name, dtype, dtype == "torch.float32")
    shape = tuple(array.shape)
    if str(getattr(array, "layout", "torch.strided")) != "torch.strided":
        raise InvalidArgument(f"{name} has the layout {array.layout}, must be torch.strided")
    _check_order(name, shape, tuple(array.stride()))
    kind = array.device.type
    if kind not in ("cpu", "cuda"):
        raise InvalidArgument(f"{name} is on the device {array.device}, must be on cpu or "
                              "cuda")
    device = HOST if kind == "cpu" else array.device.index or 0
    # The second tensor keeps the memory if the caller gives the first one other `data`.
    owner = (array, array.detach())
    return Memory(array.data_ptr(), math.prod(shape), shape, False, device, owner)


class _Buffer(ctypes.Structure):
    """Py_buffer of CPython."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object),
                ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


def _python_function(name, result, *arguments):
    """Returns a function of CPython's own interface. Its types are for this module alone."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_get_buffer = _python_function("PyObject_GetBuffer", ctypes.c_int, ctypes.py_object,
                               ctypes.POINTER(_Buffer), ctypes.c_int)
_release_buffer = _python_function("PyBuffer_Release", None, ctypes.POINTER(_Buffer))
_is_capsule = _python_function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object,
                               ctypes.c_char_p)
_capsule_pointer = _python_function("PyCapsule_GetPointer", ctypes.c_void_p,
                                    ctypes.py_object, ctypes.c_char_p)


def _buffer_address(exporter):
    """Returns the address of a buffer, also of one that is read-only."""
    buffer = _Buffer()
    _get_buffer(exporter, ctypes.byref(buffer), 0)
    address = buffer.buf
    _release_buffer(ctypes.byref(buffer))
    return address or 0


def _read_buffer(name, array):
    try:
        values = memoryview(array)
    except (TypeError, ValueError, BufferError):
        return None
    _check_type(name, f"'{values.format}'", values.format in _FLOAT_FORMATS)
    _check_order(name, values.shape, values.strides, item=4)
    # The view as owner also keeps an array.array from being resized.
    return Memory(_buffer_address(values) if values.nbytes else 0, values.nbytes // 4,
                  values.shape, values.readonly, HOST, values)


class _DlTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("type_code", ctypes.c_uint8), ("type_bits", ctypes.c_uint8),
                ("type_lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _DlVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", _DlTensor)]


_DL_TYPES = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
_DL_READ_ONLY, _DL_COPIED = 1, 2  # Flags.
# Memory of the host; of a GPU; of the host, pinned; shared by both.
_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED = 1, 2, 3, 13


def _dlpack_capsule(array):
    try:
        return array.__dlpack__(max_version=(1, 0))
    except TypeError:  # A framework that does not know versions.
        return array.__dlpack__()


def _read_dlpack(name, array):
    if not hasattr(array, "__dlpack__"):
        return None
    try:
        capsule = _dlpack_capsule(array)
    except Exception as error:  # Each framework has errors of its own.
        raise InvalidArgument(f"{name} does not give its memory by DLPack: {error}") from error
    readonly = False
    if _is_capsule(capsule, b"dltensor_versioned"):
        versioned = _DlVersioned.from_address(
            _capsule_pointer(capsule, b"dltensor_versioned"))
        readonly = bool(versioned.flags & _DL_READ_ONLY)
        if versioned.flags & _DL_COPIED:
            raise InvalidArgument(f"{name} gives a copy of its values by DLPack, must give "
                                  "its own memory: pass an array that can")
        tensor = versioned.tensor
    else:
        tensor = _DlTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    # The capsule frees the memory when it is freed, because its name stays "dltensor".
    return _of_dlpack(name, tensor, readonly, capsule)


def _of_dlpack(name, tensor, readonly, capsule):
    dtype = f"{_DL_TYPES.get(tensor.type_code, tensor.type_code)}{tensor.type_bits}"
    _check_type(name, dtype, dtype == "float32" and tensor.type_lanes == 1)
    if tensor.device_type in (_DL_CPU, _DL_CUDA_HOST):
        device = HOST
    elif tensor.device_type in (_DL_CUDA, _DL_CUDA_MANAGED):
        device = tensor.device_id
    else:
        raise InvalidArgument(f"{name} is on a device of DLPack's kind {tensor.device_type}, "
                              "must be on the host or on a CUDA GPU")
    shape = tuple(tensor.shape[:tensor.ndim]) if tensor.ndim else ()
    strides = tuple(tensor.strides[:tensor.ndim]) if tensor.ndim and tensor.strides else None
    _check_order(name, shape, strides)
    address = (tensor.data or 0) + tensor.byte_offset
    return Memory(address, math.prod(shape), shape, readonly, device, capsule)


def float_view(address, length, owner):
    """Returns a read-only memoryview of `length` floats, which keeps `owner`."""
    values = (ctypes.c_float * length).from_address(address)
    values.owner = owner
    return memoryview(values).cast("B").cast("f").toreadonly()
