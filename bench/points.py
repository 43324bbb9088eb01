"""The points of a sweep: what is measured, apart from who measures it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.options import Options
from collectives import PRIMITIVES
from collectives.operations import dtype_of
from collectives.problem import Problem
from collectives.registry import Primitive

KEY = ("primitive", "dtype", "op", "root", "in_place", "count", "memory")
"""The columns of a row that tell points of a run apart."""


@dataclass(frozen=True)
class Point:
    """One thing to measure: a primitive on so many elements of a dtype in some memory, with an operation and a root."""

    primitive: Primitive
    count: int
    dtype: str
    op: str
    root: int
    in_place: bool = False
    memory: str = "plain"

    @property
    def nbytes(self) -> int:
        """The bytes of the whole vector, as moved."""
        return self.count * dtype_of(self.dtype).itemsize

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of `KEY` as in rows: blank what is of no matter to the primitive."""
        primitive = self.primitive
        return (
            primitive.name,
            "" if primitive.synchronises else self.dtype,
            self.op if primitive.combines else "",
            self.root if primitive.rooted else None,
            self.in_place,
            self.count,
            self.memory,
        )

    def problem(self, nranks: int) -> Problem:
        """Return the point as a problem of `nranks` ranks."""
        return self.primitive.problem(nranks, self.count, root=self.root, in_place=self.in_place)

    def unmet(self, nranks: int) -> str | None:
        """Return why `nranks` ranks cannot do it, whoever competes, or None."""
        if self.memory == "shared" and not has_common_result(self.primitive):
            return f"{self.primitive.name} leaves ranks different results, so those of a node cannot share one"
        return self.primitive.unmet(self.problem(nranks))

    def __str__(self) -> str:
        words = [self.primitive.name, f"{self.nbytes} bytes", self.dtype]
        words += [self.op] if self.primitive.combines else []
        words += [f"root {self.root}"] if self.primitive.rooted else []
        words += ["in place"] if self.in_place else []
        words += [f"{self.memory} memory"] if self.memory != "plain" else []
        return ", ".join(words)


def points(options: Options) -> Iterator[Point]:
    """Yield the points of a sweep, small ones first within each primitive.

    A size is rounded down to whole elements; what operation and root do not matter for is not repeated for them.
    """
    for name in options.primitives:
        primitive = PRIMITIVES[name]
        for dtype in options.dtypes if has_buffers(primitive) else options.dtypes[:1]:
            for op in options.ops if primitive.combines else options.ops[:1]:
                itemsize = dtype_of(dtype).itemsize
                counts = dict.fromkeys(nbytes // itemsize for nbytes in options.sizes)
                if primitive.synchronises:
                    counts = {0: None}
                for in_place in options.in_place if has_in_place(primitive) else (False,):
                    for count in counts:
                        # Memories next to each other, so that the machine has little time to change between them.
                        for memory in options.memories if has_buffers(primitive) else ("plain",):
                            yield Point(primitive, count, dtype, op, options.root, in_place, memory)


def has_in_place(primitive: Primitive) -> bool:
    """Whether MPI has an in-place form on some rank; a broadcast has one buffer and needs none."""
    problem = primitive.problem(2, 2)
    return not primitive.one_buffer and any(primitive.aliasing(problem, rank) for rank in range(2))


def has_buffers(primitive: Primitive) -> bool:
    """Whether there is anything to lie in memory; a barrier has nothing."""
    return not primitive.synchronises


def has_common_result(primitive: Primitive) -> bool:
    """Whether all ranks end with the same, so that those of a node can share it."""
    problem = primitive.problem(3, 3)
    return len({tuple(primitive.outputs(problem, rank, 1)) for rank in range(3)}) == 1


def fingerprint(point: object, contenders: Sequence[str]) -> int:
    """Return a hash by which ranks see whether they are about to measure the same."""
    text = "|".join([str(point), *contenders])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
