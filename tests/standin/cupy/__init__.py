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
    zeros,
)
from ._kernels import RawKernel, RawModule
from ._machine import machine
from ._mathematics import add_ufunc, arange, full, full_like, function_of, split, ufunc, zeros_like
from ._pool import pinned_pool, pool

__version__ = "standin"

FUNCTIONS = (
    *("subtract", "multiply", "maximum", "minimum", "logical_and", "logical_or", "logical_xor"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "true_divide", "sqrt", "exp", "log", "isfinite", "isnan", "matmul"),
)
globals().update({name: ufunc(getattr(_np, name)) for name in FUNCTIONS})
add, divide = add_ufunc(_np.add), ufunc(_np.true_divide)
OF_ARRAYS = ("concatenate", "stack", "einsum", "where", "repeat", "take_along_axis")
globals().update({name: function_of(getattr(_np, name)) for name in OF_ARRAYS})


def get_default_memory_pool():
    return pool


def get_default_pinned_memory_pool():
    return pinned_pool


__all__ = [
    *FUNCTIONS,
    *OF_ARRAYS,
    "RawKernel",
    "RawModule",
    "add",
    "arange",
    "array",
    "asarray",
    "ascontiguousarray",
    "asnumpy",
    "copyto",
    "cuda",
    "divide",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "machine",
    "ndarray",
    "split",
    "zeros",
    "zeros_like",
]
