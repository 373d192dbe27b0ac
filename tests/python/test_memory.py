"""Arrays of all frameworks give their memory, and unfit ones are refused by name."""

import array
import ctypes
import gc
import subprocess
import sys
import weakref

import pytest

from nereus import InvalidArgument, memory

numpy = pytest.importorskip("numpy")
try:
    import torch
except ImportError:
    torch = None


def make(table, kind):
    """Makes the array of a row of a table, which may need torch."""
    if kind.startswith("torch") and torch is None:
        pytest.skip("torch is not installed")
    return table[kind]()


class OnlyDlpack:
    """Array of a framework that knows nothing but DLPack."""

    def __init__(self, values):
        self.wrapped = values

    def __dlpack__(self, stream=None):
        return self.wrapped.__dlpack__()


class OnlyInterface:
    """Array with one of the two array interfaces."""

    def __init__(self, values, attribute, **changes):
        setattr(self, attribute, {**values.__array_interface__, **changes})
        self.wrapped = values


class VersionedDlpack:
    """Array that gives a capsule of DLPack 1.0 with `flags`."""

    def __init__(self, values, flags=0, device_type=1, bits=32):
        self._shape = (ctypes.c_int64 * 1)(len(values))
        tensor = memory._DlTensor(
            data=values.ctypes.data, device_type=device_type, ndim=1, type_code=2,
            type_bits=bits, type_lanes=1, shape=self._shape)
        self._managed = memory._DlVersioned(major=1, flags=flags, tensor=tensor)

    def __dlpack__(self, max_version=None):
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p,
                                ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))
        self._name = b"dltensor_versioned"
        return new(ctypes.addressof(self._managed), self._name, None)


MAKERS = {
    "numpy": lambda: numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
    "numpy part": lambda: numpy.arange(12, dtype=numpy.float32).reshape(4, 3)[1:3],
    "numpy scalar": lambda: numpy.array(1.0, numpy.float32),
    "array.array": lambda: array.array("f", [0, 1, 2]),
    "ctypes": lambda: (ctypes.c_float * 4)(),
    "bytearray": lambda: memoryview(bytearray(8)).cast("f"),
    "torch": lambda: torch.zeros(2, 3),
    "torch part": lambda: torch.zeros(4, 3)[1:],
    "torch parameter": lambda: torch.nn.Parameter(torch.zeros(5)),
    "dlpack": lambda: OnlyDlpack(numpy.zeros((2, 3), numpy.float32)),
    "dlpack part": lambda: OnlyDlpack(numpy.zeros((4, 3), numpy.float32)[2:]),
    "dlpack 1.0": lambda: VersionedDlpack(numpy.zeros(3, numpy.float32)),
    "interface": lambda: OnlyInterface(numpy.zeros(3, numpy.float32),
                                       "__array_interface__"),
}


def values_of(values):
    """Returns the values of an array as a flat NumPy array, without a copy."""
    values = getattr(values, "wrapped", values)
    if torch is not None and isinstance(values, torch.Tensor):
        values = values.detach().numpy()
    return numpy.asarray(values).reshape(-1)


@pytest.mark.parametrize("kind", [k for k in MAKERS if k != "dlpack 1.0"])
def test_values_written_at_the_address_are_those_of_the_array(kind):
    values = make(MAKERS, kind)
    found = memory.view("x", values)
    for index in range(found.length):
        ctypes.c_float.from_address(found.address + 4 * index).value = 10 + index
    assert values_of(values).tolist() == [10 + index for index in range(found.length)]
    assert found.device == memory.HOST
    assert not found.readonly


def test_a_capsule_of_dlpack_1_gives_address_and_length():
    values = numpy.zeros(3, numpy.float32)
    found = memory.view("x", VersionedDlpack(values))
    assert (found.address, found.length) == (values.ctypes.data, 3)


def test_shapes_are_kept():
    assert memory.view("x", numpy.zeros((2, 3), numpy.float32)).shape == (2, 3)
    assert memory.view("x", OnlyDlpack(numpy.zeros((2, 3), numpy.float32))).shape == (2, 3)
    assert memory.view("x", array.array("f", [1])).shape == (1,)


def test_strides_of_a_dimension_with_one_element_do_not_matter():
    values = numpy.zeros((3, 4), numpy.float32)[:1]
    assert memory.view("x", values).length == 4
    column = numpy.zeros((4, 1), numpy.float32).T  # Strides 4 and 4.
    assert memory.view("x", column).length == 4
    assert memory.view("x", OnlyDlpack(column)).length == 4


