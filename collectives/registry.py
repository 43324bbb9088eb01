"""Primitives, and the algorithms that fulfil their contracts, by name.

A `Primitive` says what a collective means: which chunks each rank has at the start and must have at the end, in the
order in which they lie in its send and receive buffers. An `Algorithm` is a named generator of rounds with the
preconditions it needs. All of it is data; no MPI.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_type_hints

from collectives.contracts import Lies, everyone, full, not_aliased, same_chunk
from collectives.names import UnknownNameError
from collectives.needs import COMMUTATIVE, SHARED_MEMORY, Need
from collectives.parameters import PLAN_PARAMETERS, Parameter, misfit, parameter_of
from collectives.problem import Nodes, Problem
from collectives.rounds import Chunk, Rounds
from collectives.vector import Chunks, one_chunk


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
        return self.algorithms[name].with_parameters(dict(map(parameter_of, words)))

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
