"""The promises of docs/protocol.md, checked on a history. Each check yields its violations.

altered       what a client receives was sent, byte for byte
twice         nobody receives a message twice
unwanted      what a client receives matches a subscription that it may have, and its ids
order         one order agrees with what all clients received, with the order in which each
              client published, and with places
cause         and that order agrees with causes: what anybody had received before a message was
              sent comes before it
sender        the connection, the ids and the place that a recipient is told are right
missing       what a client misses was announced: where it is missing, and as often
admitted      what a client was told to be lost is missing, but for one send for each death
published     where places are known: each message has one, or its client was told that it has not
receipt       each receipt comes, and agrees with who received the message
barrier       each barrier is answered, once and in order
disconnected  nobody is disconnected, or told of an error, without a reason
presence      names are unique, joins and leaves alternate, a will comes right before a leave
members       where places are known: the same of all names, and who is listed at the end
ledger        accepted = delivered + lost + replaced + undelivered + backlog
process       no worker dies by itself, nothing fails that must always work
"""

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.history.connections import check_disconnected
from tests.history.history import Connection, History, Message
from tests.history.losses import Due, check_admitted, check_missing, check_published
from tests.history.names import PRESENCE
from tests.history.presence import check_members, check_presence
from tests.support.order import find_ring

_DIED = re.compile(rb"worker \d+ \(pid \d+\) died: ")
_SHOWN = 5


class Violation(NamedTuple):
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


def check(history: History) -> list[Violation]:
    """All violations, and of each check only the first ones."""
    found = []
    for name, call in CHECKS.items():
        texts = list(call(history))
        found += [Violation(name, text) for text in texts[:_SHOWN]]
        if len(texts) > _SHOWN:
            found.append(Violation(name, f"and {len(texts) - _SHOWN} more"))
    return found


# -- single messages -------------------------------------------------------------------------------
def check_altered(history: History) -> Iterator[str]:
    for one, packet in history.strangers:
        yield f"client {one.number} received {packet[:80]!r}, which nobody sent"
    for one in history.connections.values():
        for packet in one.unexpected:
            yield f"client {one.number} received {packet[:80]!r} unasked"


def check_twice(history: History) -> Iterator[str]:
    for one in history.connections.values():
        for message, count in Counter(message for _, message in one.inbox).items():
            if count > 1:
                yield f"client {one.number} received {message} {count} times"


def check_unwanted(history: History) -> Iterator[str]:
    for one in history.connections.values():
        due = Due(history, one)
        for at, message in one.inbox:
            if not due.may_cause(message):
                yield f"client {one.number} received {message} at {at}, without a subscription"
            if due.is_silenced(message):
                yield f"client {one.number} received its own {message} at {at}"


# -- the order -------------------------------------------------------------------------------------
def chains(history: History) -> Iterator[Sequence[Hashable]]:
    """Sequences of messages with which the total order must agree."""
    for one in history.connections.values():
        yield one.messages
        if one.order == b"queue":
            yield [message for _, message in one.inbox]
        elif one.order == b"latest":
            by_key = defaultdict(list)
            for _, message in one.inbox:
                by_key[message.key].append(message)
            yield from by_key.values()
    yield history.placed
    starts = history.positions("new-bus")
    placed = [
        (bisect_right(starts, it.sent_at), it.told_place, it.sent_at, it)
        for it in history.messages.values()
        if it.told_place is not None
    ]
    yield [message for *_, message in sorted(placed)]


def causes(history: History) -> Iterator[Sequence[Hashable]]:
    """What somebody had received before a message was sent, as chains over points in time."""
    received = [it for it in history.messages.values() if it.received_at is not None]
    received.sort(key=lambda it: it.received_at or 0)
    times = [it.received_at or 0 for it in received]
    yield list(range(len(received)))
    for point, message in enumerate(received):
        yield [message, point]
    for message in history.messages.values():
        if not message.is_of_bus and (point := bisect_right(times, message.sent_at) - 1) >= 0:
            yield [point, message]


def check_order(history: History) -> Iterator[str]:
    yield from _cycle(chains(history))


def check_cause(history: History) -> Iterator[str]:
    yield from _cycle([*chains(history), *causes(history)])


def _cycle(sequences: Iterable[Sequence[Hashable]]) -> Iterator[str]:
    if ring := find_ring(sequences):
        shown = [str(it) for it in ring if isinstance(it, Message)]
        yield f"no order agrees with all about {', '.join(shown[:8])}"


def check_sender(history: History) -> Iterator[str]:
    places: dict[Message, int] = {}
    holders: dict[tuple[int, int], Message] = {}
    owners: dict[tuple[int, int], Connection] = {}
    starts = history.positions("new-bus")
    for one, message, told in history.senders:
        sender, number, place = message.connection, told.client, told.place
        if [told.gid, told.uid, told.pid] != [*map(int, sender.ids)]:
            yield f"client {one.number} was told that {message} comes from {told}, not {sender.ids}"
        if sender.bus_number != number:
            yield f"client {sender.number} has the numbers {sender.bus_number} and {number}"
        bus = bisect_right(starts, sender.opened_at)
        if owners.setdefault((bus, number), sender) is not sender:
            yield f"client {sender.number} has the number of {owners[bus, number].number}"
        if places.setdefault(message, place) != place:
            yield f"{message} has the places {places[message]} and {place}"
        if (other := holders.setdefault((bus, place), message)) is not message:
            yield f"{message} has the place of {other}"


