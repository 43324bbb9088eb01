"""Gather: the root collects a block from every rank (MPI-5.0 section 6.5)."""

from collectives.registry import Primitive, all_blocks, at_root, offsets, others_share, own_block, rank_block
from collectives.rounds import Recv, Rounds, Send, powers_of_two_below


def _native(call):
    if call.problem.even:
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
    """Everyone sends to the root, all at once."""
    if rank == root:
        yield tuple(Recv(peer, peer) for peer in range(nranks) if peer != root)
    else:
        yield Send(root, rank)


@gather.algorithm()
def binomial(rank: int, nranks: int, root: int) -> Rounds:
    """Subtrees of 1, 2, 4, ... ranks are collected along a binomial tree (Chan et al. 2007)."""
    relative = (rank - root) % nranks
    for distance in powers_of_two_below(nranks):
        if relative % (2 * distance) == distance:
            yield Send((rank - distance) % nranks, *subtree(relative, distance, nranks, root))
        elif relative % (2 * distance) == 0 and relative + distance < nranks:
            yield Recv((rank + distance) % nranks, *subtree(relative + distance, distance, nranks, root))
        else:
            yield ()


def subtree(relative: int, length: int, nranks: int, root: int) -> list[int]:
    """The blocks of the `length` ranks from the one at distance `relative` above the root on, as far as there are."""
    return [(one + root) % nranks for one in range(relative, min(relative + length, nranks))]
