"""Who competes at a point: the library's own call and algorithms by hand, each made ready, or skipped with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.check import Checked
from bench.options import Options
from bench.timing import seconds_of
from bench.usage import UsageError
from collectives.buffers import Arena
from collectives.registry import Primitive

NATIVE = "native"
NATIVE_FORMS = (NATIVE, "native_persistent")


@dataclass
class Contender:
    """One algorithm at one point. `plan` is None where it was skipped, and then `reason` says why."""

    label: str
    plan: Any = None
    plan_seconds: float = 0.0
    reason: str = ""
    wrong: int | None = None


def labels(primitive: Primitive, options: Options) -> list[str]:
    """Return the names of the contenders for `primitive`, the baseline first.

    Raises:
        UsageError: a parameter that an algorithm does not have, or a value that does not fit.

    """
    if not options.algorithms:
        return [*NATIVE_FORMS, *primitive.algorithms]
    chosen = [NATIVE]
    for specification in options.algorithms:
        name = specification.partition(":")[0]
        if name in NATIVE_FORMS:
            chosen.append(specification)
        elif name in primitive.algorithms:
            try:
                chosen.append(primitive.find(specification).label)
            except ValueError as error:
                raise UsageError("--algorithm", specification, str(error)) from error
    return list(dict.fromkeys(chosen))


def make_ready(names: Sequence[str], comm: Any, checked: Checked, arena: Arena) -> list[Contender]:
    """Return the contenders with their plans made; the seconds that took are this rank's."""
    from collectives.plan import NotApplicable

    problem = checked.problem
    contenders = []
    for name in names:
        contender = Contender(name)
        contenders.append(contender)
        try:
            contender.plan, contender.plan_seconds = seconds_of(
                lambda name=name: problem.primitive.plan(
                    comm,
                    *checked.arrays,
                    algorithm=name,
                    op=checked.op,
                    root=problem.root,
                    count=problem.count,
                    scratch=arena,
                )
            )
        except NotApplicable as reason:
            contender.reason = str(reason)
    return contenders
