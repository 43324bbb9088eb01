"""All-gather: every rank contributes a block, at the end all hold all blocks (MPI-5.0 section 6.7)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from collectives.contracts import all_blocks, others_share, own_block, rank_block
from collectives.folding import fold_out, folding
from collectives.gather import binomial as gather_binomial
from collectives.needs import EVEN, POWER_OF_TWO
from collectives.negabinary import butterfly, steps
from collectives.parameters import Radix
from collectives.registry import Primitive
from collectives.rounds import (
    Message,
    Recv,
    Rounds,
    Send,
    among,
    cyclic,
    largest_power,
    powers_below,
    powers_of_two_below,
)
from collectives.trees import knomial
from collectives.vector import offsets


def _native(call):
    if call.even:
        return [("Allgather", call.send, call.recv)]
    return [("Allgatherv", call.send, call.blocks(call.recv))]


allgather = Primitive(
    "allgather",
    inputs=own_block,
    outputs=all_blocks,
    chunk_count=rank_block,
    busbw_factor=others_share,
    aliasing=lambda problem, rank: (offsets(problem.block_counts)[rank], 0),
    native=_native,
)


@allgather.algorithm(waits="data")
def ring(rank: int, nranks: int) -> Rounds:
    """Each block travels once around the ring (Chan et al. 2007)."""
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    for step in range(nranks - 1):
        yield Send(right, (rank - step) % nranks), Recv(left, (rank - step - 1) % nranks)


@allgather.algorithm(needs=POWER_OF_TWO)
def recursive_doubling(rank: int, nranks: int) -> Rounds:
    """Exchange all that is held with a partner at distance 1, 2, 4, ... (Thakur, Rabenseifner, Gropp 2005)."""
    for distance in powers_of_two_below(nranks):
        peer = rank ^ distance
        yield Send(peer, *aligned(rank, distance)), Recv(peer, *aligned(peer, distance))


def aligned(rank: int, length: int) -> range:
    """The aligned range of `length` ranks that contains `rank`."""
    start = rank - rank % length
    return range(start, start + length)


@allgather.algorithm()
def recursive_multiplying(rank: int, nranks: int, radix: Radix = 4) -> Rounds:
    """Exchange all that is held with k-1 partners at distances 1, k, k^2, ... (Wilkins et al. 2023).

    Ranks beyond the largest power of the radix are folded: they give their block to the leader of a group of
    neighbours and get all the others from it at the end.
    """
    folded = folding(nranks, largest_power(nranks, radix))
    leader = folded.leader_of(rank)

    def blocks_of(leaders: range) -> range:
        return range(folded.groups[leaders.start].start, folded.groups[leaders[-1]].stop)

    def multiply(index: int, nleaders: int) -> Rounds:
        for distance in powers_below(nleaders, radix):
            mine, digits = aligned(index, distance), aligned(index, radix * distance)[index % distance :: distance]
            partners = [other for other in digits if other != index]
            yield (
                *(Send(peer, *blocks_of(mine)) for peer in partners),
                *(Recv(peer, *blocks_of(aligned(peer, distance))) for peer in partners),
            )

    if not folded.everyone:
        yield tuple(Recv(peer, peer) for peer in folded.others(rank)) if rank == leader else Send(leader, rank)
    yield from among(folded.leaders, rank, multiply)
    yield from fold_out(folded, rank, lambda member: cyclic(member + 1, nranks - 1, nranks))


@allgather.algorithm()
def bruck(rank: int, nranks: int) -> Rounds:
    """Pass min(d, n-d) blocks to the rank at distance d = 1, 2, 4, ... below (Bruck et al. 1997)."""
    for distance in powers_of_two_below(nranks):
        length = min(distance, nranks - distance)
        to, source = (rank - distance) % nranks, (rank + distance) % nranks
        yield Send(to, *cyclic(rank, length, nranks)), Recv(source, *cyclic(source, length, nranks))


@allgather.algorithm()
def k_bruck(rank: int, nranks: int, radix: Radix = 4) -> Rounds:
    """Bruck's algorithm with k-1 partners in each round, at multiples of d = 1, k, k^2, ... (Bruck et al. 1997)."""
    for distance in powers_below(nranks, radix):
        operations: list[Message] = []
        for far in range(distance, min(radix * distance, nranks), distance):
            length = min(distance, nranks - far)
            to, source = (rank - far) % nranks, (rank + far) % nranks
            operations += [Send(to, *cyclic(rank, length, nranks)), Recv(source, *cyclic(source, length, nranks))]
        yield tuple(operations)


@allgather.algorithm(needs=EVEN)
def neighbor_exchange(rank: int, nranks: int) -> Rounds:
    """Swap blocks with one neighbour, then pass on to each side in turn the two that came last (Chen et al. 2005)."""
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    for step in range(nranks // 2):
        peer = right if (rank + step) % 2 == 0 else left
        if step == 0:
            yield Send(peer, rank), Recv(peer, peer)
        else:
            yield Send(peer, *_last_pair(rank, step, nranks)), Recv(peer, *_last_pair(peer, step, nranks))


def _last_pair(rank: int, step: int, nranks: int) -> list[int]:
    """Return the two blocks that neighbor exchange brought `rank` before `step`, from ever farther on either side."""
    away = step // 2 * 2 if (rank + step) % 2 else -(step // 2 * 2)
    return cyclic(rank - rank % 2 + away, 2, nranks)


@allgather.algorithm()
def sparbit(rank: int, nranks: int) -> Rounds:
    """Pass on every other block held, to ever nearer ranks: most go the shortest way (Loch and Koslovski 2021).

    When distance d begins, a rank holds the blocks at all multiples of 2d below it, and hands on those that the rank at
    distance d above is to hold at odd multiples of d.
    """
    for distance in reversed(powers_of_two_below(nranks)):
        to, source = (rank + distance) % nranks, (rank - distance) % nranks
        behind = range(0, nranks - distance, 2 * distance)
        yield (
            Send(to, *((rank - far) % nranks for far in behind)),
            Recv(source, *((source - far) % nranks for far in behind)),
        )


@allgather.algorithm(needs=POWER_OF_TWO)
def bine(rank: int, nranks: int, order: Literal["near_first", "far_first"] = "near_first") -> Rounds:
    """Exchange all that is held with partners at distances 1, 1, 3, 5, 11, ... to both sides (De Sensi et al. 2025).

    Near first, the blocks held are a run (modulo n); far first, the largest messages go to the nearest partner.
    """
    numbers = steps(nranks) if order == "near_first" else reversed(steps(nranks))
    yield from butterfly(rank, nranks, numbers, range(nranks))


@allgather.algorithm()
def spread(rank: int, nranks: int) -> Rounds:
    """Send the own block to everyone at once, nearest above first (Chan et al. 2007)."""
    others = cyclic(rank + 1, nranks - 1, nranks)
    yield tuple(Send(peer, rank) for peer in others) + tuple(Recv(peer, peer) for peer in reversed(others))


@allgather.algorithm()
def gather_broadcast(rank: int, nranks: int) -> Rounds:
    """Gather at rank 0, then broadcast the whole: both along a binomial tree (Chan et al. 2007)."""
    yield from gather_binomial(rank, nranks, 0)
    yield from knomial(rank, nranks, 0, 2, lambda first, length: range(nranks))


ALLGATHERS: Mapping[str, Callable[[int, int], Rounds]] = {
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "bruck": bruck,
    "spread": spread,
}
"""The all-gathers of which other algorithms are made."""

allgatherv = allgather.like("allgatherv", native=lambda call: _native(replace(call, general=True)))
"""All-gather whose native call is always that with a count for each rank."""
