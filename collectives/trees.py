"""Trees of ranks, and two ways along them: in rounds of doubling groups, or as a pipeline of segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from collectives.rounds import LEFT, RIGHT, Chunk, Message, Recv, RecvReduce, Rounds, Send, powers_below, together

# ---------------------------------------------------------------------------------------------------------------
# K-nomial trees, one level a round


def knomial(rank: int, nranks: int, root: int, radix: int, carried: Callable[[int, int], Sequence[Chunk]]) -> Rounds:
    """Go down a k-nomial tree: those reached serve radix-1 others each, the farthest first.

    Ranks count from the root. In base `radix`, a rank's parent has its lowest non-zero digit set to zero, so that the
    subtree below a hop of some distance is as many ranks in a row. ``carried(first, length)`` names what is sent to
    the subtree of the `length` ranks from relative rank `first` on (fewer where the ranks end).
    """
    relative = (rank - root) % nranks
    for distance in reversed(powers_below(nranks, radix)):
        digit = relative // distance % radix
        if relative % distance:
            yield ()  # reached in a later round
        elif digit:
            yield Recv((rank - digit * distance) % nranks, *carried(relative, distance))
        else:
            children = range(relative + distance, min(relative + radix * distance, nranks), distance)
            yield tuple(Send((child + root) % nranks, *carried(child, distance)) for child in children)


def blocks_below(nranks: int, root: int) -> Callable[[int, int], list[int]]:
    """Return what `knomial` carries where each rank has a block of its own: the blocks of the subtree."""
    return lambda first, length: [(one + root) % nranks for one in range(first, min(first + length, nranks))]


# ---------------------------------------------------------------------------------------------------------------
# Shapes of trees


class Tree:
    """A tree of ranks, given by everyone's parent (None at the root, and at ranks that are not in it)."""

    def __init__(self, root: int, parents: Sequence[int | None]) -> None:
        self.root = root
        self.parents = tuple(parents)
        self.children: list[list[int]] = [[] for _ in parents]
        for rank, parent in enumerate(parents):
            if parent is not None:
                self.children[parent].append(rank)
        self.depths: list[int] = [0] * len(parents)
        reached = [root]
        for rank in reached:
            for child in self.children[rank]:
                self.depths[child] = self.depths[rank] + 1
                reached.append(child)
        self.height = max(self.depths)

    def renumbered(self, ranks: Sequence[int]) -> Tree:
        """Return this tree with rank i called ``ranks[i]``."""
        parents: list[int | None] = [None] * len(ranks)
        for rank, parent in zip(ranks, self.parents, strict=True):
            parents[rank] = None if parent is None else ranks[parent]
        return Tree(ranks[self.root], parents)

    def only(self, members: Sequence[int]) -> Tree:
        """Return the part of this tree among `members`, a subtree with what lies above it."""
        return Tree(self.root, [parent if rank in members else None for rank, parent in enumerate(self.parents)])


@lru_cache(maxsize=1024)
def pre_order(nranks: int, radix: int, root: int = 0) -> Tree:
    """Return the k-ary tree in which each subtree is a run of ranks that begins with its own root.

    The ranks behind a subtree's root are cut into `radix` runs as even as can be. A tree of radix 1 is a chain.
    Ranks count from `root`.
    """
    parents: list[int | None] = [None] * nranks
    roots = [range(nranks)]
    for run in roots:
        each, more = divmod(len(run) - 1, radix)
        first = run.start + 1
        for length in (each + 1,) * more + (each,) * (radix - more if each else 0):
            parents[first] = run.start
            roots.append(range(first, first + length))
            first += length
    return Tree(0, parents).renumbered([(rank + root) % nranks for rank in range(nranks)])


@lru_cache(maxsize=1024)
def in_order(nranks: int, root: int = 0) -> Tree:
    """Return the binary tree in which what lies below a rank's first child has lower numbers, the rest higher ones.

    Below the root hang one such tree of all lower and one of all higher ranks. In each, numbered from 1, leaves are
    the odd numbers, and a parent has one more zero at its end than its child (Sanders, Speck, Träff 2009).
    """

    def parent(number: int, last: int) -> int:
        """Return the parent of `number` among 1 to `last`, 0 for the topmost."""
        bit = number & -number
        up = (number ^ bit) | (bit << 1)
        return up if up <= last else number ^ bit  # where the tree is not full: the next one up that exists

    def of(rank: int) -> int | None:
        if rank == root:
            return None
        offset, last = (-1, root) if rank < root else (root, nranks - 1 - root)
        up = parent(rank - offset, last)
        return up + offset if up else root

    return Tree(root, [of(rank) for rank in range(nranks)])


@lru_cache(maxsize=1024)
def double(nranks: int, root: int = 0) -> tuple[Tree, Tree]:
    """Return two binary trees with one root; no other rank has children in both (Sanders, Speck, Träff 2009).

    In the first, counted from the root, all odd ranks are leaves; the second is the first with all but the root
    shifted by one.
    """
    tree = in_order(nranks)
    ranks = [(rank + root) % nranks for rank in range(nranks)]
    return tree.renumbered(ranks), tree.renumbered([root, *ranks[2:], *ranks[1:2]])


# ---------------------------------------------------------------------------------------------------------------
# Pipelines


def down(tree: Tree, rank: int, segments: Sequence[Chunk]) -> Rounds:
    """Pass segments from the root to the leaves, each a round after the one before it."""
    parent, children, depth = tree.parents[rank], tree.children[rank], tree.depths[rank]
    for number in range(tree.height + len(segments) - 1 if tree.height else 0):
        arriving, leaving = number - depth + 1, number - depth
        operations: list[Message] = []
        if parent is not None and 0 <= arriving < len(segments):
            operations.append(Recv(parent, segments[arriving]))
        if 0 <= leaving < len(segments):
            operations += [Send(child, segments[leaving]) for child in children]
        yield tuple(operations)


def up(tree: Tree, rank: int, segments: Sequence[Chunk]) -> Rounds:
    """Combine segments from the leaves to the root, each a round after the one before it.

    Rank order is kept if each subtree is a run of ranks: children below a rank are combined from the left, those above
    it from the right, the nearest first.
    """
    parent, children, height = tree.parents[rank], tree.children[rank], tree.height - tree.depths[rank]
    sides = [(child, LEFT) for child in reversed(children) if child < rank]
    sides += [(child, RIGHT) for child in children if child > rank]
    for number in range(tree.height + len(segments) - 1 if tree.height else 0):
        arriving, leaving = number - height + 1, number - height
        operations: list[Message] = []
        if 0 <= arriving < len(segments):
            operations += [RecvReduce(child, segments[arriving], side=side) for child, side in sides]
        if parent is not None and 0 <= leaving < len(segments):
            operations.append(Send(parent, segments[leaving]))
        yield tuple(operations)


def up_and_down(tree: Tree, rank: int, segments: Sequence[Chunk]) -> Rounds:
    """Combine segments up the tree; each starts down again as soon as the root has it."""
    yield from together(up(tree, rank, segments), _later(tree.height, down(tree, rank, segments)))


def _later(nrounds: int, rounds: Rounds) -> Rounds:
    yield from ((),) * nrounds
    yield from rounds
