"""The mesh: ranks laid out on named axes, and the group of any axis or set of axes.

One rule gives every group. The first axis of an order varies fastest, so with lengths n1, n2, ...

    rank = i1·1 + i2·n1 + i3·n1·n2 + ...

and the group of some axes through a rank holds all ranks that agree with it on every other axis, in rank
order. Two numberings follow, never to be mixed: a *rank* counts in the whole mesh, a *group rank* inside a group.

The orders below are those of the frameworks; a mesh records the one that it was made with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

AXES = {
    "tp": "tensor parallel",
    "cp": "context parallel: the ring",
    "ulysses": "sequence parallel by all-to-all over heads (DeepSpeed-Ulysses)",
    "ep": "expert parallel",
    "dp": "data parallel",
    "pp": "pipeline parallel",
    "etp": "tensor parallel inside each expert",
    "expert_dp": "data parallel of the experts",
    "dp_shard": "data parallel, parameters sharded",
    "dp_replicate": "data parallel, parameters replicated",
    "repeat": "ranks left over, which repeat the work of the others",
}

# Ranks along these have the same experts, and tokens of their own: gradients of experts are summed over them. Those of
# all other weights also over ep and etp, whose ranks are data parallel outside the experts.
EXPERT_REPLICA_AXES = ("dp", "dp_shard", "dp_replicate", "expert_dp", "cp", "ulysses")
REPLICA_AXES = (*EXPERT_REPLICA_AXES, "ep", "etp")

ORDERS = {
    # Megatron-LM, megatron/core/parallel_state.py: the default, and its second generator for experts
    "megatron": "tp-cp-ep-dp-pp",
    "megatron-expert": "etp-ep-expert_dp-pp",
    # torchtitan's DeviceMesh, which lists its dimensions the other way round (pp first, tp last)
    "torch": "tp-cp-dp_shard-dp_replicate-pp",
    # Llama 3, arXiv 2407.21783, section 3.3.2: [TP, CP, PP, DP], innermost first
    "llama3": "tp-cp-pp-dp",
    # vLLM, vllm/distributed/parallel_state.py: external DP x DP x PP x PCP x TP, tp last; what we call
    # `repeat` is its external DP, and its expert group is that of "tp-cp-dp"
    "vllm": "tp-cp-pp-dp",
    # picotron's grid (dp, pp, cp, tp)
    "picotron": "tp-cp-pp-dp",
}
DEFAULT_ORDER = "megatron"

PLACEMENTS = {
    # yunchang (long-context-attention), set_seq_parallel_pg: use_ulysses_low true, its default, and false.
    # LoongTrain (arXiv 2406.18485) calls them head-first and context-first.
    "ulysses-inner": "ulysses-cp",
    "ring-inner": "cp-ulysses",
}
DEFAULT_PLACEMENT = "ulysses-inner"

_AXES_TEXT = ", ".join(axis for axis in AXES if axis != "repeat")
_HINTS = {"sp": "Megatron's sequence parallelism runs on tp, DeepSpeed's is called ulysses"}


class Mesh:
    """Ranks on named axes.

    spec: lengths of axes, such as "tp=2,cp=2,pp=2", or a mapping. Axes that are not named have length 1.
    order: a name from ORDERS or axes joined by "-", the first varying fastest; what decides which ranks are neighbours.
    nranks: how many ranks there are, by default just enough. Whole copies of the mesh that are left over become
        the outermost axis, `repeat`.
    placement: where Ulysses stands in an order that names only cp; a name from PLACEMENTS.

    Raises ValueError for an axis unknown or missing from the order, a length below 1, and ranks that do not divide.
    """

    def __init__(
        self,
        spec: str | Mapping[str, int],
        order: str = DEFAULT_ORDER,
        nranks: int | None = None,
        placement: str | None = None,
    ):
        lengths = parse_spec(spec) if isinstance(spec, str) else dict(spec)
        axes = parse_order(order, placement)
        for axis, length in lengths.items():
            _known(axis)
            if length < 1:
                raise ValueError(f"{axis}={length}: an axis has at least 1 rank")
            if axis not in axes and length > 1:
                having = ", ".join(name for name in ORDERS if axis in parse_order(name))
                raise ValueError(
                    f"order {'-'.join(axes)} has no {axis}; take one that has ({having}) or write your own"
                )
        wanted = prod(lengths.values())
        nranks = wanted if nranks is None else nranks
        repeat = divide(nranks, wanted, "ranks", spec_text(lengths) or "a mesh of 1 rank")

        self.nranks = nranks
        self.axes = (*axes, "repeat")
        self.order = "-".join(axes)
        self.shape = {axis: lengths.get(axis, 1) for axis in axes} | {"repeat": repeat}
        self._strides = {}
        stride = 1
        for axis, length in self.shape.items():
            self._strides[axis] = stride
            stride *= length
        self._used: dict[str | tuple[str, ...], str] = {}
        self._world: Any = None
        self._communicators: dict[tuple[frozenset[str], bool], Any] = {}

    @property
    def spec(self) -> str:
        """The axes longer than 1 in order, such as "tp=2,cp=2,pp=2"; `repeat` is told by nranks."""
        return spec_text({axis: length for axis, length in self.shape.items() if length > 1 and axis != "repeat"})

    def __repr__(self):
        return f"Mesh({self.spec!r}, order={self.order!r}, nranks={self.nranks})"

    def __eq__(self, other):
        return isinstance(other, Mesh) and self._layout() == other._layout()

    def __hash__(self):
        return hash(self._layout())

    def _layout(self) -> tuple[tuple[str, int], ...]:
        # Axes of length 1 move no rank, so that meshes which differ only by them are the same.
        return tuple((axis, length) for axis, length in self.shape.items() if length > 1)

    def length(self, axes: str | Iterable[str]) -> int:
        """Count the ranks that a group over `axes` has; 1 for axes that this mesh does not use."""
        return prod(self.shape.get(axis, 1) for axis in axis_names(axes))

    def used(self, axes: str | Iterable[str]) -> str:
        """Name those of `axes` that have more than one rank, in mesh order, joined by "-"; "" if none has."""
        key = axes if isinstance(axes, str) else tuple(axes)
        if key not in self._used:
            chosen = axis_names(key)
            self._used[key] = "-".join(axis for axis in self.axes if axis in chosen and self.shape[axis] > 1)
        return self._used[key]

    def stride(self, axis: str) -> int:
        """Tell how far apart in rank number neighbours on `axis` are."""
        return self._strides[axis]

    def coordinate(self, axis: str, rank: int) -> int:
        """Tell where `rank` stands on `axis`, from 0; 0 on an axis that this mesh does not use."""
        _known(axis)
        self._check_rank(rank)
        return rank // self._strides.get(axis, 1) % self.shape.get(axis, 1)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Tell where `rank` stands on every axis."""
        return {axis: self.coordinate(axis, rank) for axis in self.axes}

    def rank_at(self, coordinates: Mapping[str, int]) -> int:
        """Find the rank with these coordinates; 0 on the axes that are not given."""
        for axis, index in coordinates.items():
            _known(axis)
            if not 0 <= index < self.shape.get(axis, 1):
                raise ValueError(f"{axis}={index}: this mesh has {axis} 0 to {self.shape.get(axis, 1) - 1}")
        return sum(index * self._strides.get(axis, 0) for axis, index in coordinates.items())

    def group(self, axes: str | Iterable[str], rank: int, ends: bool = False) -> tuple[int, ...]:
        """List the ranks that share all other axes with `rank`, ascending: position i holds group rank i.

        axes: one axis, several joined by "-" ("dp-cp"), or an iterable of names.
        ends: only the first and the last of them (the stages that tie their embeddings); a rank between is alone.
        """
        chosen = axis_names(axes)
        first = rank - sum(self.coordinate(axis, rank) * self._strides[axis] for axis in self.axes if axis in chosen)
        group = tuple(first + offset for offset in self._offsets(chosen))
        if not ends:
            return group
        return tuple(sorted({group[0], group[-1]})) if rank in (group[0], group[-1]) else (rank,)

    def groups(self, axes: str | Iterable[str]) -> list[tuple[int, ...]]:
        """List all groups over `axes`, by their first rank. Each rank is in exactly one."""
        chosen = axis_names(axes)
        offsets = self._offsets(chosen)
        others = [axis for axis in self.axes if axis not in chosen]
        return [tuple(first + offset for offset in offsets) for first in self._offsets(others)]

    def group_rank(self, axes: str | Iterable[str], rank: int) -> int:
        """Tell the place of `rank` in its group over `axes`; `group(axes, rank)[place]` is the way back."""
        chosen = axis_names(axes)
        place, stride = 0, 1
        for axis in self.axes:
            if axis in chosen:
                place += self.coordinate(axis, rank) * stride
                stride *= self.shape[axis]
        return place

    def _offsets(self, axes: Iterable[str]) -> list[int]:
        """List the distances from the first rank of a group over `axes` to each of its ranks, ascending."""
        offsets = [0]
        for axis in self.axes:  # fastest first, so that the list stays sorted
            if axis in axes:
                offsets = [step * self._strides[axis] + off for step in range(self.shape[axis]) for off in offsets]
        return offsets

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.nranks:
            raise ValueError(f"rank {rank}: this mesh has ranks 0 to {self.nranks - 1}")

    def communicator(self, comm: Any, axes: str | Iterable[str], ends: bool = False) -> Any:
        """Give the communicator of the calling rank's group over `axes`, whose ranks are the group ranks.

        comm: a communicator of `nranks` ranks (of mpi4py, or anything with Get_size, Get_rank, Split). A mesh
            serves one at a time: `free` before giving it another.
        axes, ends: as for `group`.

        Collective over comm when first asked for a set of axes; kept after that until `free`, so that a sweep of
        thousands of configurations does not run out of communicators.
        """
        if self._world is None:
            if comm.Get_size() != self.nranks:
                raise ValueError(
                    f"{self!r} needs a communicator of {self.nranks} ranks, this one has {comm.Get_size()}; "
                    f"give the mesh nranks={comm.Get_size()} or start {self.nranks} ranks"
                )
            self._world = comm
        elif comm != self._world:
            raise ValueError("this mesh already serves another communicator; call free() first, or make a second mesh")
        # Not by the group's ranks: every rank must find, or not find, the same entry, or Split would wait for ever.
        key = frozenset(axis for axis in axis_names(axes) if self.length(axis) > 1), ends
        if key not in self._communicators:
            rank = comm.Get_rank()
            self._communicators[key] = comm.Split(color=self.group(axes, rank, ends)[0], key=rank)
        return self._communicators[key]

    def free(self) -> None:
        """Free the communicators made here. Collective."""
        for made in self._communicators.values():
            made.Free()
        self._communicators.clear()
        self._world = None

    def __enter__(self):
        return self

    def __exit__(self, error_type, error, traceback):
        # After an error on one rank the others are elsewhere, and a collective free would hide it by hanging.
        if error_type is None:
            self.free()