REFUSED = {
    "numpy float64": (lambda: numpy.zeros(2), "'d', must be float32"),
    "numpy other byte order": (lambda: numpy.zeros(2, ">f4"), "'>f', must be float32"),
    "numpy int": (lambda: numpy.zeros(2, numpy.int32), "'i', must be float32"),
    "array.array double": (lambda: array.array("d", [1]), "'d', must be float32"),
    "bytes": (lambda: bytearray(8), "'B', must be float32"),
    "torch float64": (lambda: torch.zeros(2, dtype=torch.float64),
                      "torch.float64, must be float32"),
    "torch bfloat16": (lambda: torch.zeros(2, dtype=torch.bfloat16),
                       "torch.bfloat16, must be float32"),
    "dlpack float64": (lambda: OnlyDlpack(numpy.zeros(2)),
                       "float64, must be float32"),
    "interface float64": (lambda: OnlyInterface(numpy.zeros(2), "__array_interface__"),
                          "<f8, must be float32"),
    "numpy transposed": (lambda: numpy.zeros((2, 3), numpy.float32).T,
                         r"shape \(3, 2\) and strides \(4, 12\), must be contiguous"),
    "numpy every other": (lambda: numpy.zeros(4, numpy.float32)[::2],
                          r"strides \(8,\), must be contiguous"),
    "torch transposed": (lambda: torch.zeros(2, 3).t(),
                         r"shape \(3, 2\) and strides \(1, 3\), must be contiguous"),
    "torch expanded": (lambda: torch.zeros(1).expand(3), r"strides \(0,\), must be"),
    "torch sparse": (lambda: torch.zeros(2, 2).to_sparse(), "torch.sparse_coo, must be"),
    "torch meta": (lambda: torch.zeros(2, device="meta"), "device meta, must be on cpu"),
    "dlpack transposed": (lambda: OnlyDlpack(numpy.zeros((2, 3), numpy.float32).T),
                          r"strides \(1, 3\), must be contiguous"),
    "dlpack read-only": (lambda: VersionedDlpack(numpy.zeros(2, numpy.float32), flags=1),
                         "is read-only, must be writable"),
    "dlpack copy": (lambda: VersionedDlpack(numpy.zeros(2, numpy.float32), flags=2),
                    "gives a copy of its values by DLPack, must give its own memory"),
    "numpy not aligned": (
        lambda: numpy.frombuffer(bytearray(9), numpy.float32, offset=1),
        "is at address 0x[0-9a-f]+, must be aligned to 4 bytes"),
    "interface not aligned": (
        lambda: OnlyInterface(numpy.zeros(2, numpy.float32), "__array_interface__",
                              data=(4098, False)), "is at address 0x1002, must be aligned"),
    "dlpack on ROCm": (
        lambda: VersionedDlpack(numpy.zeros(2, numpy.float32), device_type=10),
        "DLPack's kind 10, must be on the host"),
    "numpy empty": (lambda: numpy.zeros((0, 3), numpy.float32),
                    r"shape \(0, 3\) and so no value, must have at least 1"),
    "array.array empty": (lambda: array.array("f"), "no value, must have at least 1"),
    "torch empty": (lambda: torch.zeros(0), "no value, must have at least 1"),
    "list": (lambda: [1.0], "is a builtins.list, must be an array"),
    "None": (lambda: None, "is a builtins.NoneType, must be an array"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_unfit_arrays_are_refused_with_their_name(kind):
    values = make({kind: REFUSED[kind][0]}, kind)
    with pytest.raises(InvalidArgument, match=REFUSED[kind][1]) as error:
        memory.view("the gradient of layer fc1", values)
    assert str(error.value).startswith("the gradient of layer fc1 ")


def test_read_only_arrays_can_be_read_only():
    values = numpy.ones(2, numpy.float32)
    values.flags.writeable = False
    with pytest.raises(InvalidArgument, match="x is read-only, must be writable"):
        memory.view("x", values)
    assert memory.view("x", values, writable=False).address == values.ctypes.data
    frozen = memoryview(values.tobytes()).cast("f")
    assert memory.view("x", frozen, writable=False).length == 2


def test_a_wrong_length_names_both():
    with pytest.raises(InvalidArgument, match=r"x has 3 values \(shape \(3,\)\), must have 2"):
        memory.view("x", numpy.zeros(3, numpy.float32), length=2)


def test_a_cuda_interface_says_its_device():
    values = numpy.zeros(3, numpy.float32)
    found = memory.view("x", OnlyInterface(values, "__cuda_array_interface__"))
    assert (found.device, found.address) == (0, values.ctypes.data)
    other = OnlyInterface(values, "__cuda_array_interface__", strides=(8,))
    with pytest.raises(InvalidArgument, match=r"strides \(8,\)"):
        memory.view("x", other)


def test_an_array_that_is_in_use_cannot_be_resized():
    values = array.array("f", [1, 2])
    found = memory.view("x", values)
    with pytest.raises(BufferError):
        values.append(3)
    del found
    values.append(3)


@pytest.mark.parametrize("kind", ["numpy", "torch", "dlpack part", "interface"])
def test_memory_lives_as_long_as_its_view(kind):
    freed = []
    values = make(MAKERS, kind)
    weakref.finalize(getattr(values, "wrapped", values), freed.append, True)
    found = memory.view("x", values)
    del values
    gc.collect()
    assert not freed
    del found
    gc.collect()
    assert freed


def test_memory_of_a_tensor_stays_if_the_tensor_gets_other_memory():
    if torch is None:
        pytest.skip("torch is not installed")
    freed = []
    values = numpy.zeros(3, numpy.float32)
    weakref.finalize(values, freed.append, True)
    tensor = torch.from_numpy(values)
    found = memory.view("x", tensor)
    del values
    tensor.data = torch.ones(3)
    gc.collect()
    assert not freed
    del found
    gc.collect()
    assert freed


def test_a_view_of_floats_reads_the_memory():
    values = (ctypes.c_float * 2)(1.5, 2.5)
    seen = memory.float_view(ctypes.addressof(values), 2, values)
    assert seen.tolist() == [1.5, 2.5] and seen.readonly
    values[0] = 7
    assert numpy.asarray(seen).tolist() == [7.0, 2.5]


def test_the_package_imports_no_framework(root):
    code = ("import sys, nereus; "
            "print([name for name in ('numpy', 'torch') if name in sys.modules])")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            check=True, env={"PYTHONPATH": f"{root}/worker/python"})
    assert result.stdout == "[]\n"
