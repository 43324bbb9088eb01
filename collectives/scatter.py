"""Scatter: the root gives a different block to every rank (MPI-5.0 section 6.6)."""

from collectives.gather import subtree
from collectives.registry import Primitive, all_blocks, at_root, offsets, others_share, own_block, rank_block
from collectives.rounds import Recv, Rounds, Send, powers_of_two_below


def _native(call):
    if call.problem.even:
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
    """The root sends to everyone, all at once, nearest above first."""
    if rank == root:
        yield tuple(Send((root + step) % nranks, (root + step) % nranks) for step in range(1, nranks))
    else:
        yield Recv(root, rank)


@scatter.algorithm()
def binomial(rank: int, nranks: int, root: int) -> Rounds:
    """Halves of the remaining blocks go down a binomial tree, the farthest first (Chan et al. 2007)."""
    relative = (rank - root) % nranks
    for distance in reversed(powers_of_two_below(nranks)):
        if relative % (2 * distance) == 0 and relative + distance < nranks:
            yield Send((rank + distance) % nranks, *subtree(relative + distance, distance, nranks, root))
        elif relative % (2 * distance) == distance:
            yield Recv((rank - distance) % nranks, *subtree(relative, distance, nranks, root))
        else:
            yield ()
