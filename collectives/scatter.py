"""Scatter: the root gives a different block to every rank (MPI-5.0 section 6.6)."""

from dataclasses import replace

from collectives.contracts import all_blocks, at_root, others_share, own_block, rank_block
from collectives.parameters import Radix
from collectives.registry import Primitive
from collectives.rounds import Recv, Rounds, Send, cyclic
from collectives.trees import blocks_below
from collectives.trees import knomial as knomial_tree
from collectives.vector import offsets


def _native(call):
    if call.even:
        return [("Scatter", call.send, call.recv, call.problem.root)]
    return [("Scatterv", call.send and call.blocks(call.send), call.recv, call.problem.root)]


scatter = Primitive(
    "scatter",
    inputs=at_root(all_blocks),
    outputs=own_block,
    chunk_count=rank_block,
    busbw_factor=others_share,
    aliasing=lambda problem, rank: (0, offsets(problem.block_counts)[rank]) if rank == problem.root else None,
    native=_native,
    rooted=True,
)


@scatter.algorithm()
def linear(rank: int, nranks: int, root: int) -> Rounds:
    """The root sends to everyone, all at once, nearest above first (Chan et al. 2007)."""
    if rank == root:
        yield tuple(Send(peer, peer) for peer in cyclic(root + 1, nranks - 1, nranks))
    else:
        yield Recv(root, rank)


@scatter.algorithm()
def linear_throttled(rank: int, nranks: int, root: int, window: int = 4) -> Rounds:
    """The root sends to `window` ranks at a time, nearest above first (Chan et al. 2007)."""
    others = cyclic(root + 1, nranks - 1, nranks)
    for first in range(0, nranks - 1, window):
        served = others[first : first + window]
        if rank == root:
            yield tuple(Send(peer, peer) for peer in served)
        else:
            yield Recv(root, rank) if rank in served else ()


@scatter.algorithm()
def binomial(rank: int, nranks: int, root: int) -> Rounds:
    """Halves of the remaining blocks go down a binomial tree, the farthest first (Chan et al. 2007)."""
    yield from knomial_tree(rank, nranks, root, 2, blocks_below(nranks, root))


@scatter.algorithm()
def knomial(rank: int, nranks: int, root: int, radix: Radix = 4) -> Rounds:
    """Parts of the remaining blocks go to radix-1 others in every round, the farthest first (Wilkins et al. 2023)."""
    yield from knomial_tree(rank, nranks, root, radix, blocks_below(nranks, root))


scatterv = scatter.like("scatterv", native=lambda call: _native(replace(call, general=True)))
"""Scatter whose native call is always that with a count for each rank."""
