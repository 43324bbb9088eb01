"""Complete a run that ended early: what it has, and whether it was made in the same way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.options import Options
from bench.points import KEY, Point
from bench.rows import COLUMNS, ROWS_FILE, RUN_FILE, RowsError, read_rows, read_run
from bench.usage import UsageError

WITHOUT_EFFECT = ("show", "output", "resume", "plots", "quiet", "hang_seconds", "memory_limit", "strategies")
"""Options that change no row: a run may be resumed with others."""


@dataclass(frozen=True)
class Earlier:
    """What a run already has."""

    done: Mapping[tuple[Any, ...], Collection[str]] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def done_at(self, point: Point) -> Collection[str]:
        """Return the contenders at `point` whose rows are written."""
        return self.done.get(point.key, ())


def made_with(options: Options, contenders: Mapping[str, Sequence[str]], **more: Any) -> dict[str, Any]:
    """Return, as JSON gives it back, what all rows of a run must have been made with."""
    kept = {key: value for key, value in asdict(options).items() if key not in WITHOUT_EFFECT}
    found = {**more, "options": kept, "contenders": contenders}
    return json.loads(json.dumps(found, default=str))


def earlier(folder: Path, wanted: Mapping[str, Any]) -> Earlier:
    """Return what the run in `folder` has.

    Raises UsageError where there is no run, or one made in another way than `wanted`, with what differs.
    """
    try:
        facts = read_run(folder)
        _check_header(folder)
        rows = read_rows(folder / ROWS_FILE)[0] if (folder / ROWS_FILE).exists() else []
    except FileNotFoundError as error:
        raise UsageError("--resume", folder, f"has no {RUN_FILE}: name the folder of a run") from error
    except RowsError as error:
        raise UsageError("--resume", folder, str(error)) from error
    differences = list(_differences(facts.get("made_with", {}), wanted))
    if differences:
        raise UsageError("--resume", folder, f"was made with {'; '.join(differences)}: give the same, or start anew")
    done: dict[tuple[Any, ...], set[str]] = {}
    for row in rows:
        key = tuple(row[column] for column in KEY)
        done.setdefault(key, set()).add(row["requested"] or row["algorithm"])
    return Earlier(done, Counter(row["status"] for row in rows), facts)


def _check_header(folder: Path) -> None:
    path = folder / ROWS_FILE
    content = path.read_text(errors="replace") if path.exists() else ""
    if "\n" in content and content.split("\n", 1)[0] != ",".join(COLUMNS):
        raise RowsError(f"{ROWS_FILE} is of another schema: resume it with the version that began it, or start anew")


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> Any:
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{key} " if key == "contenders" else "")
        elif old != new:
            yield f"{above}{key.replace('_', '-')} {_words(old)}, not {_words(new)}"


def _words(value: Any) -> str:
    return ",".join(map(str, value)) or "all" if isinstance(value, list) else str(value)
