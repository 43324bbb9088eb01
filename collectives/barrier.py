"""Barrier: no rank leaves before all have entered (MPI-5.0 section 6.3). Messages carry nothing."""

from collectives.registry import Primitive, nothing, rank_block
from collectives.rounds import Recv, Rounds, Send, powers_of_two_below

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
    """Everyone signals to rank 0, which then signals to everyone."""
    if rank == 0:
        yield tuple(Recv(peer) for peer in range(1, nranks))
        yield tuple(Send(peer) for peer in range(1, nranks))
    else:
        yield Send(0)
        yield Recv(0)
