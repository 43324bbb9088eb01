"""Gather: the root collects a block from every rank (MPI-5.0 section 6.5). Backwards, each algorithm is a scatter."""

from dataclasses import replace

from collectives.backwards import backwards
from collectives.contracts import all_blocks, at_root, others_share, own_block, rank_block
from collectives.parameters import Radix
from collectives.registry import Primitive
from collectives.rounds import Recv, Rounds, Send
from collectives.scatter import binomial as scatter_binomial
from collectives.scatter import knomial as scatter_knomial
from collectives.scatter import linear_throttled as scatter_throttled
from collectives.vector import offsets


def _native(call):
    if call.even:
        return [("Gather", call.send, call.recv, call.problem.root)]
    return [("Gatherv", call.send, call.recv and call.blocks(call.recv), call.problem.root)]


gather = Primitive(
    "gather",
    inputs=own_block,
    outputs=at_root(all_blocks),
    chunk_count=rank_block,
    busbw_factor=others_share,
    aliasing=lambda problem, rank: (offsets(problem.block_counts)[rank], 0) if rank == problem.root else None,
    native=_native,
    rooted=True,
)


@gather.algorithm()
def linear(rank: int, nranks: int, root: int) -> Rounds:
    """Everyone sends to the root, all at once (Chan et al. 2007)."""
    if rank == root:
        yield tuple(Recv(peer, peer) for peer in range(nranks) if peer != root)
    else:
        yield Send(root, rank)


@gather.algorithm()
def linear_throttled(rank: int, nranks: int, root: int, window: int = 4) -> Rounds:
    """`window` ranks at a time send to the root (Chan et al. 2007)."""
    yield from backwards(scatter_throttled(rank, nranks, root, window))


@gather.algorithm()
def binomial(rank: int, nranks: int, root: int) -> Rounds:
    """Subtrees of 1, 2, 4, ... ranks are collected along a binomial tree (Chan et al. 2007)."""
    yield from backwards(scatter_binomial(rank, nranks, root))


@gather.algorithm()
def knomial(rank: int, nranks: int, root: int, radix: Radix = 4) -> Rounds:
    """Subtrees of 1, k, k^2, ... ranks are collected along a k-nomial tree (Wilkins et al. 2023)."""
    yield from backwards(scatter_knomial(rank, nranks, root, radix))


gatherv = gather.like("gatherv", native=lambda call: _native(replace(call, general=True)))
"""Gather whose native call is always that with a count for each rank."""
