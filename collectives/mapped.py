"""Shared memory of the host that the GPUs of a node access: MPI windows registered with CUDA ("mapped" memory).

Each GPU copies out of it and into it, and its kernels read it, over its own link to the host: ranks exchange data
without a message, and no CPU copies any. It is what plans use where GPUs cannot open one another's memory. A process
registers its mapping of a window the first time that a plan uses it, and gives that up before the window is freed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from collectives.devices import array_at, cupy_module
from collectives.ipc import Unreachable
from collectives.shared import Place, SharedMemory

PORTABLE, MAPPED = 1, 2
"""CUDA's flags: for all GPUs of the process; and for their kernels too (cudaHostRegister)."""


class MappedMemory:
    """What `ipc.GpuMemory` is to plans, on the host. Methods named as collective are called by all."""

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self._runtime = cupy_module().cuda.runtime
        self._registered: dict[int, list[int]] = {}  # by window: where what was registered begins
        shared.before_free.append(self._unregister)

    def take(self, nbytes: int) -> tuple[Place, Any]:
        """Return own memory, and what keeps it. Collective; each rank may want another size.

        Raises:
            SharedMemoryError: on all ranks: a node has no more of it.

        """
        return self._shared.take(nbytes)

    def reach(self, places: Iterable[Place]) -> None:
        """Let the GPU in use access these places of any ranks. Collective, since all must know if one cannot.

        Raises:
            Unreachable: on all ranks.

        """
        numbers = sorted({place.window for place in places} - self._registered.keys())
        found = self._shared.node.allgather([self._register(number) for number in numbers])
        reasons = [one for ranks in found for one in ranks if one]
        if reasons:
            raise Unreachable(reasons[0])

    def _register(self, number: int) -> str:
        """Register a window; return why that cannot be, an empty text if it is done."""
        starts = self._registered.setdefault(number, [])
        try:
            for start, stop in self._shared.pages(number):
                self._runtime.hostRegister(start, stop - start, PORTABLE | MAPPED)
                starts.append(start)
        except RuntimeError as error:
            self._unregister(number)
            return f"rank {self._shared.rank} of the node cannot register shared memory with CUDA: {error}"
        return ""

    def _unregister(self, number: int) -> None:
        for start in self._registered.pop(number, ()):
            self._runtime.hostUnregister(start)

    def view(self, place: Place, start: int, nbytes: int) -> Any:
        """Return `nbytes` from `start` behind a place as a CuPy array; it keeps nothing alive."""
        address = self._shared.address(place) + start
        return array_at(self._runtime.pointerGetAttributes(address).devicePointer, nbytes, self)
