"""Primitives, their contracts, and the algorithms that fulfil them.

A `Primitive` says what a collective means: which chunks each rank has at the start and must have at the end, in the
order in which they lie in its send and receive buffers. A `Problem` is one instance of it: ranks, counts, root. An
`Algorithm` is a named generator of rounds with the preconditions it needs. All of it is data; no MPI.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from collectives.rounds import Chunk, Rounds, largest_power_of_two

Parameter: TypeAlias = int | float | str
Chunks: TypeAlias = Sequence[Chunk]
Nodes: TypeAlias = tuple[tuple[int, ...], ...]
"""The ranks of each node; the nodes in the order of their lowest rank."""


class UnknownNameError(ValueError):
    """A primitive, algorithm or parameter was named that does not exist; the message lists those that do."""


@lru_cache(maxsize=256)
def blocks(count: int, nblocks: int) -> tuple[int, ...]:
    """Cut `count` elements into `nblocks` blocks; the first ``count % nblocks`` have one element more."""
    each, more = divmod(count, nblocks)
    return (each + 1,) * more + (each,) * (nblocks - more)


@lru_cache(maxsize=256)
def offsets(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return where each block starts if blocks of these counts lie one after another."""
    return (0, *accumulate(counts))[:-1]


def nodes_of(nranks: int, ppn: int) -> Nodes:
    """Return nodes of `ppn` ranks after one another; the last has what is left.

    Raises:
        ValueError: `ppn` is less than 1.

    """
    if ppn < 1:
        raise ValueError(f"{ppn} ranks on a node; at least 1 is needed")
    return tuple(tuple(range(first, min(first + ppn, nranks))) for first in range(0, nranks, ppn))


# ---------------------------------------------------------------------------------------------------------------
# Preconditions


@dataclass(frozen=True)
class Need:
    """A precondition of an algorithm, as data: its words, and whether it is met."""

    words: str
    met: Callable[[Problem, bool], bool]


POWER_OF_TWO = Need("a number of ranks that is a power of two", lambda p, commutative: not p.nranks & (p.nranks - 1))
EVEN = Need("an even number of ranks", lambda p, commutative: p.nranks % 2 == 0 or p.nranks == 1)
COMMUTATIVE = Need("a commutative operation", lambda p, commutative: commutative)
SHARED_MEMORY = Need("all ranks on one node, to share memory", lambda p, commutative: len(p.groups) == 1)
TWO_RANKS = Need("at least two ranks", lambda p, commutative: p.nranks >= 2)


# ---------------------------------------------------------------------------------------------------------------
# Problems


@dataclass(frozen=True)
class Problem:
    """One instance of a primitive.

    `count` is the elements of the whole vector (DESIGN: the user buffer for broadcast, reduce, all-reduce and
    send/recv; ranks x block for the others). `counts` are the blocks of each rank where they are not the even cut of
    `count`; for all-to-all it is a matrix, row by source. `nodes` are the ranks of each node, None if all are on one.
    """

    primitive: Primitive
    nranks: int
    count: int
    root: int = 0
    counts: tuple[Any, ...] | None = None
    in_place: bool = False
    nodes: Nodes | None = None

    def __post_init__(self) -> None:
        if self.nranks < 1:
            raise ValueError(f"{self.primitive.name}: {self.nranks} ranks; at least 1 is needed")
        if self.count < 0:
            raise ValueError(f"{self.primitive.name}: count {self.count} is negative")
        if not 0 <= self.root < self.nranks:
            raise ValueError(f"{self.primitive.name}: root {self.root} is none of the ranks 0 to {self.nranks - 1}")
        if self.counts is not None and len(self.counts) != self.nranks:
            raise ValueError(
                f"{self.primitive.name}: {len(self.counts)} counts for {self.nranks} ranks; give one for each rank"
            )

        if self.nodes is not None and sorted(chain.from_iterable(self.nodes)) != list(range(self.nranks)):
            raise ValueError(
                f"{self.primitive.name}: nodes {self.nodes} do not hold each of the ranks 0 to {self.nranks - 1} once"
            )

    @property
    def groups(self) -> Nodes:
        """The ranks of each node."""
        return self.nodes or (tuple(range(self.nranks)),)

    @cached_property
    def block_counts(self) -> tuple[Any, ...]:
        """The elements of each rank's block."""
        return blocks(self.count, self.nranks) if self.counts is None else tuple(self.counts)

    @cached_property
    def longest_block(self) -> int:
        """The elements of the longest block; of all-to-all's matrix, of the longest of all."""
        return max(max(one) if isinstance(one, tuple) else one for one in self.block_counts)

    @property
    def even(self) -> bool:
        """Whether all blocks have the same number of elements."""
        return len(set(self.block_counts)) == 1


