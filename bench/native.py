"""Print what the MPI library at hand can be told to run: its own algorithms, their parameters, and what lies above.

python -m bench.native [PRIMITIVE ...]

Each line is a contender of the sweep, as in `mpirun -n 4 python -m bench.sweep allreduce -a native:ring,ring`. No
launcher is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bench.launch import prepare
from collectives.printing import reader_may_leave

if TYPE_CHECKING:
    from collectives.choices import Choice, Library

HEADINGS = ("contender", "id", "parameters", "ours", "")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 where a primitive is asked for that does not exist. Only rank 0 prints."""
    words = sys.argv[1:] if argv is None else list(argv)
    if "-h" in words or "--help" in words:
        print((__doc__ or "").strip())
        return 0
    prepare()  # before MPI is loaded
    from mpi4py import MPI

    from collectives import PRIMITIVES
    from collectives.choices import library
    from collectives.mpit import ToolError, ToolInterface

    leads = MPI.COMM_WORLD.Get_rank() == 0
    unknown = [word for word in words if word not in PRIMITIVES]
    if unknown:
        if leads:
            known = ", ".join(PRIMITIVES)
            print(f"bench.native: unknown primitive {unknown[0]!r} for PRIMITIVE (known: {known})", file=sys.stderr)
        return 2
    if leads:
        name, *_ = MPI.Get_library_version().splitlines()
        with reader_may_leave():
            print(f"# {name}")
            try:
                with ToolInterface() as tool:
                    for line in _lines(library(tool), words or list(PRIMITIVES)):
                        print(line)
            except ToolError as reason:
                print(f"# only the library's default, native, can be measured: {reason}")
    return 0


def _lines(library: Library, names: Sequence[str]) -> Iterator[str]:
    """Yield what is printed: the layers that decide, then a table for each primitive."""
    from collectives import PRIMITIVES

    yield f"# {library.when}"
    yield "# what decides, and how it is set:"
    for layer, value in library.layers().items():
        yield f"#   {layer} = {library.word(layer, value)}"
    for name in names:
        choices = library.choices(PRIMITIVES[name])
        entries = [
            (choice.label({}), str(choice.value), _parameters(library, choice), _ours(library, choice), choice.locked)
            for choice in choices
        ]
        yield ""
        yield (
            f"{name}, MPI_{choices[0].function}" if choices else f"{name}: no choice of the library's own, only native"
        )
        if entries:
            widths = [max(map(len, column)) for column in zip(HEADINGS, *entries, strict=True)]
            for entry in (HEADINGS, *entries):
                yield "  " + "  ".join(map(str.ljust, entry, widths)).rstrip()


def _parameters(library: Library, choice: Choice) -> str:
    values = ((key, variable, library.tool.read(variable)) for key, variable in choice.parameters.items())
    return ", ".join(f"{key}={library.word(variable, value)}" for key, variable, value in values)


def _ours(library: Library, choice: Choice) -> str:
    from collectives.choices import Request

    return library.ours(Request(choice, {})) or ""


if __name__ == "__main__":
    sys.exit(main())
