"""A stand-in for CuPy: the part of its interface that collbench uses, on a GPU that is none.

Put `tests/standin` first in PYTHONPATH, and `import cupy` finds it. `cupy.machine` counts copies and synchronisations.
"""

import numpy as _np

from . import cuda
from ._array import (
    array,
    asarray,
    ascontiguousarray,
    asnumpy,
    copyto,
    empty,
    empty_like,
    ndarray,
    ufunc,
    zeros,
)
from ._machine import machine

__version__ = "standin"

FUNCTIONS = (
    *("add", "multiply", "maximum", "minimum", "logical_and", "logical_or", "logical_xor"),
    *("bitwise_and", "bitwise_or", "bitwise_xor"),
)
globals().update({name: ufunc(getattr(_np, name)) for name in FUNCTIONS})


class _Pool:
    def free_all_blocks(self):
        pass


def get_default_memory_pool():
    return _Pool()


def get_default_pinned_memory_pool():
    return _Pool()


__all__ = [
    *FUNCTIONS,
    "array",
    "asarray",
    "ascontiguousarray",
    "asnumpy",
    "copyto",
    "cuda",
    "empty",
    "empty_like",
    "machine",
    "ndarray",
    "zeros",
]