# ---------------------------------------------------------------------------------------------------------------
# Algorithms


PLAN_PARAMETERS: Mapping[str, Any] = {
    "waits": Literal["round", "data"],
    "piece": int,
    "cuts": int,
    "pack_from": int,
    "accumulate": str,
}
"""What any algorithm's plan can be told: see `collectives.layout.Options` (sizes in bytes) and `accumulate`."""


@dataclass(frozen=True)
class AtLeast:
    """The least value of a parameter: ``Annotated[int, AtLeast(2)]``. Whole numbers start from 1 otherwise."""

    value: int


Radix: TypeAlias = Annotated[int, AtLeast(2)]
"""The base of the numbers by whose digits an algorithm goes."""


@dataclass(frozen=True)
class PartOf:
    """A parameter that names an algorithm of one of these primitives, as a part of which others are composed."""

    primitives: tuple[Primitive, ...]

    def names(self) -> list[str]:
        """Return the names that there are."""
        every = (one for primitive in self.primitives for one in primitive.algorithms.values() if not one.takes_nodes)
        return list(dict.fromkeys(one.name for one in every))


def misfit(kind: Any, value: Parameter) -> str | None:
    """Return in words what a parameter of type `kind` may be if `value` is not that, None if it is."""
    if get_origin(kind) is Literal:
        return None if value in get_args(kind) else f"one of {', '.join(map(str, get_args(kind)))}"
    if kind is str:
        return None if isinstance(value, str) else "a name"
    rule = get_args(kind)[1] if get_origin(kind) is Annotated else AtLeast(1)
    if isinstance(rule, PartOf):
        return None if value in rule.names() else f"one of {', '.join(rule.names())}"
    least = rule.value
    return None if isinstance(value, int) and value >= least else f"a whole number of at least {least}"


def one_chunk(nranks: int, **parameters: Parameter) -> int:
    """The whole vector is one chunk."""
    return 1


def per_rank(nranks: int, **parameters: Parameter) -> int:
    """The vector is cut into as many chunks as there are ranks."""
    return nranks


def per_segment(nranks: int, *, segments: int, **parameters: Parameter) -> int:
    """The vector is cut into the segments of a pipeline."""
    return segments


def two_halves(nranks: int, *, segments: int, **parameters: Parameter) -> int:
    """Each half of the vector is cut into the segments of a pipeline."""
    return 2 * segments


def power_of_two_chunks(nranks: int, **parameters: Parameter) -> int:
    """The vector is cut into the largest power of two of chunks that is at most the ranks."""
    return largest_power_of_two(nranks)


