"""Whether what was published is what was received, and in one order for everybody.

Works on lists alone, and decides by its own reading of a pattern (a regular expression), so that a
fault of the bus cannot hide behind the bus's own idea of what matches. The publishers publish below
different first segments: a message's key tells who published it.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations

from sbus.demo.samples import Message

Position = tuple[str, int]
"""A message's publisher, and its number among that publisher's."""


def expression(pattern: bytes) -> re.Pattern[bytes]:
    """The keys that match `pattern`, as a regular expression for the whole key."""
    wild = b"[^/]*".join(map(re.escape, pattern.split(b"*")))
    everything_below = b".*" if pattern.endswith(b"/") or not pattern else b""
    return re.compile(wild + everything_below, re.DOTALL)


def expected(pattern: bytes, published: Sequence[Message]) -> list[int]:
    """Which of `published`, by number, a subscriber of `pattern` must receive, in order."""
    matches = expression(pattern).fullmatch
    return [number for number, (key, _) in enumerate(published) if matches(key)]


def positions(
    pattern: bytes, published: Mapping[str, Sequence[Message]], received: Sequence[Message]
) -> list[Position] | None:
    """Each received message's origin, in the order of receipt.

    None when the messages of some publisher are not exactly those that it published and that match
    `pattern`, each once, unaltered, in the order in which it published them.
    """
    awaited = {
        name: iter([(number, messages[number]) for number in expected(pattern, messages)])
        for name, messages in published.items()
    }
    # What a publisher publishes next can stand for one publisher only: their keys are disjoint.
    owner = {key: name for name, messages in published.items() for key, _ in messages}
    found = []
    for key, payload in received:
        name = owner.get(key)
        if name is None:
            return None
        number, message = next(awaited[name], (-1, None))
        if message != (key, payload):
            return None
        found.append((name, number))
    if any(True for rest in awaited.values() for _ in rest):
        return None
    return found


def common_order(received: Mapping[str, Sequence[Position]]) -> tuple[int, list[tuple[str, str]]]:
    """How many messages two subscribers had in common, summed over all pairs; and which pairs saw
    theirs in different orders: none, on a bus that keeps its promise."""
    shared = 0
    disagreeing = []
    for one, other in combinations(received, 2):
        both = set(received[one]) & set(received[other])
        shared += len(both)
        orders = [[at for at in received[name] if at in both] for name in (one, other)]
        if orders[0] != orders[1]:
            disagreeing.append((one, other))
    return shared, disagreeing
