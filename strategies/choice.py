"""What a strategy can be asked for: its variants, and meshes of the axes that its step knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from strategies.mesh import Mesh

Variant = TypeVar("Variant")

PLAIN_DATA_AXES = ("dp", "dp_shard", "dp_replicate")
"""Data-parallel axes, which every step knows: it sums gradients over them at the end."""


def find_variant(variants: Mapping[str, Variant], name: str) -> Variant:
    """Find a variant by name; the first one is the usual one, and that of "". Raises ValueError naming them."""
    if name == "":
        return next(iter(variants.values()))
    if name not in variants:
        raise ValueError(f"there is no variant {name!r} here; take one of {', '.join(variants)}")
    return variants[name]


def check_axes(strategy: str, mesh: Mesh, axes: Iterable[str]) -> None:
    """Refuse a mesh with axes that the step of this strategy does nothing with."""
    known = (*axes, *PLAIN_DATA_AXES)
    others = [axis for axis in mesh.axes if mesh.length(axis) > 1 and axis not in (*known, "repeat")]
    if others:
        having = ", ".join(f"{axis}={mesh.length(axis)}" for axis in others)
        raise ValueError(
            f"the step of {strategy} runs on {', '.join(known)} and knows nothing to do with {having}; "
            "take a mesh without, or the strategy hybrid"
        )
