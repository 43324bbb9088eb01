"""Memory that all ranks of a node were handed together, kept until none of them holds it any more."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from mpi4py import MPI

Place = TypeVar("Place")
"""How the kind of memory names where something lies."""


@dataclass
class Handed(Generic[Place]):
    """One piece: where, at which address here, the own hold on it, and what its owner must keep for it."""

    place: Place
    address: int
    nbytes: int
    hold: Callable[[], Any]
    memory: Any


class InCommon(Generic[Place]):
    """What the ranks of a node were handed, in the same order on all of them."""

    def __init__(self, node: MPI.Intracomm) -> None:
        self._node = node
        self._handed: list[Handed[Place]] = []

    def add(self, place: Place, address: int, nbytes: int, hold: object, memory: Any) -> None:
        """Note a piece that this rank holds as long as `hold` is there. Its owner keeps `memory` alive."""
        self._handed.append(Handed(place, address, nbytes, weakref.ref(hold), memory))

    def at(self, address: int) -> Handed[Place] | None:
        """Return the piece in which an address lies, None if in none."""
        return next((one for one in self._handed if one.address <= address < one.address + one.nbytes), None)

    def collect(self) -> None:
        """Let go of what none holds any more. Collective on the node."""
        dropped = np.array([one.hold() is None for one in self._handed], np.uint8)
        self._node.Allreduce(MPI.IN_PLACE, dropped, MPI.MIN)
        self._handed = [one for one, by_all in zip(self._handed, dropped, strict=True) if not by_all]

    def clear(self) -> None:
        """Let go of everything."""
        self._handed = []
