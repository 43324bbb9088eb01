"""Arrays behind a few small functions, so that plans need not know what kind they are: NumPy's, or CuPy's on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from collectives import devices
from collectives.devices import is_device

SMALL_COPY_NBYTES = 64 << 10


def module_of(array: Any) -> Any:
    """Return the module whose functions take `array`: NumPy or CuPy."""
    return devices.cupy_module() if is_device(array) else np


def empty(shape: Any, dtype: Any, like: Any = None) -> Any:
    """Return an uninitialised array, on the GPU if `like` lies there."""
    return module_of(like).empty(shape, dtype)


def unit(dtype: Any, width: int) -> np.dtype[Any]:
    """Return the dtype of what is never split: `width` elements of `dtype` (None: bytes)."""
    one = np.dtype(np.uint8 if dtype is None else dtype)
    return one if width == 1 else np.dtype((one, (width,)))


def pinned(count: int, unit: Any) -> np.ndarray[Any, Any]:
    """Return uninitialised host memory of `count` units, with which a GPU can exchange data by itself."""
    unit = np.dtype(unit)
    return devices.pinned((count, *unit.shape), unit.base)


def function_of(combine: Callable[..., Any], array: Any) -> Callable[..., Any]:
    """Return what combines arrays like `array` as `combine` does: CuPy's function of that name for one of NumPy's."""
    if isinstance(combine, np.ufunc) and is_device(array):
        function: Callable[..., Any] = getattr(module_of(array), combine.__name__)
        return function
    return combine


def address(array: Any) -> int:
    """Return where `array` begins in memory."""
    return int(array.data.ptr if is_device(array) else array.ctypes.data)


def to_host(array: Any) -> np.ndarray[Any, Any]:
    """Return `array` itself if it is NumPy's, else a copy of it, made when the work on the current stream is done."""
    host: np.ndarray[Any, Any] = array.get() if is_device(array) else array
    return host


def settle(array: Any) -> None:
    """Wait until what was begun on `array` in the current stream is done, so that others see it."""
    if is_device(array):
        devices.synchronise()


def copy(target: Any, source: Any) -> None:
    """Copy `source` into `target`, of one shape and dtype, and see it done if one of them is on the host."""
    if is_device(source) and not is_device(target):
        target[...] = source.get()
    elif is_device(target) and not is_device(source):
        target.set(source)
        devices.synchronise()
    else:
        module_of(target).copyto(target, source)


def copier(target: Any, source: Any, casting: str = "same_kind") -> Callable[[], Any]:
    """Return a call that copies `source` into `target`, both contiguous and of one shape.

    Small arrays are copied as bytes through memory views, which takes half as long to begin. A copy to or from a GPU
    is only started; the array on the host must then be pinned, and the dtypes the same.
    """
    if is_device(target) != is_device(source):
        return devices.start_copy(target, source)
    if not is_device(target) and target.dtype == source.dtype and 0 < target.nbytes <= SMALL_COPY_NBYTES:
        to, of = (memoryview(array.reshape(-1).view(np.uint8)) for array in (target, source))
        return partial(to.__setitem__, slice(None), of)
    return partial(module_of(target).copyto, target, source, casting=casting)


def copiers(pairs: Iterable[tuple[Any, Any]]) -> list[Callable[[], Any]]:
    """Return calls that copy the second of each pair into the first, cast to its dtype, and see it done on the host."""
    pairs = [(target, source) for target, source in pairs if target.nbytes]
    calls = [copier(target, source, "unsafe") for target, source in pairs]
    if any(is_device(target) != is_device(source) for target, source in pairs):
        calls.append(devices.synchronise)
    return calls


def flat(array: Any, what: str, width: int = 1) -> Any:
    """Return a view of `array` of shape (count,), or (count, width) where `width` elements belong together.

    Raises:
        TypeError: `array` is no NumPy array and no CuPy array.
        ValueError: it is not C-contiguous, so no view exists, or no multiple of `width`, or on a GPU not in use.

    """
    if is_device(array):
        devices.check_current(array, what)
    elif not isinstance(array, np.ndarray):
        raise TypeError(f"the {what} buffer is a {type(array).__name__}; pass a NumPy or CuPy array")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"the {what} buffer of shape {array.shape} and strides {array.strides} is not C-contiguous; "
            f"pass {module_of(array).__name__}.ascontiguousarray(...) of it"
        )
    if array.size % width:
        raise ValueError(f"the {what} buffer of {array.size} elements is no multiple of the operation's width {width}")
    return array.reshape(-1) if width == 1 else array.reshape(-1, width)


def overlap(one: Any, other: Any) -> bool:
    """Whether two contiguous arrays of one kind share memory."""
    if is_device(one):
        first, second = address(one), address(other)
        return first < second + other.nbytes and second < first + one.nbytes
    return np.may_share_memory(one, other)


class Arena:
    """Memory that plans share as scratch, one after the other: it grows to what the neediest wants."""

    def __init__(self) -> None:
        self._blocks: dict[bool, Any] = {}

    def take(self, count: int, unit: Any, like: Any = None) -> Any:
        """Return uninitialised memory for `count` units, shared with whoever else takes from this arena.

        A unit is a dtype, or a dtype with a shape as `unit` makes it; the array then has one dimension more. It lies on
        the GPU if `like` does.
        """
        unit = np.dtype(unit)
        nbytes = count * unit.itemsize
        block = self._blocks.get(is_device(like))
        if block is None or block.nbytes < nbytes:
            block = self._blocks[is_device(like)] = empty(nbytes, np.uint8, like)
        return block[:nbytes].view(unit.base).reshape(count, *unit.shape)