# -- replies ---------------------------------------------------------------------------------------
def check_receipt(history: History) -> Iterator[str]:
    gone = sum(one.has_left for one in history.connections.values())
    for one in history.connections.values():
        unanswered = [
            token
            for token, message in one.requests.items()
            if token not in one.receipts and message.sent_at < one.last_barrier
        ]
        lost_max = one.packets_lost and one.packets_lost + history.lost_unannounced_max
        if history.knows_all_places and any(one.requests[it].has_place for it in unanswered):
            lost_max = 0
        is_told = history.is_told(one) or not history.deaths
        if is_told and not one.has_left and len(unanswered) > lost_max:
            yield (
                f"client {one.number} got no receipt for {len(unanswered)} of "
                f"{len(one.requests)} messages, {unanswered[0]!r} first"
            )
        for token, told in one.receipts.items():
            if token not in one.requests:
                yield f"client {one.number} got a receipt for {token!r}, which it never sent"
            elif text := _wrong_receipt(history, one.requests[token], told, gone):
                yield f"client {one.number} was told {told} of {text}"


def _wrong_receipt(history: History, message: Message, told: list[bytes], gone: int) -> str:
    what = f"{message}, which {message.receivers} clients received"
    if len(told) > 1 + history.deaths or (b"?" in told and not history.deaths):
        return what
    if len({*told} - {b"?"}) > 1:
        return what
    is_unplaced = history.knows_all_places and not message.has_place
    if is_unplaced and not all(text.startswith(b"refused ") for text in told):
        return what
    for text in set(told) - {b"?"}:
        if text.startswith(b"refused "):
            if message.receivers:
                return what
            continue
        sent, waiting, _ = map(int, text.split())
        if not sent - gone <= message.receivers <= sent + waiting:
            return what
    return ""


def check_barrier(history: History) -> Iterator[str]:
    for one in history.connections.values():
        asked = one.asked
        answered = sorted((at, payload) for payload, ats in one.replies.items() for at in ats)
        for _, payload in answered:
            if payload not in asked or len(one.replies[payload]) > 1:
                yield f"client {one.number} got {len(one.replies[payload])} replies to {payload!r}"
        order = [asked[payload] for _, payload in answered if payload in asked]
        if order != sorted(order):
            yield f"client {one.number} got replies in another order than that of its requests"
        if one.has_left or not asked:
            continue
        unanswered = [payload for payload in asked if payload not in one.replies]
        if len(unanswered) > one.packets_lost or [*asked][-1] in unanswered:
            yield (
                f"client {one.number} got no reply to {len(unanswered)} barriers, "
                f"{unanswered[-1]!r} last, and was told of {one.packets_lost} lost packets"
            )


# -- the bus ---------------------------------------------------------------------------------------
def check_ledger(history: History) -> Iterator[str]:
    by_number = {one.bus_number: one for one in history.connections.values()}
    is_exact = not history.deaths and not history.positions("new-bus")
    for report in map(json.loads, history.reports):
        for name, figures in report.items():
            discarded = figures["discarded"]
            lost = sum(discarded.values()) if isinstance(discarded, dict) else discarded
            parts = (
                figures["delivered"]
                + lost
                + figures["replaced"]
                + figures.get("undelivered", 0)
                + figures["backlog"]
            )
            if figures["accepted"] != parts:
                yield f"{name}: accepted {figures['accepted']}, but {parts} by what came of them"
            one = by_number.get(int(name)) if name.isdecimal() else None
            if one is None or not is_exact or one.has_left:
                continue
            received = len(one.inbox) + _presence_packets(one)
            if figures["delivered"] != received:
                yield f"client {one.number} received {received}, not {figures['delivered']}"
            told = sum(count or 0 for _, count in one.losses)
            if one.notices_at is not None and lost != told:
                yield f"client {one.number} was told of {told} losses, not of {lost}"


def _presence_packets(one: Connection) -> int:
    return sum(b"MSG " + PRESENCE in packet[:200] for _, packet in one.received)


def check_process(history: History) -> Iterator[str]:
    for _, _, words in history.events:
        if words[0] == "fault":
            yield " ".join(words[1:])
    died = sum(bool(_DIED.search(line)) for line in history.lines)
    planned = len(history.positions("death"))
    if died > planned:
        yield f"{died} workers died, {planned} of them by intent"
    if any(b"Traceback" in line for line in history.lines):
        yield "the bus has logged a traceback"


CHECKS: dict[str, Callable[[History], Iterator[str]]] = {
    "altered": check_altered,
    "twice": check_twice,
    "unwanted": check_unwanted,
    "order": check_order,
    "cause": check_cause,
    "sender": check_sender,
    "missing": check_missing,
    "admitted": check_admitted,
    "published": check_published,
    "receipt": check_receipt,
    "barrier": check_barrier,
    "disconnected": check_disconnected,
    "presence": check_presence,
    "members": check_members,
    "ledger": check_ledger,
    "process": check_process,
}
