"""Whether several sequences of messages can all be parts of one order."""

from collections.abc import Hashable, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise


def find_ring(sequences: Iterable[Sequence[Hashable]]) -> list[Hashable]:
    """Items of which each comes before the next and the last before the first; none if one order
    has all sequences."""
    sorter: TopologicalSorter[Hashable] = TopologicalSorter()
    for sequence in sequences:
        for before, after in pairwise(sequence):
            sorter.add(after, before)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def assert_one_order(sequences: Iterable[Sequence[bytes]]) -> None:
    """All messages are distinct, and the sequences together fit into one order."""
    ring = find_ring(sequences)
    assert not ring, f"no order has all of these: {[str(message)[:60] for message in ring]}"
