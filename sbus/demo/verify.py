"""Whether every subscriber received what was published for it, and all in one order.

That order is the one of a subscriber to everything. Patterns are matched by regular expressions of
this module's own, so that the code of the bus is not checked by itself. Each publisher's keys are
different from all others': a key tells who published a message.
"""

import re
from collections.abc import Sequence

from sbus.demo.samples import Message


def expression(pattern: bytes) -> re.Pattern[bytes]:
    """The keys that match `pattern`, as a regular expression for the whole key."""
    wild = b"[^/]*".join(map(re.escape, pattern.split(b"*")))
    everything_below = b".*" if pattern.endswith(b"/") or not pattern else b""
    return re.compile(wild + everything_below, re.DOTALL)


def expected(pattern: bytes, messages: Sequence[Message]) -> list[Message]:
    """Those of these messages that a subscriber of `pattern` must receive."""
    matches = expression(pattern).fullmatch
    return [message for message in messages if matches(message[0])]


def is_complete(order: Sequence[Message], published: Sequence[Sequence[Message]]) -> bool:
    """Whether an order has all messages of each publisher, each once, unaltered and in the order of
    publication, and no others."""
    for messages in published:
        keys = {key for key, _ in messages}
        if [message for message in order if message[0] in keys] != list(messages):
            return False
    return len(order) == sum(map(len, published))
