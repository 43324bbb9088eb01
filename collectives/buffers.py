"""Arrays behind a few small functions, so that plans need not know what kind they are. Here: NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

COMBINE: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
"""The operations by name, as element-wise functions ``combine(left, right, out)``."""

DTYPES = ("float32", "float64", "int32", "int64", "uint8")


def empty(count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Return an uninitialised array."""
    return np.empty(count, dtype)


def copy(target: Any, source: Any) -> None:
    """Copy `source` into `target`."""
    np.copyto(target, source)


def flat(array: Any, what: str) -> np.ndarray[Any, Any]:
    """Return a one-dimensional view of `array`.

    Raises:
        TypeError: `array` is no NumPy array.
        ValueError: it is not C-contiguous, so no view exists.

    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"the {what} buffer is a {type(array).__name__}; pass a NumPy array")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"the {what} buffer of shape {array.shape} and strides {array.strides} is not C-contiguous; "
            "pass numpy.ascontiguousarray(...) of it"
        )
    return array.reshape(-1)


def overlap(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two contiguous arrays share memory."""
    return np.may_share_memory(one, other)


class Arena:
    """Memory that plans share as scratch, one after the other: it grows to what the neediest wants."""

    def __init__(self) -> None:
        self._block = np.empty(0, np.uint8)

    def take(self, count: int, dtype: Any) -> np.ndarray[Any, Any]:
        """Return uninitialised memory for `count` elements, shared with whoever else takes from this arena."""
        nbytes = count * np.dtype(dtype).itemsize
        if self._block.nbytes < nbytes:
            self._block = np.empty(nbytes, np.uint8)
        return self._block[:nbytes].view(dtype)
