"""Barrier: no rank leaves before all have entered (MPI-5.0 section 6.3). Messages carry nothing."""

from collections.abc import Iterable

from collectives.allreduce import recursive_doubling as allreduce_doubling
from collectives.allreduce import reduce_broadcast
from collectives.contracts import nothing, rank_block
from collectives.parameters import Radix
from collectives.registry import Primitive
from collectives.rounds import (
    Message,
    Operation,
    Recv,
    Round,
    Rounds,
    Send,
    as_round,
    powers_below,
    powers_of_two_below,
)

barrier = Primitive(
    "barrier",
    inputs=nothing,
    outputs=nothing,
    chunk_count=rank_block,
    native=lambda call: [("Barrier",)],
    synchronises=True,
)


@barrier.algorithm()
def dissemination(rank: int, nranks: int) -> Rounds:
    """In round i signal to the rank at distance 2^i and hear from the one as far below (Hensgen et al. 1988)."""
    for distance in powers_of_two_below(nranks):
        yield Send((rank + distance) % nranks), Recv((rank - distance) % nranks)


@barrier.algorithm()
def linear(rank: int, nranks: int) -> Rounds:
    """Everyone signals to rank 0, which then signals to everyone (Pješivac-Grbović et al. 2007)."""
    if rank == 0:
        yield tuple(Recv(peer) for peer in range(1, nranks))
        yield tuple(Send(peer) for peer in range(1, nranks))
    else:
        yield Send(0)
        yield Recv(0)


@barrier.algorithm()
def double_ring(rank: int, nranks: int) -> Rounds:
    """A token goes around the ring to learn that all are there, and again to say so (Pješivac-Grbović et al. 2007).

    The last rank is the first to know that all are there, so the second time the token stops before it.
    """
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    for number in range(2 * nranks - 2):
        if number % nranks == rank:
            yield Send(right)
        else:
            yield Recv(left) if (number + 1) % nranks == rank else ()


@barrier.algorithm()
def k_dissemination(rank: int, nranks: int, radix: Radix = 4) -> Rounds:
    """In round i signal to k-1 ranks at multiples of k^i, and hear from as many below (Hensgen et al. 1988)."""
    for distance in powers_below(nranks, radix):
        hops = range(distance, min(radix * distance, nranks), distance)
        yield (*(Send((rank + hop) % nranks) for hop in hops), *(Recv((rank - hop) % nranks) for hop in hops))


@barrier.algorithm()
def recursive_doubling(rank: int, nranks: int) -> Rounds:
    """Exchange signals with partners at distance 1, 2, 4, ...: an all-reduce of nothing (Hensgen et al. 1988)."""
    yield from signals(allreduce_doubling(rank, nranks))


@barrier.algorithm()
def tree(rank: int, nranks: int) -> Rounds:
    """Signals go up a binomial tree, then down: a reduce and a broadcast of nothing (Chan et al. 2007)."""
    yield from signals(reduce_broadcast(rank, nranks))


def signals(rounds: Iterable[Round | Operation]) -> Rounds:
    """Yield the messages of `rounds`, carrying nothing."""
    for one in rounds:
        yield tuple(
            Send(message.peer) if isinstance(message, Send) else Recv(message.peer)
            for message in as_round(one)
            if isinstance(message, Message)
        )
