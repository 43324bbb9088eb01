"""Reduce: every rank contributes, the combined result stays at the root (MPI-5.0 section 6.9.1)."""

from collectives.backwards import backwards
from collectives.broadcast import binomial as broadcast_binomial
from collectives.broadcast import knomial as broadcast_knomial
from collectives.contracts import at_root, vector_piece, whole_vector
from collectives.folding import fold_in, folding
from collectives.gather import binomial as gather_binomial
from collectives.halving import halving
from collectives.parameters import Radix
from collectives.reduce_scatter import reverse_bruck
from collectives.registry import Primitive
from collectives.rounds import LEFT, RIGHT, RecvReduce, Rounds, Send, among, largest_power_of_two
from collectives.trees import in_order, pre_order, up
from collectives.vector import per_rank, per_segment, power_of_two_chunks

reduce = Primitive(
    "reduce",
    inputs=whole_vector,
    outputs=at_root(whole_vector),
    chunk_count=vector_piece,
    aliasing=lambda problem, rank: (0, 0) if rank == problem.root else None,
    native=lambda call: [("Reduce", call.send, call.recv, call.op, call.problem.root)],
    combines=True,
    rooted=True,
    vector=True,
)


@reduce.algorithm(keeps_order=True)
def linear(rank: int, nranks: int, root: int) -> Rounds:
    """Everyone sends to the root at once, which combines in rank order (Pješivac-Grbović et al. 2007)."""
    if rank == root:
        below = (RecvReduce(peer, 0, side=LEFT) for peer in range(root - 1, -1, -1))
        above = (RecvReduce(peer, 0, side=RIGHT) for peer in range(root + 1, nranks))
        yield (*below, *above)
    else:
        yield Send(root, 0)


@reduce.algorithm()
def binomial(rank: int, nranks: int, root: int) -> Rounds:
    """Partial results of 1, 2, 4, ... ranks meet along a binomial tree, in order if root is 0 (Chan et al. 2007)."""
    yield from backwards(broadcast_binomial(rank, nranks, root), combining=True)


@reduce.algorithm()
def knomial(rank: int, nranks: int, root: int, radix: Radix = 4) -> Rounds:
    """Partial results of 1, k, k^2, ... ranks meet along a k-nomial tree (Wilkins et al. 2023)."""
    yield from backwards(broadcast_knomial(rank, nranks, root, radix), combining=True)


@reduce.algorithm(chunks=per_segment, waits="data")
def chain(rank: int, nranks: int, root: int, segments: int = 16) -> Rounds:
    """Segments go up the chain of ranks and gain a contribution at each (Pješivac-Grbović et al. 2007)."""
    yield from up(pre_order(nranks, 1, root), rank, range(segments))


@reduce.algorithm(chunks=per_segment, waits="data")
def binary_tree(rank: int, nranks: int, root: int, segments: int = 16) -> Rounds:
    """Segments follow one another up a binary tree (Pješivac-Grbović et al. 2007)."""
    yield from up(pre_order(nranks, 2, root), rank, range(segments))


@reduce.algorithm(chunks=per_segment, keeps_order=True, waits="data")
def in_order_binary(rank: int, nranks: int, root: int, segments: int = 16) -> Rounds:
    """Segments go up a binary tree of which each subtree is a run of ranks, so order is kept (Sanders et al. 2009).

    Below the root hang a tree of all lower and one of all higher ranks, so any rank can be the root.
    """
    yield from up(in_order(nranks, root), rank, range(segments))


@reduce.algorithm(chunks=power_of_two_chunks)
def rabenseifner(rank: int, nranks: int, root: int) -> Rounds:
    """Reduce-scatter by recursive halving, then gather along a binomial tree (Rabenseifner 2004)."""
    folded = folding(nranks, largest_power_of_two(nranks), leader=root)
    leaders = folded.leaders
    yield from fold_in(folded, rank, range(len(leaders)))
    yield from among(leaders, rank, halving)
    yield from among(leaders, rank, lambda index, n: gather_binomial(index, n, leaders.index(root)))


@reduce.algorithm(chunks=per_rank)
def reverse_bruck_gather(rank: int, nranks: int, root: int) -> Rounds:
    """Reduce-scatter by Bruck's all-gather backwards, then gather along a binomial tree (Träff 2024)."""
    yield from reverse_bruck(rank, nranks)
    yield from gather_binomial(rank, nranks, root)
