"""Nothing imports upwards: collectives know nothing of strategies, and neither knows of the benchmark."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ABOVE = {"collectives": {"strategies", "bench", "tests"}, "strategies": {"bench", "tests"}, "bench": {"tests"}}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("room", ABOVE)
def test_no_file_imports_from_a_room_above(room):
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    assert [(str(path), name) for path in files for name in imported(path) if name in ABOVE[room]] == []