class MegatronMeshes(NamedTuple):
    """Megatron-LM's two views of the same ranks."""

    dense: Mesh  # tp, cp, dp, pp
    expert: Mesh  # etp, ep, expert_dp, pp


def megatron(spec: str | Mapping[str, int], nranks: int, order: str = DEFAULT_ORDER) -> MegatronMeshes:
    """Make Megatron-LM's dense and expert meshes over `nranks` ranks (megatron/core/parallel_state.py).

    spec: lengths of tp, cp, pp, ep and etp; etp is tp unless given. What is left is dp on the dense side,
        nranks/(tp·cp·pp), and expert_dp on the other, nranks/(etp·ep·pp): experts borrow the ranks of dp and cp.
    order: Megatron's, over tp, cp, ep, dp and pp.

    Raises ValueError where the ranks do not divide, or the two sides would have different pipelines.
    """
    lengths = parse_spec(spec) if isinstance(spec, str) else dict(spec)
    unknown = lengths.keys() - {"tp", "cp", "pp", "ep", "etp", "dp"}
    if unknown:
        raise ValueError(f"Megatron's meshes have no {', '.join(sorted(unknown))}; give tp, cp, pp, ep and etp")
    tp, cp, pp, ep = (lengths.get(axis, 1) for axis in ("tp", "cp", "pp", "ep"))
    etp = lengths.get("etp", tp)
    dp = divide(nranks, tp * cp * pp, "ranks", spec_text({"tp": tp, "cp": cp, "pp": pp}))
    expert_dp = divide(nranks, etp * ep * pp, "ranks", spec_text({"etp": etp, "ep": ep, "pp": pp}))
    if lengths.get("dp", dp) != dp:
        raise ValueError(f"dp={lengths['dp']}: {nranks} ranks over tp·cp·pp = {tp}·{cp}·{pp} leave dp={dp}; drop dp")

    axes = ORDERS.get(order, order).split("-")
    dense_order = "-".join(axis for axis in axes if axis != "ep")
    expert_names = {"tp": "etp", "ep": "ep", "dp": "expert_dp", "pp": "pp"}
    expert_order = "-".join(expert_names[axis] for axis in axes if axis in expert_names)
    dense = Mesh({"tp": tp, "cp": cp, "dp": dp, "pp": pp}, dense_order, nranks)
    expert = Mesh({"etp": etp, "ep": ep, "expert_dp": expert_dp, "pp": pp}, expert_order, nranks)
    if dense.groups("pp") != expert.groups("pp"):
        raise ValueError(
            f"in order {'-'.join(axes)} the pipelines of {dense.spec} and {expert.spec} differ "
            f"(neighbours {dense.stride('pp')} and {expert.stride('pp')} ranks apart); put pp last"
        )
    return MegatronMeshes(dense, expert)


