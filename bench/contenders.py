"""Who competes at a point: the library's own call and algorithms by hand, each made ready, or skipped and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.check import Checked
from bench.library import NOTHING, OwnAlgorithms
from bench.options import Options
from bench.rows import is_forced, is_nccl
from bench.timing import seconds_of
from bench.usage import UsageError
from collectives.buffers import Arena
from collectives.names import NATIVE, NATIVE_FORMS, NCCL, UnknownNameError
from collectives.problem import Nodes, Problem, nodes_of
from collectives.registry import Primitive
from collectives.transports import AUTO, TRANSPORTS

OUT_OF_MEMORY = "out of memory"
LARGE_NBYTES = 4 << 20
MOST_VECTORS = 5
"""How many vectors of scratch a contender may want unasked, where these are large."""
ALL = "all"  # what competes unless algorithms are named


@dataclass
class Contender:
    """One algorithm at one point, with a plan for each set of buffers; none where it was skipped, and `reason` why."""

    label: str
    plans: list[Any] = field(default_factory=list)
    plan_seconds: float = 0.0  # of the first plan, on this rank
    first_seconds: float = 0.0  # of its first call, on the slowest rank
    reason: str = ""
    wrong: int | None = None
    told: dict[str, Any] = field(default_factory=dict)  # columns of its row that only the library can tell

    def armed(self) -> AbstractContextManager[None]:
        """Return a context, to be entered as often as needed, in which calls of its plans set nothing themselves.

        A nullcontext where there is nothing to set anyway.
        """
        contexts = [one.armed() for one in self.plans if hasattr(one, "armed")]  # replays and idle ranks set nothing
        contexts = [one for one in contexts if not isinstance(one, nullcontext)]
        if len(contexts) > 1:
            return _Together(contexts)
        return contexts[0] if contexts else nullcontext()

    def free(self) -> None:
        """Give back what MPI holds."""
        for plan in self.plans:
            plan.free()
        self.plans = []


def nodes_seen(options: Options, nodes: Nodes, nranks: int) -> Nodes:
    """Return the nodes that algorithms are told of: those that there are, or those that --ppn pretends."""
    return nodes if options.ppn is None else nodes_of(nranks, options.ppn)


class _Together(AbstractContextManager[None]):
    """Several contexts as one; like them it can be entered again."""

    def __init__(self, contexts: Sequence[AbstractContextManager[None]]) -> None:
        self._contexts = contexts
        self._entered = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as entered:  # leaves those that were entered if one cannot be
            for one in self._contexts:
                entered.enter_context(one)
            self._entered = entered.pop_all()

    def __exit__(self, *exception: Any) -> None:
        self._entered.__exit__(*exception)


def labels(primitive: Primitive, options: Options, nnodes: int = 1, own: OwnAlgorithms = NOTHING) -> list[str]:
    """Return the names of the contenders for `primitive`, the baseline first.

    What goes by nodes is left out on a single one unless it is named: there it is its inner part alone. An algorithm of
    the library's `own` brings ours of the same name along.

    Raises:
        UsageError: a parameter that an algorithm does not have, or a value that does not fit.

    """
    how = {"accumulate": options.accumulate} if options.accumulate and primitive.combines else {}
    by_hand = [one for one in primitive.algorithms.values() if nnodes > 1 or not one.takes_nodes]
    everything = [*NATIVE_FORMS, *(one.with_parameters(how).label for one in by_hand)]
    if options.device == "cuda" and not primitive.synchronises:
        everything.insert(len(NATIVE_FORMS), NCCL)
    if not options.algorithms:
        return everything
    chosen = [NATIVE]
    for specification in options.algorithms:
        name = specification.partition(":")[0]
        if name == ALL:
            chosen.extend(everything)
        elif is_forced(specification):
            chosen.extend(own.labels(primitive, specification))
        elif name in NATIVE_FORMS or is_nccl(specification):
            chosen.append(specification)
        elif name in primitive.algorithms:
            try:
                chosen.append(primitive.find(specification).with_parameters(how).label)
            except ValueError as error:
                raise UsageError("--algorithm", specification, str(error)) from error
    return list(dict.fromkeys(chosen))


def make_ready(
    names: Sequence[str],
    comm: Any,
    sets: Sequence[Checked],
    arena: Arena,
    start: Callable[[], Any],
    ppn: int | None = None,
    anywhere: Callable[[str], str] = str,
    transport_of: Callable[[str], str] = str,
) -> list[Contender]:
    """Return the contenders with their plans made, one for each set of buffers; each behind `start`.

    Ranks that share CPUs and do not meet before a plan would count the turns of the others as time to make it. A
    precondition is unmet on all ranks alike, but memory may lack on one alone: `anywhere` tells all of the reason.
    `ppn`: so many ranks make a pretended node. `transport_of`: how a contender moves data between GPUs.
    """
    from collectives.plan import NotApplicable
    from collectives.shared import SharedMemoryError

    contenders = [Contender(name) for name in names]
    for contender in contenders:
        for checked in sets:  # all plans of a contender, or none
            start()
            lacking = ""
            try:
                plan, seconds = seconds_of(
                    partial(_plan, contender.label, comm, checked, arena, ppn, transport_of(contender.label))
                )
                contender.plan_seconds = contender.plan_seconds or seconds
                contender.plans.append(plan)
            except (NotApplicable, SharedMemoryError, UnknownNameError) as reason:
                contender.reason = str(reason)
            except MemoryError as reason:
                lacking = f"{OUT_OF_MEMORY}: {reason}"
            contender.reason = contender.reason or anywhere(lacking)
            if contender.reason:
                contender.free()
                contender.plans = []
                break
    return contenders


def greedy(problem: Problem, label: str, itemsize: int) -> str | None:
    """Return why a hand-written contender is not measured unasked: it wants many vectors of scratch; else None.

    Eight ranks that gather the vectors of all to add them up have nine in memory; sixty-four of them would have none.
    """
    from collectives.cutting import Options as Cutting
    from collectives.layout import lay_out

    algorithm = problem.primitive.algorithms.get(label.partition(":")[0])
    if algorithm is None or problem.count * itemsize < LARGE_NBYTES or algorithm.unmet(problem):
        return None
    layout = lay_out(problem, algorithm, problem.root, Cutting.of(algorithm, itemsize, 1 << 31))
    vectors = layout.scratch_count / problem.count
    if vectors <= MOST_VECTORS:
        return None
    return f"needs {vectors:.0f} times the vector as scratch; name it with --algorithm to measure it"


def agree(comm: Any, contenders: Sequence[Contender]) -> None:
    """Skip on all ranks of `comm` what is skipped on any: others may have no part in it, or be in another group."""
    reasons = comm.allgather([one.reason for one in contenders])
    for index, one in enumerate(contenders):
        one.reason = next(filter(None, (theirs[index] for theirs in reasons)), "")
        if one.reason:
            one.free()


def _plan(name: str, comm: Any, checked: Checked, arena: Arena, ppn: int | None, transport: str) -> Any:
    problem = checked.problem
    return problem.primitive.plan(
        comm,
        *checked.arrays,
        algorithm=name,
        op=checked.op,
        root=problem.root,
        count=problem.count,
        counts=problem.counts,
        scratch=arena,
        ppn=ppn,
        transport=transport if transport in TRANSPORTS else AUTO,
        dtype=checked.dtype,
    )
