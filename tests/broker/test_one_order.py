"""One total order: any two clients receive their common messages in the same order.

Publishers and subscribers are on all workers, and publish at the same time to overlapping patterns.
Each must receive what the matching rules say, exactly once, and all the sequences together must fit
into one order (PROTOCOL, "Promises", 1 and 3).
"""

import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from sbus.protocol.keys import SLASH
from tests.support.bus import running_bus
from tests.support.order import assert_one_order
from tests.support.processes import several_clients
from tests.support.raw_client import RawClient
from tests.support.threads import run_together
from tests.unit.routing.specification import matches

PUBLISHERS = 8
SUBSCRIBERS = 16
MESSAGES_EACH = 400
PATTERNS = [
    *(b"", b"a", b"a/b", b"a/", b"a/*", b"a*", b"a*/", b"*", b"*/", b"*/*", b"*/b", b"a/b*"),
    *(b"x/*/c/", b"x/*/c", b"x/y*/", b"/", b"/*", b"a//", b"a/**", b"a/*b", b"\xff*", b"!x"),
    b"x!/",
]
KEYS = [
    *(b"", b"a", b"ab", b"a/", b"a/b", b"a/bcd", b"a/b/c", b"a//b", b"/", b"/a", b"x/y/c"),
    *(b"x/y/c/", b"x/yz/c/d/e", b"\xff\xfe", b"!x", b"x!/y", b"other", b"SUB a", b"\n"),
]


class Member:
    """A client with its patterns, and what it publishes and receives."""

    def __init__(self, client: RawClient, patterns: list[bytes], published: list[bytes]) -> None:
        self.client = client
        self.patterns = patterns
        self.published = published
        self.received: list[bytes] = []

    def is_sent(self, message: bytes) -> bool:
        key = message.removeprefix(b"MSG ").partition(b"\0")[0]
        return any(matches(pattern, key, SLASH) for pattern in self.patterns)

    def publish(self) -> None:
        for message in self.published:
            self.client.send(message)

    def receive(self, count: int) -> None:
        while len(self.received) < count:
            self.received.append(self.client.receive())


def messages_of(publisher: int, chance: random.Random) -> list[bytes]:
    """Distinct messages with the publisher and a rising number, few of them large."""
    return [
        b"MSG %b\0%d %d %b"
        % (
            chance.choice(KEYS),
            publisher,
            number,
            bytes(10_000 if chance.random() < 0.02 else chance.randrange(100)),
        )
        for number in range(MESSAGES_EACH)
    ]


def numbers_from(publisher: int, received: list[bytes]) -> list[int]:
    payloads = [message.partition(b"\0")[2].split(b" ", 2) for message in received]
    return [int(number) for sender, number, _ in payloads if int(sender) == publisher]


@pytest.mark.parametrize("workers", [1, 4])
def test_all_sequences_merge_into_one(tmp_path: Path, workers: int) -> None:
    chance = random.Random(workers)
    publishing = [True] * PUBLISHERS + [False] * SUBSCRIBERS
    chance.shuffle(publishing)
    with (
        running_bus(tmp_path, workers=workers) as bus,
        several_clients(bus, len(publishing)) as clients,
    ):
        members = []
        for place, publishes in enumerate(publishing):
            patterns = chance.choices(PATTERNS, k=chance.randrange(1, 5))
            published = messages_of(place, chance) if publishes else []
            members.append(Member(clients[place], patterns, published))
            for pattern in patterns:
                members[-1].client.sub(pattern)
        for member in members:
            member.client.whoami()
        everything = [message for member in members for message in member.published]
        expected = [
            Counter(message for message in everything if member.is_sent(message))
            for member in members
        ]

        calls = [member.publish for member in members if member.published]
        readers = [
            partial(member.receive, expected[place].total())
            for place, member in enumerate(members)
            if not member.published
        ]
        run_together(*calls, *readers)
        for member in [*members, *members]:  # once to have all accepted, once to have all here
            member.received += member.client.sync()

        for place, member in enumerate(members):
            assert Counter(member.received) == expected[place], member.patterns
            for publisher in range(len(members)):
                numbers = numbers_from(publisher, member.received)
                assert numbers == sorted(numbers)
        assert_one_order(member.received for member in members)
