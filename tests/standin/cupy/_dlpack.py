"""Arrays handed to other libraries as DLPack has it (dmlc.github.io/dlpack): as memory of a GPU, never of the host."""

import ctypes
import sys

CPU, CUDA = 1, 2
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    """DLManagedTensor, the form before version 1."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]
    name = b"dltensor"


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]
    name = b"dltensor_versioned"


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_python.PyCapsule_GetName.restype = ctypes.c_char_p
_python.PyCapsule_GetName.argtypes = (ctypes.py_object,)

lent = {}
"""What consumers have, by the address of the description: its capsule, the description, and the array, kept alive."""


@_Deleter
def _delete(address):
    """Called in the end by who took the description out of its capsule, and then renamed that."""
    lent.pop(address, None)


def sweep():
    """Forget what nobody took out of a capsule that is gone. No destructor does: Python may not run when one is due."""
    for address, (capsule, managed, *_) in list(lent.items()):
        if sys.getrefcount(capsule) <= 3 and _python.PyCapsule_GetName(capsule) == managed.name:
            del lent[address]


def capsule_of(array, max_version):
    """Return a capsule with the description of `array`, in the form that the consumer can read."""
    sweep()
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    strides = (ctypes.c_int64 * array.ndim)(*(one // array.itemsize for one in array.strides))
    tensor = Tensor(
        array.data.ptr, CUDA, array.device.id, array.ndim, CODES[array.dtype.kind], 8 * array.itemsize, 1,
        shape, strides, 0,
    )  # fmt: skip
    deleter = ctypes.cast(_delete, ctypes.c_void_p)
    if max_version is None or max_version[0] < 1:
        managed = Managed(tensor, None, deleter)
    else:
        managed = Versioned(1, 0, None, deleter, 0, tensor)
    address = ctypes.addressof(managed)
    capsule = _python.PyCapsule_New(address, managed.name, None)
    lent[address] = capsule, managed, shape, strides, array
    return capsule
