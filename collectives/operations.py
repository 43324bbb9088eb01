"""What values are combined with: the named operations, for which dtypes each is defined, and your own.

Defined alike for every hand-written algorithm: integers wrap around, infinities follow IEEE 754, and the maximum or
minimum with a NaN is NaN. A sum of truth values is refused, since some libraries take it as "or" and others count:
say ``lor``. Maximum and minimum of complex numbers are refused, since they have no order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectives.names import UnknownNameError

Combine = Callable[..., Any]

HALF = ("float16", "bfloat16")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
SMALL = (*HALF, *FLOAT8)
"""What sums and products are accumulated in float32 for on request."""

DTYPES = (
    *("float32", "float64", *SMALL, "complex64", "complex128"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
)
"""Every dtype that can be moved and combined."""

FOREIGN = ("bfloat16", *FLOAT8)
"""Dtypes from ml_dtypes, of which a GPU's arrays know nothing: there they are whole numbers of their width."""

_KINDS = {"b": "truth value", "i": "integer", "u": "integer", "f": "float", "c": "complex"}


@dataclass(frozen=True)
class Operation:
    """An element-wise, associative operation ``combine(left, right, out=into)``, which may write into an operand.

    `width` elements of an array belong together and are never split: 4 for 2 x 2 matrices, which `combine` then gets
    as arrays of shape (k, 4). `kinds` are the NumPy kinds of dtype that it is defined for. `mpi_name` is the
    attribute of `MPI` that does the same, None where the library has none.
    """

    name: str
    combine: Combine
    commutative: bool = True
    width: int = 1
    kinds: str = "biufc"
    mpi_name: str | None = None

    def undefined_for(self, dtype: Any) -> str | None:
        """Return why the operation is not defined for `dtype`, None if it is."""
        kind = kind_of(np.dtype(dtype))
        if kind in self.kinds:
            return None
        remedy = "; use lor" if kind == "b" and self.name == "sum" else ""
        return f"{self.name} is not defined for {np.dtype(dtype).name} ({_KINDS.get(kind, kind)}){remedy}"


def kind_of(dtype: np.dtype[Any]) -> str:
    """Return NumPy's kind of a dtype; floats of ml_dtypes, which NumPy takes for raw memory, are floats."""
    return "f" if dtype.name in FOREIGN else dtype.kind


def stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a GPU's arrays whose elements are meant to be of `dtype`."""
    return np.dtype(f"u{dtype.itemsize}") if dtype.name in FOREIGN else dtype


OPERATIONS: dict[str, Operation] = {
    one.name: one
    for one in (
        Operation("sum", np.add, kinds="iufc", mpi_name="SUM"),
        Operation("prod", np.multiply, kinds="iufc", mpi_name="PROD"),
        Operation("max", np.maximum, kinds="iuf", mpi_name="MAX"),
        Operation("min", np.minimum, kinds="iuf", mpi_name="MIN"),
        Operation("land", np.logical_and, kinds="biu", mpi_name="LAND"),
        Operation("lor", np.logical_or, kinds="biu", mpi_name="LOR"),
        Operation("lxor", np.logical_xor, kinds="biu", mpi_name="LXOR"),
        Operation("band", np.bitwise_and, kinds="biu", mpi_name="BAND"),
        Operation("bor", np.bitwise_or, kinds="biu", mpi_name="BOR"),
        Operation("bxor", np.bitwise_xor, kinds="biu", mpi_name="BXOR"),
    )
}
"""The operations by name."""


def find_operation(op: str | Operation) -> Operation:
    """Return the operation that is meant.

    Raises:
        UnknownNameError: no operation of this name.

    """
    if isinstance(op, Operation):
        return op
    if op not in OPERATIONS:
        raise UnknownNameError(f"there is no operation {op!r} (there are: {', '.join(OPERATIONS)})")
    return OPERATIONS[op]


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of this name; loads ml_dtypes for bfloat16 and 8-bit floats.

    Raises:
        ValueError: there is none such, or ml_dtypes is missing.

    """
    if name not in DTYPES:
        raise ValueError(f"there is no dtype {name!r} (there are: {', '.join(DTYPES)})")
    if name not in FOREIGN:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as reason:
        raise ValueError(f"{name} needs the package ml_dtypes: pip install ml_dtypes") from reason
    return np.dtype(getattr(ml_dtypes, name))
