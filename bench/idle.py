"""A rank without a part in a call, while others are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.check import MEETINGS


class Idle:
    """Its buffers and its plan at once: nothing to set up, to call, to wait for or to find wrong."""

    layout = None
    scratch_nbytes = footprint_nbytes = 0

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def __call__(self) -> None:
        """Do nothing."""

    start = wait = free = __call__

    def reset(self, meet: Callable[[], Any]) -> None:
        """Set up nothing, but meet those that do."""
        for _ in range(MEETINGS):
            meet()

    def test(self) -> bool:
        """It is complete."""
        return True

    def randomise(self, seed: int) -> None:
        """There is nothing to fill."""

    def wrong(self) -> int:
        """Nothing is wrong."""
        return 0
