"""What the front asks workers on behalf of administrators and users, and what they reply.

Queries and replies travel over the links as `RunQuery` and `QueryReply`. A worker encodes its reply
once, small enough for one packet of a link, between two turns.
"""

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec
import trio

from sbus.protocol.admin_results import Activity, WhyNot

ANSWER_BYTES_MAX: Final = 40 * 1024
"""Of patterns, which can be many and long, in one answer; as text they may be five times as
much."""
CLIENTS_MAX: Final = 100
"""Clients that one question is about: what is said of them is some 300 bytes each."""
ANSWER_SECONDS_MAX: Final = 2.0
"""Long enough for a worker in the midst of the longest turn; a hung one is missed in the answer."""

T = TypeVar("T")


class ActivityQuery(msgspec.Struct, frozen=True, tag=True):
    """What did these clients, at most `CLIENTS_MAX`, do? Those that have left are left out."""

    clients: list[int]


class SubscriptionsQuery(msgspec.Struct, frozen=True, tag=True):
    """Who has which patterns, from this place on: the client of this number, or the first behind
    it, without as many of its patterns as `offset` says. `uid`: only of this user's clients;
    `pattern`: only those that have keys in common with it."""

    client: int
    offset: int
    entries_max: int
    uid: int | None = None
    pattern: bytes | None = None


class ExplanationQuery(msgspec.Struct, frozen=True, tag=True):
    """Who here would receive a message under this key, and who would not though a pattern
    matches?"""

    key: bytes


Query = ActivityQuery | SubscriptionsQuery | ExplanationQuery


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A pattern of a client, and how often it has it."""

    client: int
    pattern: bytes
    count: int


class SubscriptionsReply(msgspec.Struct, frozen=True):
    """Entries, and where to go on: None at the end."""

    entries: list[Entry]
    next: tuple[int, int] | None


class MatchingClient(msgspec.Struct, frozen=True):
    """A client with patterns that match; the fields are those of `admin_results.Recipient`."""

    client: int
    patterns: list[bytes]
    backlog: int
    stalled: bool
    why_not: WhyNot
    text: str


class ExplanationReply(msgspec.Struct, frozen=True):
    """Some of those who would receive and who would not, and how many there are."""

    recipients: list[MatchingClient]
    recipients_count: int
    excluded: list[MatchingClient]
    excluded_count: int
    stalled_count: int


ActivityReply = dict[int, Activity]

encoder: Final = msgspec.msgpack.Encoder()


class PendingQueries:
    """The front's questions that are open."""

    def __init__(self) -> None:
        self._asked = 0
        self._open: dict[tuple[int, int], tuple[trio.Event, list[bytes]]] = {}

    def number(self) -> int:
        """A number for the next question."""
        self._asked += 1
        return self._asked

    def on_answer(self, worker: int, question: int, data: bytes) -> None:
        """A worker answered; what nobody waits for any more is dropped."""
        waiting = self._open.get((worker, question))
        if waiting is not None:
            waiting[1].append(data)
            waiting[0].set()

    def on_death(self, worker: int) -> None:
        """A worker will answer nothing any more."""
        for (asked, _), (answered, _) in self._open.items():
            if asked == worker:
                answered.set()

    async def answers(
        self, question: int, workers: Iterable[int], kind: type[T]
    ) -> tuple[dict[int, T], list[int]]:
        """The answers to a question that was sent to these workers, and who gave none in time."""
        keys = [(worker, question) for worker in workers]
        for key in keys:
            self._open[key] = (trio.Event(), [])
        found: dict[int, T] = {}
        try:
            with trio.move_on_after(ANSWER_SECONDS_MAX):
                for key in keys:
                    await self._open[key][0].wait()
        finally:
            for key in keys:
                _, data = self._open.pop(key)
                if data:
                    found[key[0]] = msgspec.msgpack.decode(data[0], type=kind)
        return found, [worker for worker, _ in keys if worker not in found]
