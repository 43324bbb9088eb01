"""Kernels of our own made ready for arrays on a GPU: which elements are loaded in packs, how many threads, the call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from collectives import devices
from collectives.kernels import PACK_NBYTES, TYPES, Combination, combination_source, conversion_source

THREADS = 256
BLOCKS_PER_PROCESSOR = 8
"""So many blocks of so many threads keep a processor busy: 2048 threads is what one can hold. To be tuned on a GPU."""


class Cut(NamedTuple):
    """How elements are handed to threads: `head` before the packs, `npacks` packs, `rest` elements that are in none."""

    head: int
    npacks: int
    rest: int


def cut(addresses: Sequence[int], itemsize: int, count: int) -> Cut:
    """Return which of `count` elements are loaded in packs: none where the arrays differ in their alignment.

    A pack must begin at a multiple of its length in all arrays.
    """
    misaligned = {address % PACK_NBYTES for address in addresses}
    first = misaligned.pop() if len(misaligned) == 1 else 1
    head = -first % PACK_NBYTES // itemsize
    if misaligned or first % itemsize or head >= count:
        return Cut(count, 0, count)
    width = PACK_NBYTES // itemsize
    npacks = (count - head) // width
    return Cut(head, npacks, count - npacks * width)


def launch_shape(nitems: int, nprocessors: int) -> tuple[int, int]:
    """Return blocks and threads a block for so many items, which threads go through in strides."""
    nblocks = min(-(-nitems // THREADS), nprocessors * BLOCKS_PER_PROCESSOR)
    return max(1, nblocks), THREADS


def combiner(what: Combination, operands: Sequence[Any], targets: Sequence[Any]) -> Callable[[], Any]:
    """Return a call that starts the combination of CuPy arrays of one length on the current stream."""
    arrays = [*operands, *targets]
    count = arrays[0].size
    if not count:
        return _nothing
    pieces = cut([one.data.ptr for one in arrays], TYPES[what.dtype].itemsize, count)
    kernel = devices.kernel(combination_source(what), "combine")
    nblocks, nthreads = launch_shape(max(pieces.npacks, pieces.rest), devices.processors())
    return partial(kernel, (nblocks,), (nthreads,), (*arrays, *pieces))


def converters(dtype: str, pairs: Iterable[tuple[Any, Any]]) -> list[Callable[[], Any]]:
    """Return calls that convert the second CuPy array of each pair into the first: from a small float or to it.

    The other array of a pair is one of float32.
    """
    return [_converter(dtype, target, source) for target, source in pairs if source.size]


def _converter(dtype: str, target: Any, source: Any) -> Callable[[], Any]:
    name = "to_float32" if source.dtype.itemsize < target.dtype.itemsize else "from_float32"
    nblocks, nthreads = launch_shape(source.size, devices.processors())
    call = devices.kernel(conversion_source(dtype), name)
    return partial(call, (nblocks,), (nthreads,), (source, target, source.size))


def _nothing() -> None:
    pass
