"""Backwards: what a primitive spreads, its dual collects (Chan et al. 2007).

A broadcast backwards is a reduce, a scatter a gather, an all-gather a reduce-scatter: the last round comes first, and
what was sent is received.
"""

from collections.abc import Iterable

from collectives.rounds import Message, Operation, Recv, RecvReduce, Round, Rounds, Send, as_round


def backwards(rounds: Iterable[Round | Operation], combining: bool = False) -> Rounds:
    """Run an algorithm of plain messages from its end to its start; with `combining` what arrives is combined.

    Raises:
        ValueError: an operation other than `Send` and `Recv`, which has no inverse.

    """
    receive = RecvReduce if combining else Recv
    for one in reversed(list(rounds)):
        yield tuple(_inverse(operation, receive) for operation in as_round(one))


def _inverse(operation: Operation, receive: type[Message]) -> Message:
    if isinstance(operation, Send):
        return receive(operation.peer, *operation.chunks)
    if isinstance(operation, Recv):
        return Send(operation.peer, *operation.chunks)
    raise ValueError(f"{operation} cannot be run backwards; only Send and Recv can")
