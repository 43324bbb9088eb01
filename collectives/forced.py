"""A communicator on which the library was told which of its algorithms to use."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from mpi4py import MPI

from collectives.choices import Library, Request
from collectives.mpit import Setting, ToolError
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
        tool, self._at_creation = chosen.tool, chosen.at_creation
        named = {tool.variable(name): value for name, value in chosen.settings(request).items()}
        # What the launcher has set as it must be need not be writable.
        wanted = {one: value for one, value in named.items() if one.writable or tool.read(one) != value}
        self._settings: list[Setting] = []
        self._times = 0  # that it was entered and not left
        try:
            for variable, value in wanted.items():
                self._settings.append(Setting(tool, variable, value))
            with self:
                self.comm = comm.Dup()
        except ToolError as error:
            self._free_settings()
            raise NotApplicable(str(error)) from error

    def armed(self) -> AbstractContextManager[None]:
        """Calls of this communicator inside use the algorithm. To be entered and left outside of what is timed."""
        return nullcontext() if self._at_creation else self

    def __enter__(self) -> None:
        """Set the variables, unless a plan of the same algorithm on other buffers has done so."""
        if not self._times:
            put: list[Setting] = []
            try:
                for one in self._settings:
                    one.put()
                    put.append(one)
            except ToolError:
                for one in put:
                    one.back()
                raise
        self._times += 1

    def __exit__(self, *exception: object) -> None:
        self._times -= 1
        if not self._times:
            for one in self._settings:
                one.back()

    def _free_settings(self) -> None:
        while self._settings:
            self._settings.pop().free()

    def free(self) -> None:
        """Free the communicator, and what sets the variables."""
        self._free_settings()
        if not MPI.Is_finalized():
            self.comm.Free()
