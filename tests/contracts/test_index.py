"""Contract: from a key to the clients that receive it, on the worker of each publisher.

A message goes once to each client that has a pattern which matches, and to no other. That is so
behind every change of anybody's subscriptions, whatever routes were found before, whatever has come
and gone of the patterns beside it, and whichever workers have died or have read the table anew.
"""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.protocol.keys import SLASH
from tests.contracts.lab import lab
from tests.unit.routing.specification import matches

SEGMENTS = st.sampled_from([b"a", b"b", b"ab", b"*", b"*", b"a*", b"ab*", b"", b"!x", b"a*b"])
ENDS = st.sampled_from([[], [], [b""]])
PATTERNS = st.builds(
    lambda begin, end: b"/".join([*begin, *end]), st.lists(SEGMENTS, min_size=1, max_size=5), ENDS
)
FEW = st.lists(PATTERNS, min_size=3, max_size=8, unique=True)
CHANGES = st.sampled_from(["SUB", "SUB", "SUB", "UNSUB", "UNSUB", "compact", "die", "move"])
ACTS = st.lists(st.tuples(st.integers(0, 3), CHANGES, st.integers(0, 7)), min_size=15, max_size=40)


def keys_near(patterns: list[bytes]) -> list[bytes]:
    """Keys that these patterns match, or nearly match."""
    found = {b"", b"a", b"/"}
    for pattern in patterns:
        for filling in (b"", b"a", b"xy"):
            key = pattern.replace(b"*", filling)
            found |= {key, key[:-1], key + b"/", key + b"/a/b", key.replace(b"b", b"c", 1)}
    return sorted(found, key=len)[:60]


@settings(max_examples=25)
@given(patterns=FEW, acts=ACTS, cache_bytes=st.sampled_from([2_000, 100_000]))
def test_each_message_has_its_recipients(
    patterns: list[bytes], acts: list[tuple[int, str, int]], cache_bytes: int
) -> None:
    keys = keys_near(patterns)
    with lab(route_cache_bytes_max=cache_bytes) as opened:
        clients = [opened.connect(number % 2) for number in range(4)]
        held = [Counter[bytes]() for _ in clients]
        for number, what, pick in acts:
            client, pattern = clients[number], patterns[pick % len(patterns)]
            if what == "compact":
                opened.bus.compact()
            elif what in ("die", "move"):
                opened.happen(what, client)
            else:
                client.say(b"%b %b" % (what.encode(), pattern))
                held[number][pattern] += 1 if what == "SUB" else -1
                held[number] = +held[number]
            publisher = clients[pick % 4]
            publisher.send(*(b"MSG %b\0" % key for key in keys))
            opened.settle()
            for one, its in zip(clients, held, strict=True):
                due = [key for key in keys if any(matches(it, key, SLASH) for it in its)]
                assert one.read_all() == [b"MSG %b\0" % key for key in due]
