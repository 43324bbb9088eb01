"""A communicator on which the library was told which of its algorithms to use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from mpi4py import MPI

from collectives.choices import Library, Request
from collectives.mpit import ToolError
from collectives.plan import NotApplicable


class Forced:
    """A communicator like `comm` on which the library uses a certain algorithm for one function.

    Open MPI: the variables were set while the communicator was made, and were restored at once. MPICH: they are set
    inside ``with forced.armed()``, and restored after it.

    Raises:
        NotApplicable: the library does not let it be chosen in this process.
        UnknownNameError: the algorithm has no such parameter.

    """

    def __init__(self, comm: MPI.Intracomm, request: Request, chosen: Library) -> None:
        if request.choice.locked:
            raise NotApplicable(request.choice.locked)
        self._tool, self._at_creation = chosen.tool, chosen.at_creation
        named = {chosen.tool.variable(name): value for name, value in chosen.settings(request).items()}
        # What the launcher has set as it must be need not be writable.
        self._settings = {one: value for one, value in named.items() if one.writable or self._tool.read(one) != value}
        try:
            with self._set():
                self.comm = comm.Dup()
        except ToolError as error:
            raise NotApplicable(str(error)) from error

    def armed(self) -> AbstractContextManager[None]:
        """Calls of this communicator inside use the algorithm. To be entered and left outside of what is timed."""
        return nullcontext() if self._at_creation else self._set()

    @contextmanager
    def _set(self) -> Iterator[None]:
        before = {variable: self._tool.read(variable) for variable in self._settings}
        try:
            for variable, value in self._settings.items():
                self._tool.write(variable, value)  # reads it back
            yield
        finally:
            for variable, value in before.items():
                self._tool.write(variable, value)

    def free(self) -> None:
        """Free the communicator."""
        if not MPI.Is_finalized():
            self.comm.Free()