def parse_spec(text: str) -> dict[str, int]:
    """Read lengths by axis from a text such as "tp=2,cp=4". Raises ValueError saying which part is wrong."""
    lengths: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+)\s*", part, re.ASCII)
        if not match:
            raise ValueError(f"{part.strip()!r} is not AXIS=LENGTH; write a mesh like tp=2,cp=4")
        axis, length = match[1], int(match[2])
        _known(axis)
        if axis == "repeat":
            raise ValueError("repeat is what is left over, not to be given; for replicas that work use dp")
        if axis in lengths:
            raise ValueError(f"{axis} is given twice; name each axis once")
        lengths[axis] = length
    return lengths


def parse_order(order: str, placement: str | None = None) -> tuple[str, ...]:
    """Read the axes of an order, fastest first; Ulysses is put beside cp by `placement` where not named."""
    if placement is not None and placement not in PLACEMENTS:
        raise ValueError(f"{placement!r} is no placement; take {' or '.join(PLACEMENTS)}")
    axes = ORDERS.get(order, order).split("-")
    if order not in ORDERS:
        for axis in axes:
            if axis not in AXES:
                raise ValueError(
                    f"{axis!r} in order {order!r} is no axis; join axes by '-' ({_AXES_TEXT}), "
                    f"or take one of {', '.join(ORDERS)}"
                )
    if "ulysses" not in axes and "cp" in axes:
        at = axes.index("cp")
        axes[at : at + 1] = PLACEMENTS[placement or DEFAULT_PLACEMENT].split("-")
    elif placement is not None:
        raise ValueError(f"the order {order} leaves no choice to placement {placement}; drop one of the two")
    twice = sorted({axis for axis in axes if axes.count(axis) > 1})
    if twice or "repeat" in axes:
        raise ValueError(f"order {order!r} names {', '.join(twice) or 'repeat'}; each axis once, and never repeat")
    return tuple(axes)


