"""The library's own algorithms, one by one: told to use one of them, with proof of what ran.

What lies above (Open MPI's ``han``, MPICH's device collectives) is put out of the way meanwhile, variables are restored
afterwards, and what the library silently runs instead is consulted (`collectives.fallbacks`). That it ran is looked for
in what it leaves behind (`collectives.proofs`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from mpi4py import MPI

from collectives.attached import attached_to
from collectives.bind import Bound
from collectives.choices import Request, find, library
from collectives.evidence import sample
from collectives.fallbacks import Case, Outcome, outcome
from collectives.forced import Forced
from collectives.mpit import ToolError, ToolInterface
from collectives.native import NativePlan
from collectives.operations import OPERATIONS, Operation
from collectives.plan import NotApplicable
from collectives.proofs import Proofs

SUM = OPERATIONS["sum"]


class Forcing:
    """What is kept with a communicator: the library's tool interface and the forced communicators, by label.

    Raises:
        ToolError: the library cannot be told what to run.

    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.tool = ToolInterface()
        self.library = library(self.tool)
        self.comm = comm.Dup()
        self._forced: dict[tuple[str, str], Forced] = {}
        self.proofs = Proofs(self)

    def free(self) -> None:
        """Free the communicators and leave the tool interface."""
        for forced in self._forced.values():
            forced.free()
        if not MPI.Is_finalized():
            self.comm.Free()
        self.tool.close()

    def forced(self, request: Request) -> Forced:
        """Return the communicator for `request`; the first time, all ranks make it together.

        Raises:
            NotApplicable: the library does not let it be chosen in this process.
            UnknownNameError: the algorithm has no such parameter.

        """
        key = request.choice.function, request.label
        if key not in self._forced:
            self._forced[key] = Forced(self.comm, request, self.library)
        return self._forced[key]

    def outcome(self, request: Request, bound: Bound, operation: Operation) -> Outcome:
        """Return what runs when `request` is forced for this call."""
        problem = bound.problem
        case = Case(
            problem.nranks,
            problem.count,
            1 if bound.dtype is None else bound.dtype.itemsize,
            commutative=operation.commutative,
            built_in=operation.mpi_name is not None,
            in_place=problem.in_place,
            even=problem.even,
            parameters=request.parameters,
        )
        return outcome(self.tool.flavour, request.choice.function, request.choice.name, case)


def forcing_of(comm: MPI.Intracomm) -> Forcing:
    """Return what is kept with `comm` for forcing; the first time, all its ranks make it together.

    Raises:
        NotApplicable: the library's algorithms cannot be chosen one by one; the message says why.

    """
    attached = attached_to(comm)
    if attached.forcing is None:
        try:
            attached.forcing = Forcing(attached.comm)
        except ToolError as error:
            raise NotApplicable(f"only the library's default can be measured: {error}") from error
    assert isinstance(attached.forcing, Forcing)
    return attached.forcing


class ForcedPlan(NativePlan):
    """The library's own call by one of its own algorithms.

    `requested` and `effective` are labels (``native:ring``): what was asked for and what runs; where they differ, `why`
    says how the library comes to it. `proved` is whether more than a variable's value shows it; `prove` looks for that.

    Raises:
        NotApplicable: the library refuses it for this call, or does not let it be chosen.
        UnknownNameError: the library has no such algorithm or parameter.

    """

    def __init__(self, comm: MPI.Intracomm, bound: Bound, operation: Operation, specification: str) -> None:
        self._forcing = forcing_of(comm)
        problem = bound.problem
        self._request = find(self._forcing.library, problem.primitive, specification, problem.even)
        result = self._forcing.outcome(self._request, bound, operation)
        if result.effective is None:
            raise NotApplicable(f"{specification}: {result.why}")
        self._forced = self._forcing.forced(self._request)
        self.requested = self._request.label
        self._instead = None
        if result.effective != self._request.choice.name:
            self._instead = self._forcing.library.request(self._request.choice.primitive, result.effective)
        self.effective = self.running.label
        self._known, self._count = result.why, problem.count
        self.proved, self.why = False, result.why or "not looked at"
        super().__init__(self._forced.comm, bound, operation, False)
        self._try()
        self._ready = self._calls
        self._alone = self._calls if self._forcing.library.at_creation else [self._arm_and_call]
        self._calls = self._alone
        self._armed = _Armed(self, self._forced.armed())

    def _try(self) -> None:
        """Carry out one call on few elements, so that what the library refuses is known before anything is timed."""
        bound = sample(self._request.choice.primitive, self._comm.size, self._comm.rank, self._comm.size * 16)
        with NativePlan(self._comm, bound, SUM, False) as few, self._forced.armed():
            try:
                few()
            except MPI.Exception as error:
                raise NotApplicable(f"{self.requested}: the library refuses it: {error.Get_error_string()}") from error

    def prove(self) -> bool:
        """Look for evidence that what is said to run does; all ranks call it, and it takes seconds the first time.

        Sets `proved` and `why`, and returns `proved`.
        """
        proofs = self._forcing.proofs
        if self._instead is None:
            self.proved, self.why = proofs.prove(self._request)
        else:
            self.proved, seen = proofs.prove_instead(self._request, self._instead, self._count)
            self.why = f"{self._known}; {seen}"
        return self.proved

    @property
    def running(self) -> Request:
        """What runs."""
        return self._instead or self._request

    @property
    def counterpart(self) -> str | None:
        """Our own implementation of what runs, as a specification; None where there is none."""
        return self._forcing.library.counterpart(self.running)

    @property
    def settings(self) -> str:
        """The variables by which the library is told, what lies above put out of its way among them."""
        chosen = self._forcing.library
        return " ".join(f"{name}={chosen.word(name, value)}" for name, value in chosen.settings(self._request).items())

    def armed(self) -> AbstractContextManager[None]:
        return self._armed

    def _arm_and_call(self) -> None:
        with self.armed():
            self()

    def __call__(self) -> None:
        # Not the base's: Python makes a function fast for one type, and would slow native's calls too if it had two.
        for call in self._calls:
            call()

    def start(self) -> None:
        raise NotApplicable(f"{self.requested}: the library chooses otherwise for the non-blocking call")


class _Armed(AbstractContextManager[None]):
    """What `ForcedPlan.armed` returns: no generator, whose turns a short call just after would pay for."""

    def __init__(self, plan: ForcedPlan, forced: AbstractContextManager[None]) -> None:
        self._plan, self._forced = plan, forced

    def __enter__(self) -> None:
        self._forced.__enter__()
        self._plan._calls = self._plan._ready

    def __exit__(self, *exception: Any) -> None:
        self._plan._calls = self._plan._alone
        self._forced.__exit__(*exception)