@dataclass(frozen=True)
class Algorithm:
    """A generator of rounds, what it needs, and how its plan is best carried out.

    `chunks` gives into how many chunks a vector is cut (vector primitives only). `parameters` are the generator's own
    with their values, `how` what the plan is told beyond its defaults. What is needed and whether rank order is kept
    can depend on the parameters. `waits` is ``"round"`` (each round completes before the next) or ``"data"`` (an
    operation waits only for what it touches). `parts` gives the algorithms of which a composition consists, each with
    the problem that it solves among some of the ranks. `staged`: what peers access lies in two alternating sets of
    places apart from the user's buffers, so that a call needs no fence at its end.
    """

    primitive: Primitive = field(repr=False)
    name: str
    generate: Callable[..., Rounds] = field(repr=False)
    declared_needs: Need | tuple[Need, ...] | Callable[..., Need | tuple[Need, ...]] = ()
    chunks: Callable[..., int] = field(default=one_chunk, repr=False)
    declared_order: bool | Callable[..., bool] = False
    waits: str = "round"
    defaults: Mapping[str, Parameter] = field(default_factory=dict)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    how: Mapping[str, Parameter] = field(default_factory=dict)
    parts: Callable[..., Iterable[tuple[Algorithm, Problem]]] | None = field(default=None, repr=False)
    staged: bool = False

    @property
    def keeps_order(self) -> bool:
        """Whether contributions are combined in rank order, so that the operation need not be commutative."""
        if not self.primitive.combines:
            return True
        declared = self.declared_order
        return declared(**self.parameters) if callable(declared) else declared

    @property
    def needs(self) -> tuple[Need, ...]:
        """The preconditions with these parameters, a commutative operation among them unless order is kept."""
        declared = self.declared_needs
        if not isinstance(declared, (Need, tuple)):
            declared = declared(**self.parameters)
        needs = declared if isinstance(declared, tuple) else (declared,)
        return needs if self.keeps_order or COMMUTATIVE in needs else (*needs, COMMUTATIVE)

    @property
    def label(self) -> str:
        """The name with what differs from the defaults: ``chain:segments=8``."""
        changed = [f"{key}={value}" for key, value in self.parameters.items() if self.defaults[key] != value]
        changed += [f"{key}={value}" for key, value in self.how.items()]
        return ":".join([self.name, *changed])

    @property
    def summary(self) -> str:
        """The first sentence of the generator's docstring."""
        return (inspect.getdoc(self.generate) or "").split("\n\n")[0].replace("\n", " ")

    def unmet(self, problem: Problem, commutative: bool = True) -> str | None:
        """Return why this algorithm does not apply to `problem`, or None if it does."""
        unmet = self.primitive.unmet(problem)
        if unmet:
            return unmet
        for need in self.needs:
            if not need.met(problem, commutative):
                return f"{self.name} needs {need.words}"
        for part, theirs in self._parts(problem):
            unmet = part.unmet(theirs, commutative)
            if unmet:
                return f"{self.label}: {theirs.primitive.name} {unmet}, here among {theirs.nranks} ranks"
        return None

    def shares_memory(self, problem: Problem) -> bool:
        """Whether ranks access memory of others: whether it or a part of it needs shared memory."""
        return SHARED_MEMORY in self.needs or any(part.shares_memory(theirs) for part, theirs in self._parts(problem))

    @cached_property
    def takes_nodes(self) -> bool:
        """Whether the generator is told which ranks are on one node."""
        return "nodes" in inspect.signature(self.generate).parameters

    def _parts(self, problem: Problem) -> Iterable[tuple[Algorithm, Problem]]:
        return self.parts(problem, **self.parameters) if self.parts else ()

    def rounds(self, problem: Problem, rank: int) -> Rounds:
        """Return the rounds of `rank`."""
        given: dict[str, Any] = {"root": problem.root} if self.primitive.rooted else {}
        if self.takes_nodes:
            given["nodes"] = problem.groups
        return self.generate(rank, problem.nranks, **given, **self.parameters)

    def nchunks(self, nranks: int, nodes: Nodes | None = None) -> int:
        """Return into how many chunks a vector is cut, if the ranks lie on `nodes` so."""
        if self.takes_nodes:
            return self.chunks(nranks, nodes=nodes or (tuple(range(nranks)),), **self.parameters)
        return self.chunks(nranks, **self.parameters)

    def with_parameters(self, changed: Mapping[str, Parameter]) -> Algorithm:
        """Return this algorithm with other parameters, its own or those of every plan (`PLAN_PARAMETERS`).

        Raises:
            UnknownNameError: a parameter that it does not have.
            ValueError: a value below the least, or none of the allowed ones.

        """
        parameters, how = dict(self.parameters), dict(self.how)
        own = get_type_hints(self.generate, include_extras=True)
        for key, value in changed.items():
            if key in parameters:
                kind, chosen = own[key], parameters
            elif key in PLAN_PARAMETERS:
                kind, chosen = PLAN_PARAMETERS[key], how
            else:
                known = ", ".join([*self.parameters, *PLAN_PARAMETERS])
                raise UnknownNameError(f"{self.primitive.name} {self.name} has no parameter {key!r} (it has: {known})")
            wanted = misfit(kind, value)
            if wanted:
                raise ValueError(f"{self.name}:{key}={value} is not {wanted}")
            chosen[key] = value
        return replace(self, parameters=parameters, how=how)


# ---------------------------------------------------------------------------------------------------------------
# Primitives

Lies: TypeAlias = Callable[[Problem, int, int], Chunks]


def whole_vector(problem: Problem, rank: int, nchunks: int) -> Chunks:
    """All chunks of the vector."""
    return range(nchunks)


def own_block(problem: Problem, rank: int, nchunks: int) -> Chunks:
    """The block that bears the rank's number."""
    return (rank,)


def all_blocks(problem: Problem, rank: int, nchunks: int) -> Chunks:
    """The blocks of all ranks, in rank order."""
    return range(problem.nranks)


def nothing(problem: Problem, rank: int, nchunks: int) -> Chunks:
    """No chunk."""
    return ()


def at_root(lies: Lies) -> Lies:
    """Restrict `lies` to the root."""
    return lambda problem, rank, nchunks: lies(problem, rank, nchunks) if rank == problem.root else ()


def vector_piece(problem: Problem, chunk: Any, nchunks: int) -> int:
    """Return the elements of chunk number `chunk` of a vector, or of ``(..., number)``, one rank's part in it."""
    return blocks(problem.count, nchunks)[chunk[-1] if isinstance(chunk, tuple) else chunk]