def axis_names(axes: str | Iterable[str]) -> tuple[str, ...]:
    """Read the axes in "dp-cp" or an iterable of names. Raises ValueError for an unknown one."""
    names = tuple(axes.split("-")) if isinstance(axes, str) else tuple(axes)
    for axis in names:
        _known(axis)
    return names


def spec_text(lengths: Mapping[str, int]) -> str:
    """Write lengths by axis as text: "tp=2,cp=4"."""
    return ",".join(f"{axis}={length}" for axis, length in lengths.items())


def divide(total: int, parts: int, what: str, by: str) -> int:
    """Return total / parts, which must be whole; else ValueError with the arithmetic and the nearest totals that fit.

    what: the things counted ("heads"); by: what asks for the parts ("ulysses=3").
    """
    each, left = divmod(total, parts)
    if left or total < 1:
        fits = f"{parts * each} or {parts * (each + 1)}" if each else f"{parts}"
        raise ValueError(
            f"{total} {what} do not divide by {by}: {total} = {parts}·{each} + {left}; take a multiple of {parts}, "
            f"such as {fits}"
        )
    return each


def block(count: int, nblocks: int, index: int) -> range:
    """Return block `index` of `count` things cut in `nblocks`: the first count mod nblocks blocks have one more."""
    each, more = divmod(count, nblocks)
    first = index * each + min(index, more)
    return range(first, first + each + (index < more))


def _known(axis: str) -> None:
    if axis not in AXES:
        hint = f" ({_HINTS[axis]})" if axis in _HINTS else ""
        raise ValueError(f"{axis!r} is no axis{hint}; the axes are {_AXES_TEXT}")
