"""The calls of a training step with real buffers: each kind made ready, and the whole step replayed.

All groups make their calls at the same time, each on its own communicator. The calls of a step share their buffers, so
that a step costs no more memory than its largest call; of several sets of buffers each call takes the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from bench.check import Checked, Empty, on_gpu, ordinary
from bench.contenders import Contender, agree, labels, make_ready
from bench.idle import Idle
from bench.messages import CONTENDERS, CheckedMessage, message_contenders
from bench.options import Options
from bench.overlap import Beside
from bench.pattern import MESSAGE, Buckets, Kind, Part, all_kinds, problem_of, step_of
from bench.rows import is_nccl
from collectives import PRIMITIVES, Arena, buffers
from collectives.operations import dtype_of
from strategies.choice import PLAIN_DATA_AXES
from strategies.mesh import Mesh
from strategies.traffic import Call

BACKWARD = "backward"
SLACK_NBYTES = 512  # for guards and alignment


class Pool:
    """Sets of a buffer to send from and one to receive into, in bytes of `empty`, which calls share.

    Raises:
        MemoryError: there is no more of that memory.

    """

    def __init__(self, nbytes: int, nsets: int, seed: int, empty: Empty = ordinary) -> None:
        self._sets = [[empty(nbytes + SLACK_NBYTES) for _ in "sr"] for _ in range(nsets)]
        # Floats between 1 and 2, so that no sum of what lies there by chance is slow or infinite.
        values = (np.random.default_rng(seed).random(nbytes // 4) + 1).astype(np.float32).view(np.uint8)
        for block in (one for two in self._sets for one in two):
            buffers.copy(block[: len(values)], values)

    def empties(self) -> list[tuple[Empty, Empty]]:
        """Return, for each set, what gives memory to send from and to receive into."""
        return [(partial(_first, send), partial(_first, recv)) for send, recv in self._sets]


def _first(block: Any, nbytes: int) -> Any:
    return block[:nbytes]


class Replay:
    """One rank's step on a mesh. Made, used and freed by all ranks of `comm` alike; `free` comes before the mesh's.

    traffic: the calls of this rank. scale: what messages are multiplied with. overlap: whether buckets of gradients may
    be under way beside other calls, for which they have buffers of their own. without_nccl: why NCCL has no part in it.
    """

    def __init__(
        self,
        comm: Any,
        mesh: Mesh,
        traffic: Iterable[Call],
        scale: Fraction,
        options: Options,
        nnodes: int,
        overlap: bool = False,
        without_nccl: str = "",
    ) -> None:
        self.comm, self.mesh, self._options, self._nnodes = comm, mesh, options, nnodes
        self._without_nccl = without_nccl
        self.rank = comm.Get_rank()
        self.dtype = options.dtypes[0]
        self._itemsize = dtype_of(self.dtype).itemsize
        self.step = step_of(traffic, mesh, self.rank, scale)
        self.kinds = all_kinds(comm.allgather(self.step.kinds))
        self._comms = {(kind.axis, kind.ends): mesh.communicator(comm, kind.axis, kind.ends) for kind in self.kinds}
        self.parts: dict[Kind, dict[int, Part]] = {
            kind: {rank: part for rank, part in enumerate(comm.allgather(self.step.parts.get(kind))) if part}
            for kind in self.kinds
        }
        self._why: dict[Kind, dict[str, list[str]]] = {}
        for kind, phase, words in dict.fromkeys(chain.from_iterable(comm.allgather(self.step.uses))):
            self._why.setdefault(kind, {}).setdefault(phase, []).append(words)
        self.buckets = [kind for kind in self.kinds if overlap and self._is_bucket(kind)]
        self._arenas = {beside: Arena() for beside in (False, True)}
        self._pools: dict[bool, Pool] = {}
        self._made: list[Contender] = []

    @property
    def largest_nbytes(self) -> int:
        """Bytes of the largest vector of any rank."""
        return max(
            (
                max(one.nbytes, sum(one.sends), sum(one.receives))
                for parts in self.parts.values()
                for one in parts.values()
            ),
            default=0,
        )

    def fill_pool(self, seed: int) -> None:
        """Make the buffers, large enough for every call, on the GPU in use if the options say so.

        Raises:
            MemoryError: there is not room for them. Then none is kept.

        """
        empty = on_gpu if self._options.device == "cuda" else ordinary
        nbytes, needed = self.largest_nbytes + self._itemsize, (False, True) if self.buckets else (False,)
        self._pools = {beside: Pool(nbytes, self._options.rotate, seed, empty) for beside in needed}

    def _is_bucket(self, kind: Kind) -> bool:
        """Whether calls of a kind sum gradients over data-parallel ranks while the backward pass goes on."""
        over_data = set(kind.axis.split("-")) & set(PLAIN_DATA_AXES)
        return bool(over_data) and kind.primitive in ("allreduce", "reduce_scatter") and self.phases(kind) == [BACKWARD]

    def groups(self, kind: Kind) -> list[tuple[int, ...]]:
        """List the groups that make calls of a kind, by their first rank."""
        return sorted({part.group for part in self.parts[kind].values()})

    def phases(self, kind: Kind) -> list[str]:
        """List the phases in which any rank makes calls of a kind."""
        return list(self._why[kind])

    def why(self, kind: Kind) -> dict[str, str]:
        """Return what the calls of a kind are for, by phase."""
        return {phase: ", ".join(words) for phase, words in self._why[kind].items()}

    def names(self, kind: Kind) -> list[str]:
        """Return the contenders for a kind, native first. Raises UsageError as `contenders.labels`."""
        if kind.primitive == MESSAGE:
            return list(CONTENDERS)
        return labels(PRIMITIVES[kind.primitive], self._options, self._nnodes)

    def sets(self, kind: Kind) -> Sequence[Any]:
        """Return the buffers of this rank for a kind, one for each set of the pool, with what is right in them."""
        part = self.step.parts.get(kind)
        empties = self._pools[kind in self.buckets].empties()
        if part is None:
            return [Idle(self.dtype) for _ in empties]
        place = part.group.index(self.rank)
        if kind.primitive == MESSAGE:
            count = max(1, kind.nbytes // self._itemsize)
            sends, source = part.send_to is not None, part.receive_from
            return [CheckedMessage(count, self.dtype, place, sends, source, *two) for two in empties]
        problem = problem_of(kind, self.parts[kind], self.rank, self._itemsize)
        return [Checked(problem, place, self.dtype, kind.op or "sum", *two) for two in empties]

    def ready(self, kind: Kind, sets: Sequence[Any]) -> list[Contender]:
        """Return the contenders for a kind, with plans on `sets`. On all ranks the same are skipped."""
        part, names = self.step.parts.get(kind), self.names(kind)
        refused = [one for one in names if is_nccl(one)] if self._without_nccl else []
        names = [one for one in names if one not in refused]
        group = self._comms[kind.axis, kind.ends]
        if part is None:
            contenders = [Contender(name, list(sets)) for name in names]
        elif kind.primitive == MESSAGE:
            tag, nsends = self.kinds.index(kind), max(1, self.step.times(kind))
            contenders = message_contenders(group, tag, part.send_to, part.receive_from, nsends, sets)
        else:
            contenders = make_ready(names, group, sets, self._arenas[kind in self.buckets], group.Barrier)
        agree(self.comm, contenders)
        self._made += contenders
        return [*contenders, *(Contender(one, reason=self._without_nccl) for one in refused)]

    def whole(self, chosen: Mapping[Kind, Contender], buckets: Buckets = "in turn") -> Callable[[], None]:
        """Return a call that makes all calls of the step in order, each kind through the contender chosen for it.

        buckets: whether buckets of gradients are called in turn, left out, or under way beside the other calls, polled
        after each of them or not.
        """
        calls: list[Callable[[], Any]] = []
        messages: dict[int, Any] = {}
        beside = Beside()
        for number, (kind, call) in enumerate(self.step.calls):
            plans = chosen[kind].plans
            plan = plans[number % len(plans)]
            if kind in self.buckets and buckets != "in turn":
                calls += [] if buckets == "left out" else [partial(beside.begin, plan)]
                continue
            if buckets == "polled":
                calls.append(beside.poll)
            if kind.primitive != MESSAGE:
                calls.append(plan)
                continue
            messages[id(plan)] = plan
            if call.send_to is None:
                calls.append(plan.receive)
            else:
                calls.append(plan.send if call.receive_from is None else plan.shift)
        calls += [plan.finish for plan in messages.values()]
        if buckets in ("none", "polled"):
            calls.append(beside.finish)

        def replay() -> None:
            for call in calls:
                call()

        return replay

    def free(self) -> None:
        """Give back what MPI holds."""
        for contender in self._made:
            contender.free()
        self._made = []
