"""Count what an algorithm costs, from its rounds alone: rounds, messages, elements sent, received and combined.

The counts are those of one problem, so uneven and empty blocks are counted as they are. Beside them stands the lower
bound of the primitive, derived from its contract (Chan, Heimlich, Purkayastha, van de Geijn 2007): for ranks that
send one message and receive one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.cutting import Options
from collectives.layout import Layout, lay_out
from collectives.problem import Problem
from collectives.program import Fold, Reduce
from collectives.registry import Algorithm
from collectives.rounds import Access, Chunk, Combine, Message, PullReduce, Push, RecvReduce, Send, as_rounds


@dataclass
class RankCount:
    """What one rank does: messages, and elements (`_count`)."""

    sent_messages: int = 0
    received_messages: int = 0
    sent_count: int = 0
    received_count: int = 0
    combined_count: int = 0


@dataclass(frozen=True)
class Counted:
    """What an algorithm costs. Figures that end in ``_max`` are of the rank that has most of them.

    `rounds` are those in which some rank does something. `steps` is how long they would take if a rank could send
    only one message at a time and receive one, each in a step: a round in which the root sends seven is seven steps.
    `between_counts` are the elements that each node sends to others.
    """

    rounds: int
    steps: int
    ranks: tuple[RankCount, ...]
    between_counts: tuple[int, ...] = ()

    @property
    def between_count_max(self) -> int:
        """The elements sent to other nodes by the node that sends most of them."""
        return max(self.between_counts, default=0)

    @property
    def messages_max(self) -> int:
        """The messages sent by the rank that sends most."""
        return max(one.sent_messages for one in self.ranks)

    @property
    def sent_count_max(self) -> int:
        """The elements sent by the rank that sends most."""
        return max(one.sent_count for one in self.ranks)

    @property
    def received_count_max(self) -> int:
        """The elements received by the rank that receives most."""
        return max(one.received_count for one in self.ranks)

    @property
    def combined_count_max(self) -> int:
        """The elements combined by the rank that combines most."""
        return max(one.combined_count for one in self.ranks)


def count(algorithm: Algorithm, problem: Problem, options: Options | None = None) -> Counted:
    """Count `algorithm` on `problem`; messages of which all chunks are empty are not sent and not counted.

    What a rank reads from peers' shared memory counts as received, what it writes there as sent, without a message.

    Without `options` a message is what the algorithm says. With them it is what the plan really sends: scattered
    chunks cut, large messages in pieces; elements are the same either way.
    """
    nchunks = algorithm.nchunks(problem.nranks, problem.nodes)
    counts: dict[Chunk, int] = {}

    def elements(chunks: Sequence[Chunk]) -> int:
        for chunk in chunks:
            if chunk not in counts:
                counts[chunk] = problem.primitive.chunk_count(problem, chunk, nchunks)
        return sum(map(counts.__getitem__, chunks))

    node_of = {rank: number for number, node in enumerate(problem.groups) for rank in node}
    between = [0] * len(problem.groups)
    ranks = []
    steps: list[int] = []  # of each round, of the busiest rank so far; -1 if none did anything
    for rank in range(problem.nranks):
        total = RankCount()
        rounds = as_rounds(algorithm.rounds(problem, rank))
        steps += [-1] * (len(rounds) - len(steps))
        for number, operations in enumerate(rounds):
            sends = receives = local = 0
            for operation in operations:
                if isinstance(operation, Message):
                    moved = elements(operation.chunks)
                    if operation.chunks and not moved:
                        continue
                    if isinstance(operation, Send):
                        sends += 1
                        total.sent_count += moved
                        if node_of[operation.peer] != node_of[rank]:
                            between[node_of[rank]] += moved
                        continue
                    receives += 1
                    total.received_count += moved
                    if isinstance(operation, RecvReduce):
                        total.combined_count += moved
                else:
                    local += 1
                    if isinstance(operation, Combine):
                        total.combined_count += elements([operation.into])
                    elif isinstance(operation, Access):
                        moved = elements(operation.chunks)
                        others = sum(peer != rank for peer in operation.peers)
                        if isinstance(operation, Push):
                            total.sent_count += moved * others
                        else:
                            total.received_count += moved * others
                        if isinstance(operation, PullReduce):
                            total.combined_count += moved * (len(operation.peers) - 1)
            total.sent_messages += sends
            total.received_messages += receives
            if sends or receives or local:
                steps[number] = max(steps[number], sends, receives)
        ranks.append(total)
    if options is not None:
        ranks = [_really(lay_out(problem, algorithm, rank, options)) for rank in range(problem.nranks)]
    return Counted(sum(one >= 0 for one in steps), sum(one for one in steps if one > 0), tuple(ranks), tuple(between))


def _really(layout: Layout) -> RankCount:
    """Count what a rank's layout moves."""
    total = RankCount()
    for transfer in layout.transfers:
        moved = sum(region.stop - region.start for region in transfer.regions)
        if transfer.outgoing:
            total.sent_messages += 1
            total.sent_count += moved
        else:
            total.received_messages += 1
            total.received_count += moved
    for one in layout.program:
        if isinstance(one, Fold):
            total.combined_count += one.into.stop - one.into.start
        elif isinstance(one, Reduce):
            total.combined_count += sum(region.stop - region.start for region in one.operands[1:])
    return total


