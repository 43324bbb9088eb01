"""Arrays of the stand-in: shapes and views on the host, values only on the device."""

import math

import numpy as np

from ._dlpack import CPU, CUDA, capsule_of
from ._machine import Registered, machine, unlocked
from ._pool import allocator


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
            memory = allocator.pool.take(nbytes)
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
        one = ascontiguousarray(self)  # CuPy copies too where there is no view
        return one._like(one._twin.reshape(*shape))

    def ravel(self):
        return self.reshape(-1)

    def view(self, dtype):
        return self._like(self._twin.view(dtype))

    def astype(self, dtype):
        result = ndarray(self.shape, dtype)
        copyto(result, self, casting="unsafe")
        return result

    def transpose(self, *axes):
        return self._like(self._twin.transpose(*axes))

    def __getitem__(self, key):
        from . import _mathematics

        if _mathematics.names_places(key):
            return _mathematics.gathered(self, key)
        for one in key if isinstance(key, tuple) else (key,):
            if not (one is None or one is Ellipsis or isinstance(one, (int, slice))) or isinstance(one, bool):
                raise TypeError(f"a {type(one).__name__} is no place in device memory; pass an array of the device")
        keys = key if isinstance(key, tuple) else (key,)
        return self._like(self._twin[keys if Ellipsis in keys else (*keys, Ellipsis)])  # an element is an array too

    def __setitem__(self, key, value):
        from . import _mathematics

        if _mathematics.names_places(key):
            _mathematics.scattered(self, key, value)
            return
        target = self[key]
        if target is value:
            return
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

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Describe the memory to a consumer, whose stream waits for what is queued here."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            what = "the host" if dl_device[0] == CPU else f"device {dl_device}"
            raise BufferError(f"the stand-in shows no memory to {what}; use get()")
        if copy:
            return self.copy().__dlpack__(stream=stream, max_version=max_version)
        if stream is not None and stream != -1:
            consumer = machine.streams.get(0 if stream in (0, 1, 2) else stream)
            if consumer is None:
                raise ValueError(f"there is no stream {stream}")
            if consumer is not machine.stream():
                consumer.wait_event(machine.stream().record())
        return capsule_of(self, max_version)

    def __dlpack_device__(self):
        return CUDA, self.device.id

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
    side = {True: "host", False: "device"}
    between = " to ".join(side[isinstance(one._memory, Registered)] for one in (source, target))
    kind = between if target.dtype == source.dtype else "kernels"
    _put(kind, lambda: np.copyto(target._twin, source._twin, casting=casting), target, source)
