"""Whether several sequences of messages can all be parts of one order."""

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise


def assert_one_order(sequences: Iterable[Sequence[bytes]]) -> None:
    """All messages are distinct, and the sequences together fit into one order."""
    sorter: TopologicalSorter[bytes] = TopologicalSorter()
    for sequence in sequences:
        for before, after in pairwise(sequence):
            sorter.add(after, before)
    try:
        sorter.prepare()
    except CycleError as error:
        ring = [message[:60] for message in error.args[1]]
        raise AssertionError(f"no order has all of these: {ring}") from None
