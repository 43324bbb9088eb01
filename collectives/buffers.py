"""Arrays behind a few small functions, so that plans need not know what kind they are. Here: NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

SMALL_COPY_NBYTES = 64 << 10


def empty(count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Return an uninitialised array."""
    return np.empty(count, dtype)


def unit(dtype: Any, width: int) -> np.dtype[Any]:
    """Return the dtype of what is never split: `width` elements of `dtype` (None: bytes)."""
    one = np.dtype(np.uint8 if dtype is None else dtype)
    return one if width == 1 else np.dtype((one, (width,)))


def copy(target: Any, source: Any) -> None:
    """Copy `source` into `target`."""
    np.copyto(target, source)


def copier(target: Any, source: Any) -> Callable[[], Any]:
    """Return a call that copies `source` into `target`, both contiguous and of one dtype.

    Small arrays are copied as bytes through memory views, which takes half as long to begin.
    """
    if 0 < target.nbytes <= SMALL_COPY_NBYTES:
        to, of = (memoryview(array.reshape(-1).view(np.uint8)) for array in (target, source))
        return partial(to.__setitem__, slice(None), of)
    return partial(copy, target, source)


def flat(array: Any, what: str, width: int = 1) -> np.ndarray[Any, Any]:
    """Return a view of `array` of shape (count,), or (count, width) where `width` elements belong together.

    Raises:
        TypeError: `array` is no NumPy array.
        ValueError: it is not C-contiguous, so no view exists, or no multiple of `width`.

    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"the {what} buffer is a {type(array).__name__}; pass a NumPy array")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"the {what} buffer of shape {array.shape} and strides {array.strides} is not C-contiguous; "
            "pass numpy.ascontiguousarray(...) of it"
        )
    if array.size % width:
        raise ValueError(f"the {what} buffer of {array.size} elements is no multiple of the operation's width {width}")
    return array.reshape(-1) if width == 1 else array.reshape(-1, width)


def overlap(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two contiguous arrays share memory."""
    return np.may_share_memory(one, other)


class Arena:
    """Memory that plans share as scratch, one after the other: it grows to what the neediest wants."""

    def __init__(self) -> None:
        self._block = np.empty(0, np.uint8)

    def take(self, count: int, unit: Any) -> np.ndarray[Any, Any]:
        """Return uninitialised memory for `count` units, shared with whoever else takes from this arena.

        A unit is a dtype, or a dtype with a shape as `unit` makes it; the array then has one dimension more.
        """
        unit = np.dtype(unit)
        nbytes = count * unit.itemsize
        if self._block.nbytes < nbytes:
            self._block = np.empty(nbytes, np.uint8)
        return self._block[:nbytes].view(unit.base).reshape(count, *unit.shape)
