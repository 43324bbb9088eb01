"""A plan whose work on a GPU is ordered on a stream of the caller's choice, whichever is current when it is called."""

from __future__ import annotations

from typing import Any

from collectives.plan import Plan, PlanAround


class OnStream(PlanAround):
    """`inner`, carried out with `stream`, a CuPy stream, as the current one of the thread."""

    def __init__(self, inner: Plan, stream: Any) -> None:
        super().__init__(inner)
        self._stream = stream

    def __call__(self) -> None:
        with self._stream:
            self._inner()

    def start(self) -> None:
        with self._stream:
            self._inner.start()

    def test(self) -> bool:
        with self._stream:
            return self._inner.test()

    def wait(self) -> None:
        with self._stream:
            self._inner.wait()
