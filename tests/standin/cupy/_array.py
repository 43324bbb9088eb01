"""Arrays of the stand-in: shapes and views on the host, values only on the device."""

import math

import numpy as np

from ._machine import Allocation, machine, unlocked


class UnownedMemory:
    """Memory that someone else allocated; it keeps `owner` alive."""

    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self.owner = ptr, size, owner
        self.allocation = machine.allocation_at(ptr, size)


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


class _Flags:
    def __init__(self, array):
        self.c_contiguous = array.flags.c_contiguous


class ndarray:  # noqa: N801 -- CuPy's name
    """An array whose NumPy twin lies on pages that nobody may touch: taking views of it touches none."""

    __array_priority__ = 100

    def __init__(self, shape, dtype=float, memptr=None, memory=None, twin=None):
        if memptr is not None:
            memory, dtype = memptr.mem.allocation, np.dtype(dtype)
            nbytes = math.prod(shape) * dtype.itemsize
            twin = np.frombuffer(memory.memory, np.uint8, nbytes, memptr.ptr - memory.ptr).view(dtype).reshape(shape)
            self._owner = memptr.mem
        elif twin is None:
            dtype = np.dtype(dtype)
            if dtype.kind not in "biufc":
                raise TypeError(f"Unsupported dtype {dtype}")
            nbytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * dtype.itemsize
            memory = Allocation(nbytes)
            twin = np.frombuffer(memory.memory, np.uint8, nbytes).view(dtype).reshape(shape)
        self._memory, self._twin = memory, twin

    def _like(self, twin):
        view = ndarray(None, memory=self._memory, twin=twin)
        view._owner = getattr(self, "_owner", None)
        return view

    shape = property(lambda self: self._twin.shape)
    dtype = property(lambda self: self._twin.dtype)
    size = property(lambda self: self._twin.size)
    nbytes = property(lambda self: self._twin.nbytes)
    ndim = property(lambda self: self._twin.ndim)
    itemsize = property(lambda self: self._twin.itemsize)
    strides = property(lambda self: self._twin.strides)
    flags = property(lambda self: _Flags(self._twin))
    T = property(lambda self: self._like(self._twin.T))

    @property
    def data(self):
        return MemoryPointer(self._memory, self._twin.ctypes.data - self._memory.ptr)

    @property
    def device(self):
        from .cuda import Device

        return Device(self._memory.device)

    @property
    def __cuda_array_interface__(self):
        stream = machine.stream().ptr
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
            "version": 3,
            "stream": stream or 1,
        }

    def __len__(self):
        return len(self._twin)

    def __repr__(self):
        return f"<{self.dtype} array of shape {self.shape} on the stand-in>"

    def reshape(self, *shape):
        if not self.flags.c_contiguous:
            raise NotImplementedError("the stand-in reshapes contiguous arrays only")
        return self._like(self._twin.reshape(*shape))

    def ravel(self):
        return self.reshape(-1)

    def view(self, dtype):
        return self._like(self._twin.view(dtype))

    def __getitem__(self, key):
        if isinstance(key, ndarray):
            raise NotImplementedError("the stand-in has no fancy indices")
        twin = self._twin[key]
        if not isinstance(twin, np.ndarray):  # never reached: reading a value faults first
            raise TypeError("an element is no array")
        return self._like(twin)

    def __setitem__(self, key, value):
        target = self[key]
        if isinstance(value, ndarray):
            copyto(target, value)
        elif isinstance(value, (int, float, complex)):
            target.fill(value)
        else:
            raise TypeError(f"a {type(value).__name__} cannot be put into device memory; use set()")

    def fill(self, value):
        _put("kernels", lambda: self._twin.fill(value), self)

    def set(self, values, stream=None):
        if not isinstance(values, np.ndarray) or values.dtype != self.dtype or values.shape != self.shape:
            raise ValueError("set() takes a NumPy array of the same dtype and shape")
        kept = values.copy()  # like CUDA, which has read pageable memory when it returns
        _put("host to device", lambda: np.copyto(self._twin, kept), self, stream=stream)

    def get(self, stream=None, order="C", out=None, blocking=True):
        result = np.empty(self.shape, self.dtype) if out is None else out
        stream = machine.stream() if stream is None else stream
        _put("device to host", lambda: np.copyto(result, self._twin), self, stream=stream)
        if blocking:
            stream.synchronize()
        return result

    def copy(self):
        result = ndarray(self.shape, self.dtype)
        copyto(result, self)
        return result

    def _refuse(self, *arguments, **more):
        raise TypeError("Implicit conversion of device memory to the host is not allowed; use get()")

    __array__ = __array_ufunc__ = __array_function__ = _refuse
    __bool__ = __int__ = __float__ = __complex__ = __index__ = __iter__ = __buffer__ = item = tolist = _refuse


def _put(kind, work, *arrays, stream=None):
    """Queue `work` on these arrays."""
    memories = {id(one._memory): one._memory for one in arrays}.values()

    def run():
        with unlocked(*memories):
            work()

    machine.counts[kind] += 1
    (machine.stream() if stream is None else stream).put(run)


def empty(shape, dtype=float):
    return ndarray(shape, dtype)


def zeros(shape, dtype=float):
    result = ndarray(shape, dtype)
    result.fill(0)
    return result


def empty_like(array, dtype=None):
    return ndarray(array.shape, array.dtype if dtype is None else dtype)


def asarray(values, dtype=None):
    if isinstance(values, ndarray):
        return values
    values = np.ascontiguousarray(values, dtype)
    result = ndarray(values.shape, values.dtype)
    result.set(values)
    return result


array = asarray


def ascontiguousarray(one):
    if one.flags.c_contiguous:
        return one
    result = ndarray(one.shape, one.dtype)
    copyto(result, one)
    return result


def asnumpy(one):
    return one.get() if isinstance(one, ndarray) else np.asarray(one)


def copyto(target, source, casting="same_kind", where=None):
    if not isinstance(target, ndarray) or not isinstance(source, ndarray):
        raise TypeError("copyto() is between device arrays")
    kind = "device to device" if target.dtype == source.dtype else "kernels"
    _put(kind, lambda: np.copyto(target._twin, source._twin, casting=casting), target, source)


class ufunc:  # noqa: N801 -- CuPy's name
    """An element-wise function of two arrays."""

    nin, nout = 2, 1

    def __init__(self, function):
        self._function, self.__name__ = function, function.__name__

    def __call__(self, left, right, out=None, **more):
        if more:
            raise TypeError(f"the stand-in's {self.__name__} takes no {', '.join(more)}")
        for one in (left, right, out):
            if not isinstance(one, ndarray):
                raise TypeError(f"Unsupported type {type(one)}")
        work = self._function
        _put("kernels", lambda: work(left._twin, right._twin, out=out._twin), left, right, out)
        return out