@dataclass(frozen=True)
class Bound:
    """What no algorithm can do without. The bounds are separate: none need be reached together with another.

    `steps`: as of `Counted`. `moved_count`: the elements that the busiest rank sends, or receives, whichever is more.
    `combined_count`: the elements that the busiest rank combines.
    """

    steps: int
    moved_count: int
    combined_count: int


def lower_bound(problem: Problem) -> Bound:
    """Derive the lower bounds of `problem` from its contract.

    What a rank must end with and does not have, it receives; what others need of it, it sends. If a result is needed
    by p of n ranks, its n contributions need n-1 transfers to come together and p-1 more to spread out, and some rank
    does its share of all transfers (all-reduce: 2(n-1)/n of the vector; Patarasuk and Yuan 2009). Knowledge at most
    doubles in a step, so what m ranks contribute to, or need, takes log2 m steps.
    """
    primitive, nranks = problem.primitive, problem.nranks
    holders: dict[Chunk, list[int]] = {}
    for rank in range(nranks):
        for chunk in primitive.inputs(problem, rank, 1):
            holders.setdefault(chunk, []).append(rank)

    results: dict[
        Chunk, list[tuple[int, ...]]
    ] = {}  # of what is combined, who contributes, for each rank that needs it
    given: list[set[Chunk]] = [set() for _ in range(nranks)]
    receivers: list[set[int]] = [{rank} for rank in range(nranks)]
    moved = widest = 0
    for rank in range(nranks):
        received = 0
        sources = {rank}
        for chunk in primitive.outputs(problem, rank, 1):
            if primitive.combines:
                needed = tuple(primitive.contributors(problem, rank, chunk))
                parts = {one: primitive.contribution(one, chunk) for one in needed}
                if needed:
                    results.setdefault(parts[needed[0]], []).append(needed)
            else:
                parts = dict.fromkeys(() if rank in holders.get(chunk, ()) else holders.get(chunk, ()), chunk)
            others = set(parts) - {rank}
            if others:
                received += primitive.chunk_count(problem, chunk, 1)
                sources |= others
            for other in others:
                given[other].add(parts[other])
                receivers[other].add(rank)
        moved, widest = max(moved, received), max(widest, len(sources))
    for rank in range(nranks):
        sent = sum(primitive.chunk_count(problem, chunk, 1) for chunk in given[rank])
        moved, widest = max(moved, sent), max(widest, len(receivers[rank]))
    transfers = combinations = 0
    for chunk, contributors in results.items():
        elements, different = primitive.chunk_count(problem, chunk, 1), set(contributors)
        most = max(map(len, contributors))
        combinations += elements * max(most - 1, sum(len(one) > 1 for one in different))
        if len(different) == 1:
            transfers += elements * (most - 1 + len(contributors) - 1)
    if primitive.synchronises:
        widest = nranks
    return Bound((widest - 1).bit_length(), max(moved, -(-transfers // nranks)), -(-combinations // nranks))