def rank_block(problem: Problem, chunk: Any, nchunks: int) -> int:
    """Return the elements of the block of rank `chunk`, or of ``(..., rank)``, one rank's part in it."""
    return problem.block_counts[chunk[-1] if isinstance(chunk, tuple) else chunk]


def full(nranks: int) -> float:
    """Bus bandwidth factor 1: every byte crosses the busiest link once."""
    return 1.0


def others_share(nranks: int) -> float:
    """Bus bandwidth factor (n-1)/n: all but the own block crosses the link."""
    return (nranks - 1) / nranks


def not_aliased(problem: Problem, rank: int) -> tuple[int, int] | None:
    """There is no in-place form on this rank."""
    return None


def everyone(problem: Problem, rank: int, chunk: Any) -> Sequence[int]:
    """All ranks contribute."""
    return range(problem.nranks)


def same_chunk(rank: int, chunk: Any) -> Chunk:
    """A rank contributes to a chunk what it has under the same name."""
    return chunk


class Primitive:
    """One collective primitive: its contract, its native calls and its algorithms by name.

    Args:
        name: the field's name, as in the command line and in rows.
        inputs, outputs: which chunks a rank has at the start and must have at the end, in buffer order.
        chunk_count: elements of a chunk.
        busbw_factor: factor from algorithm bandwidth to bus bandwidth, as nccl-tests defines it.
        native: ``native(comm, send, recv, problem, rank, op, persistent)`` returns the library's own call, bound to
            message specifications, or its persistent request.
        aliasing: element offsets of send and receive data in the one buffer of an in-place call, None where MPI has no
            in-place form on that rank.
        combines: whether values are contributions to be combined.
        rooted: whether one rank is the root.
        vector: whether the algorithm chooses how the vector is cut; otherwise chunks are the ranks' blocks.
        one_buffer: whether sender and receivers pass the same single buffer (broadcast).
        synchronises: whether no rank may leave before all have entered (barrier).
        needs: preconditions of the primitive itself.
        contributors: the ranks, in order, whose contributions an output chunk combines.
        contribution: which of its input chunks a rank contributes to an output chunk.
        legs: into how many one-way times a call's duration is divided (2 for ping-pong).

    """

    def __init__(
        self,
        name: str,
        *,
        inputs: Lies,
        outputs: Lies,
        chunk_count: Callable[[Problem, Any, int], int],
        native: Callable[..., Any],
        busbw_factor: Callable[[int], float] = full,
        aliasing: Callable[[Problem, int], tuple[int, int] | None] = not_aliased,
        combines: bool = False,
        rooted: bool = False,
        vector: bool = False,
        one_buffer: bool = False,
        synchronises: bool = False,
        contributors: Callable[[Problem, int, Any], Sequence[int]] = everyone,
        contribution: Callable[[int, Any], Chunk] = same_chunk,
        needs: Need | tuple[Need, ...] = (),
        legs: int = 1,
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.chunk_count = chunk_count
        self.native = native
        self.busbw_factor = busbw_factor
        self.aliasing = aliasing
        self.combines = combines
        self.rooted = rooted
        self.vector = vector
        self.one_buffer = one_buffer
        self.synchronises = synchronises
        self.contributors = contributors
        self.contribution = contribution
        self.needs = needs if isinstance(needs, tuple) else (needs,)
        self.legs = legs
        self.algorithms: dict[str, Algorithm] = {}

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return find, (self.name,)

    def algorithm(
        self,
        *,
        chunks: Callable[..., int] = one_chunk,
        needs: Need | tuple[Need, ...] | Callable[..., Need | tuple[Need, ...]] = (),
        keeps_order: bool | Callable[..., bool] = False,
        waits: str = "round",
        name: str | None = None,
        parts: Callable[..., Iterable[tuple[Algorithm, Problem]]] | None = None,
        staged: bool = False,
    ) -> Callable[[Callable[..., Rounds]], Callable[..., Rounds]]:
        """Register a generator of rounds as an algorithm of this primitive, under its own name.

        The generator's arguments beyond rank, nranks, root and nodes (the ranks of each node) are the algorithm's
        parameters, with their defaults. Their annotations say which values fit: int, `Radix`, or a Literal of names.
        `needs` and `keeps_order` may be functions of the parameters.
        """

        def register(generate: Callable[..., Rounds]) -> Callable[..., Rounds]:
            positional = ("rank", "nranks", "root", "nodes")
            defaults = {
                key: one.default for key, one in inspect.signature(generate).parameters.items() if key not in positional
            }
            one = Algorithm(
                self,
                name or generate.__name__,
                generate,
                needs,
                chunks,
                keeps_order,
                waits,
                defaults,
                defaults,
                parts=parts,
                staged=staged,
            )
            self.algorithms[one.name] = one
            return generate

        return register

    def like(self, name: str, **changed: Any) -> Primitive:
        """Return a primitive of another name with this contract but for what is `changed`, and the same algorithms."""
        taken = inspect.signature(Primitive).parameters
        contract = {key: value for key, value in vars(self).items() if key in taken}
        other = Primitive(**{**contract, "name": name, **changed})
        other.algorithms = {key: replace(one, primitive=other) for key, one in self.algorithms.items()}
        return other

    def find(self, specification: str | Algorithm) -> Algorithm:
        """Return the algorithm that `specification` names: ``ring`` or ``chain:segments=16``.

        Raises:
            UnknownNameError: no such algorithm or parameter; the message lists those there are.
            ValueError: a parameter's value does not fit.

        """
        if isinstance(specification, Algorithm):
            return specification
        name, *words = re.split("[:,]", specification)
        if name not in self.algorithms:
            known = ", ".join(self.algorithms)
            raise UnknownNameError(f"{self.name} has no algorithm {name!r} (it has: {known})")
        return self.algorithms[name].with_parameters(dict(_parameter(word) for word in words))

    def unmet(self, problem: Problem) -> str | None:
        """Return why the primitive itself does not apply to `problem`, or None if it does."""
        for need in self.needs:
            if not need.met(problem, True):
                return f"{self.name} needs {need.words}"
        return None

    def problem(self, nranks: int, count: int, **more: Any) -> Problem:
        """Return an instance of this primitive."""
        return Problem(self, nranks, count, **more)

    def send_count(self, problem: Problem, rank: int) -> int:
        """Return the elements of `rank`'s send buffer."""
        return self._count(problem, self.inputs(problem, rank, 1))

    def recv_count(self, problem: Problem, rank: int) -> int:
        """Return the elements of `rank`'s receive buffer."""
        return self._count(problem, self.outputs(problem, rank, 1))

    def _count(self, problem: Problem, chunks: Chunks) -> int:
        return sum(self.chunk_count(problem, chunk, 1) for chunk in chunks)

    def plan(self, comm: Any, *buffers: Any, stream: Any = None, **options: Any) -> Any:
        """Bind one call to a communicator and buffers; see `collectives.calls.make`.

        stream: of CuPy, on which work is ordered instead of the one that is current when the plan is called.
        """
        from collectives.calls import make  # only those who communicate load MPI

        if stream is None:
            return make(self, comm, *buffers, **options)
        from collectives.ordered import OnStream

        with stream:
            return OnStream(make(self, comm, *buffers, **options), stream)

    def __call__(self, comm: Any, *buffers: Any, stream: Any = None, **options: Any) -> None:
        """Carry out one call; see `plan` for the arguments. The plan is kept for the next call."""
        from collectives.calls import call

        with nullcontext() if stream is None else stream:
            call(self, comm, *buffers, **options)


def _parameter(word: str) -> tuple[str, Parameter]:
    key, equals, text = word.partition("=")
    if not equals or not key or not text:
        raise UnknownNameError(f"{word!r} is not a parameter; write it as name=value, for example segments=16")
    try:
        return key, int(text)
    except ValueError:
        return key, text


def algorithm_of(*primitives: Primitive, **data: Any) -> Callable[[Callable[..., Rounds]], Callable[..., Rounds]]:
    """Register a generator of rounds with several primitives; see `Primitive.algorithm` for the data."""

    def register(generate: Callable[..., Rounds]) -> Callable[..., Rounds]:
        for primitive in primitives:
            primitive.algorithm(**data)(generate)
        return generate

    return register


def find(name: str) -> Primitive:
    """Return the primitive of this name.

    Raises:
        UnknownNameError: there is none; the message lists those there are.

    """
    from collectives import PRIMITIVES

    if name not in PRIMITIVES:
        raise UnknownNameError(f"there is no primitive {name!r} (there are: {', '.join(PRIMITIVES)})")
    return PRIMITIVES[name]


def consecutive(chunks: Chunks) -> Iterator[tuple[int, int]]:
    """Yield the index ranges of maximal runs of chunks that follow one another in the vector.

    Both ends of a message know the names of its chunks, so both cut it at the same places without talking.
    """
    start = 0
    for index, (one, following) in enumerate(pairwise(chunks), start=1):
        if not (isinstance(one, int) and isinstance(following, int) and following == one + 1):
            yield start, index
            start = index
    yield start, len(chunks)
