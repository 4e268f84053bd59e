"""Whether every subscriber received what was published for it, and all in one order.

Patterns are matched by regular expressions of this module's own, so that the code of the bus is
not checked by itself. Each publisher's keys are different from all others': a key tells who
published a message.
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
    """The numbers of the messages that a subscriber of `pattern` must receive, in order."""
    matches = expression(pattern).fullmatch
    return [number for number, (key, _) in enumerate(published) if matches(key)]


def positions(
    pattern: bytes, published: Mapping[str, Sequence[Message]], received: Sequence[Message]
) -> list[Position] | None:
    """The position of each received message, in the order of receipt.

    None unless the messages of each publisher are exactly those that it published and that match
    `pattern`, each once, unaltered, in the order of publication.
    """
    awaited = {
        name: iter([(number, messages[number]) for number in expected(pattern, messages)])
        for name, messages in published.items()
    }
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
    """How many messages two subscribers have in common, summed over all pairs; and the pairs that
    saw theirs in different orders: none, if there is a total order."""
    shared = 0
    disagreeing = []
    for one, other in combinations(received, 2):
        both = set(received[one]) & set(received[other])
        shared += len(both)
        orders = [[at for at in received[name] if at in both] for name in (one, other)]
        if orders[0] != orders[1]:
            disagreeing.append((one, other))
    return shared, disagreeing
