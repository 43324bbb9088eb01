"""What a library runs instead of the algorithm that it was told to use, as data; no MPI.

Open MPI 5.0 replaces a forced algorithm silently where it does not apply; MPICH 5.0 too, unless it was told to fail
instead (MPIR_CVAR_COLLECTIVE_FALLBACK=error), which forcing does. Each entry was read in the libraries' sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.rounds import largest_power_of_two


@dataclass(frozen=True)
class Case:
    """One call as a library sees it when it decides.

    `count` is the elements of the whole vector, `itemsize` the bytes of one; `parameters` are those that were set.
    """

    nranks: int
    count: int
    itemsize: int = 1
    commutative: bool = True
    built_in: bool = True
    in_place: bool = False
    even: bool = True
    parameters: Mapping[str, int | float | str] = field(default_factory=dict)

    @property
    def segment_count(self) -> int:
        """Elements of one segment; all of them where no segment size was set."""
        segsize = int(self.parameters.get("segsize", 0))
        return self.count if segsize < self.itemsize else segsize // self.itemsize


class Fallback(NamedTuple):
    """`names` of `function`, when told to run in such a case, become another algorithm, or None: the call fails."""

    function: str
    names: tuple[str, ...]
    when: Callable[[Case], bool]
    becomes: str | None
    words: str


class Outcome(NamedTuple):
    """What runs (None: nothing, the library refuses) and, where it is not what was asked for, why."""

    effective: str | None
    why: str = ""


def _below_ranks(case: Case) -> bool:
    return case.count < case.nranks


def _below_power_of_two(case: Case) -> bool:
    return case.count < largest_power_of_two(case.nranks)


def _no_power_of_two(case: Case) -> bool:
    return bool(case.nranks & (case.nranks - 1))


def _no_halves(case: Case) -> bool:
    half, segsize = case.count // 2, int(case.parameters.get("segsize", 0))
    return half == 0 or segsize > half * case.itemsize


def _not_commutative(case: Case) -> bool:
    return not case.commutative


_FEWER = "there are fewer elements than ranks"
_FEWER_2 = "there are fewer elements than the largest power of two of ranks"
_ORDER = "the operation is not commutative"
_NO_POWER = "the number of ranks is no power of two"

OPENMPI = (
    Fallback("Allreduce", ("segmented_ring",), lambda c: c.count < c.nranks * c.segment_count, "ring",
             "a rank's block is smaller than a segment (no segsize: one segment is all)"),
    Fallback("Allreduce", ("ring",), _below_ranks, "recursive_doubling", _FEWER),
    Fallback("Allreduce", ("rabenseifner",), _below_power_of_two, "basic_linear", _FEWER_2),
    Fallback("Allreduce", ("rabenseifner",), _not_commutative, "basic_linear", _ORDER),
    Fallback("Reduce", ("rabenseifner",), _below_power_of_two, "linear", _FEWER_2),
    Fallback("Reduce", ("rabenseifner",), _not_commutative, "linear", _ORDER),
    Fallback("Allgather", ("recursive_doubling",), _no_power_of_two, "bruck", _NO_POWER),
    *(Fallback(function, ("neighbor",), lambda c: c.nranks % 2 == 1, "ring", "the number of ranks is odd")
      for function in ("Allgather", "Allgatherv")),
    *(Fallback(function, ("two_proc",), lambda c: c.nranks != 2, None, "two_proc is for two ranks only")
      for function in ("Allgather", "Allgatherv", "Alltoall", "Barrier")),
    Fallback("Bcast", ("scatter_allgather", "scatter_allgather_ring"), _below_ranks, "basic_linear", _FEWER),
    Fallback("Bcast", ("split_binary_tree",), _no_halves, "chain", "its halves are too small for segments"),
    Fallback("Bcast", ("knomial",), lambda c: int(c.parameters.get("radix", 4)) < 2, "binomial",
             "no tree has a radix below 2"),
    Fallback("Reduce_scatter_block", ("recursive_halving",), _not_commutative, "basic_linear", _ORDER),
    *(Fallback(function, names, _not_commutative, None, "the library would combine in another order and not say so")
      for function, names in (
          ("Allreduce", ("ring", "segmented_ring")),
          ("Reduce", ("chain", "pipeline", "binary", "binomial")),
          ("Reduce_scatter", ("recursive_halving", "ring")),
      )),
    Fallback("Reduce_scatter_block", ("recursive_doubling", "recursive_halving", "butterfly"),
             lambda c: c.count > (1 << 31) - 1, "basic_linear", "there are more than 2^31-1 elements"),
    *(Fallback(function, ("linear", "basic_linear", "pairwise", "modified_bruck", "linear_sync"),
               lambda c: c.in_place, None, "in place the library has one algorithm of its own")
      for function in ("Alltoall", "Alltoallv")),
)  # fmt: skip
"""Open MPI 5.0, coll/tuned."""

MPICH = (
    Fallback("Allgather", ("recursive_doubling",), _no_power_of_two, None, _NO_POWER),
    Fallback("Allgatherv", ("recursive_doubling",), _no_power_of_two, None, _NO_POWER),
    Fallback("Allreduce", ("ccl",), lambda c: True, None,
             "it is for device buffers and NCCL or RCCL; on host buffers the library runs another and does not say so"),
    Fallback("Allreduce", ("reduce_scatter_allgather",), _below_power_of_two, None, _FEWER_2),
    Fallback("Allreduce", ("reduce_scatter_allgather",), lambda c: not c.built_in, None, "the operation is the user's"),
    Fallback("Allreduce", ("ring", "recursive_multiplying", "recexch", "k_reduce_scatter_allgather"),
             _not_commutative, None, _ORDER),
    Fallback("Reduce", ("reduce_scatter_gather",), _below_power_of_two, None, _FEWER_2),
    Fallback("Reduce", ("reduce_scatter_gather",), lambda c: not c.built_in, None, "the operation is the user's"),
    *(Fallback(function, ("pairwise", "recursive_halving"), _not_commutative, None, _ORDER)
      for function in ("Reduce_scatter", "Reduce_scatter_block")),
    *(Fallback(function, ("noncommutative",), _no_power_of_two, None, _NO_POWER)
      for function in ("Reduce_scatter", "Reduce_scatter_block")),
    Fallback("Reduce_scatter", ("noncommutative",), lambda c: not c.even, None, "blocks differ in elements"),
    *(Fallback(function, ("brucks", "k_brucks", "pairwise", "scattered"), lambda c: c.in_place, None,
               "it has no in-place form")
      for function in ("Alltoall", "Alltoallv")),
    *(Fallback(function, ("pairwise_sendrecv_replace",), lambda c: not c.in_place, None, "it works in place only")
      for function in ("Alltoall", "Alltoallv")),
)  # fmt: skip
"""MPICH 5.0 with MPIR_CVAR_COLLECTIVE_FALLBACK=error: what does not apply fails."""

TABLES: Mapping[str, tuple[Fallback, ...]] = {"openmpi": OPENMPI, "mpich": MPICH, "abi": MPICH}


def outcome(flavour: str, function: str, name: str, case: Case) -> Outcome:
    """Return what really runs when `name` is forced for `function` (mpi4py's name: ``Allreduce``) in this case."""
    if case.nranks == 1:
        return Outcome(None, "one rank alone: the library has nothing to choose")
    if case.count == 0 and function != "Barrier":
        return Outcome(None, "no element is moved: the library returns at once")
    reasons = []
    while entry := _first(flavour, function, name, case):
        reasons.append(f"{name} {'fails' if entry.becomes is None else f'becomes {entry.becomes}'}: {entry.words}")
        if entry.becomes is None:
            return Outcome(None, "; ".join(reasons))
        name = entry.becomes
    return Outcome(name, "; ".join(reasons))


def _first(flavour: str, function: str, name: str, case: Case) -> Fallback | None:
    entries = (one for one in TABLES[flavour] if one.function == function and name in one.names)
    return next((one for one in entries if one.when(case)), None)
