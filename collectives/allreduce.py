"""All-reduce: every rank contributes, every rank gets the combined result (MPI-5.0 section 6.9.6)."""

from collectives.allgather import cyclic
from collectives.allgather import recursive_doubling as allgather_doubling
from collectives.broadcast import binomial as broadcast_binomial
from collectives.folding import fold_in, fold_out, folded_members
from collectives.reduce import binomial as reduce_binomial
from collectives.reduce import power_of_two_chunks
from collectives.reduce_scatter import recursive_halving
from collectives.registry import COMMUTATIVE, Primitive, per_rank, vector_piece, whole_vector
from collectives.rounds import LEFT, RIGHT, Recv, RecvReduce, Rounds, Send, among, powers_of_two_below

allreduce = Primitive(
    "allreduce",
    inputs=whole_vector,
    outputs=whole_vector,
    chunk_count=vector_piece,
    busbw_factor=lambda nranks: 2 * (nranks - 1) / nranks,
    aliasing=lambda problem, rank: (0, 0),
    native=lambda call: [("Allreduce", call.send, call.recv, call.op)],
    combines=True,
    vector=True,
)


@allreduce.algorithm(chunks=per_rank, needs=COMMUTATIVE, waits="data")
def ring(rank: int, nranks: int) -> Rounds:
    """Reduce-scatter once around the ring, then all-gather once around it (Patarasuk and Yuan 2009)."""
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    for step in range(nranks - 1):
        yield Send(right, (rank - step) % nranks), RecvReduce(left, (rank - step - 1) % nranks)
    for step in range(nranks - 1):
        yield Send(right, (rank + 1 - step) % nranks), Recv(left, (rank - step) % nranks)


@allreduce.algorithm(keeps_order=True)
def recursive_doubling(rank: int, nranks: int) -> Rounds:
    """Exchange and combine whole vectors with partners at distance 1, 2, 4, ... (Thakur et al. 2005)."""
    members = folded_members(nranks)
    yield from fold_in(rank, nranks, members, [0])
    yield from among(members, rank, doubling)
    yield from fold_out(rank, nranks, members, [0])


def doubling(rank: int, nranks: int) -> Rounds:
    """Recursive doubling of a whole vector among a power of two of ranks; keeps rank order."""
    for distance in powers_of_two_below(nranks):
        peer = rank ^ distance
        yield Send(peer, 0), RecvReduce(peer, 0, side=LEFT if peer < rank else RIGHT)


@allreduce.algorithm(chunks=power_of_two_chunks, needs=COMMUTATIVE)
def rabenseifner(rank: int, nranks: int) -> Rounds:
    """Reduce-scatter by recursive halving, all-gather by recursive doubling (Rabenseifner 2004)."""
    members = folded_members(nranks)
    yield from fold_in(rank, nranks, members, range(len(members)))
    yield from among(members, rank, recursive_halving)
    yield from among(members, rank, allgather_doubling)
    yield from fold_out(rank, nranks, members, range(len(members)))


@allreduce.algorithm(chunks=per_rank, needs=COMMUTATIVE)
def spread(rank: int, nranks: int) -> Rounds:
    """Every rank sends chunk k to rank k, reduces its own, and sends that back to all: two rounds."""
    others = cyclic(rank + 1, nranks - 1, nranks)
    yield (*(Send(peer, peer) for peer in others), *(RecvReduce(peer, rank) for peer in reversed(others)))
    yield (*(Send(peer, rank) for peer in others), *(Recv(peer, peer) for peer in reversed(others)))


@allreduce.algorithm(keeps_order=True)
def reduce_broadcast(rank: int, nranks: int) -> Rounds:
    """Reduce to rank 0, then broadcast from there, both along a binomial tree; keeps rank order."""
    yield from reduce_binomial(rank, nranks, 0)
    yield from broadcast_binomial(rank, nranks, 0)
