"""Where the tensors of a step lie, on the host as NumPy's arrays or on a GPU as CuPy's.

A function takes the module from an array that it was given (`module_of`), so what it makes lies beside that. What
every rank can tell from the job, tokens, places, masks and who chose which expert, is made on the host and put beside
the tensors with `beside`; nothing comes back to the host unless `to_host` says so.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from collectives.buffers import is_device, module_of, to_host

__all__ = ["beside", "cut", "joined", "module_of", "to_host"]

Array = NDArray[Any]


def beside(values: Array, tensor: Array) -> Array:
    """Return `values` where `tensor` lies: the same array, or a copy on the GPU."""
    placed: Array = module_of(tensor).asarray(values) if is_device(tensor) and not is_device(values) else values
    return placed


def cut(x: Array, nparts: int, axis: int) -> Array:
    """Cut x into equal parts along an axis: (nparts, ..., length/nparts, ...)."""
    module = module_of(x)
    parts: Array = module.stack(module.split(x, nparts, axis=axis))
    return parts


def joined(parts: Array, axis: int) -> Array:
    """Put parts (n, ...) side by side along an axis of theirs, the first being 0: the reverse of `cut`."""
    whole: Array = module_of(parts).concatenate([parts[place] for place in range(len(parts))], axis=axis)
    return whole
