"""Problems drawn at random for the tests: any primitive, algorithm, parameters, ranks, root, counts and way to cut."""

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from hypothesis import strategies as st

from collectives import PRIMITIVES
from collectives.composition import PartOf
from collectives.operations import OPERATIONS
from collectives.parameters import AtLeast
from collectives.problem import nodes_of

DTYPES = ("float32", "float64", "complex64", "int16", "int64", "uint8", "bool")
OPS = ("sum", "prod", "max", "min", "lor", "band")
ALL = [one for primitive in PRIMITIVES.values() for one in primitive.algorithms.values()]


def has_in_place(primitive, nranks):
    problem = primitive.problem(nranks, nranks)
    return any(primitive.aliasing(problem, rank) is not None for rank in range(nranks))


def uneven_counts(primitive, nranks, seed):
    """Counts of blocks, some empty, for a primitive that takes them; None for the others."""
    if not primitive.name.endswith("v"):
        return None
    counts = np.random.default_rng(seed).integers(0, 5, (nranks, nranks))
    if primitive.name != "alltoallv":
        return tuple(counts[0].tolist())
    if seed % 2 == 0:  # as much there as back: what in place needs
        counts = np.minimum(counts, counts.T)
    return tuple(tuple(one) for one in counts.tolist())


def values(kind):
    """Values that fit a parameter of this type."""
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    rule = get_args(kind)[1] if get_args(kind) else AtLeast(1)
    return st.sampled_from(rule.names()) if isinstance(rule, PartOf) else st.integers(rule.value, rule.value + 4)


@dataclass(frozen=True)
class Drawn:
    """An algorithm with its parameters, a problem, and how it is cut, all by name, so that ranks can tell each other.

    `ppn` ranks make a pretended node, None: all are on one. No message is larger than `cap` bytes.
    """

    primitive: str
    label: str
    nranks: int
    more: dict[str, Any]
    ppn: int | None
    cap: int
    dtype: str
    op: str

    @property
    def algorithm(self):
        return PRIMITIVES[self.primitive].find(self.label)

    @property
    def problem(self):
        nodes = (0,) if self.ppn is None else nodes_of(self.nranks, self.ppn)
        return PRIMITIVES[self.primitive].problem(self.nranks, nodes=None if len(nodes) == 1 else nodes, **self.more)


@st.composite
def cases(draw, nranks=None):
    """Draw a case, of `nranks` ranks if that is given, else of up to 33."""
    algorithm = draw(st.sampled_from(ALL))
    primitive = algorithm.primitive
    nranks = nranks or draw(st.integers(1, 33))
    hints = get_type_hints(algorithm.generate, include_extras=True)
    how = {key: draw(values(hints[key])) for key in algorithm.parameters if draw(st.booleans())}
    sizes = {"piece": st.integers(4, 200), "cuts": st.integers(1, 4), "pack_from": st.integers(4, 200)}
    sizes["waits"] = st.sampled_from(["round", "data"])
    how |= {key: draw(any_of) for key, any_of in sizes.items() if draw(st.booleans())}
    dtype = draw(st.sampled_from(DTYPES))
    defined = [name for name in OPS if not OPERATIONS[name].undefined_for(np.dtype(dtype))]
    counts = uneven_counts(primitive, nranks, draw(st.integers(0, 99)))
    more = {
        "count": draw(st.integers(0, 80)) if counts is None else int(np.sum(counts)),
        "counts": counts,
        "root": draw(st.integers(0, nranks - 1)) if primitive.rooted else 0,
        "in_place": draw(st.booleans()) and has_in_place(primitive, nranks),
    }
    return Drawn(
        primitive.name,
        algorithm.with_parameters(how).label,
        nranks,
        more,
        draw(st.integers(1, nranks)) if algorithm.takes_nodes else None,
        draw(st.integers(16, 400)),
        dtype,
        draw(st.sampled_from(defined)) if primitive.combines else "sum",
    )
