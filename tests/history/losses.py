"""Messages that clients miss, and the losses that they were told of: see `checks`."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache

from tests.history.history import Connection, History, Message
from tests.history.matching import is_for
from tests.history.names import PRESENCE


class Due:
    """What a client must and may receive."""

    def __init__(self, history: History, one: Connection) -> None:
        self._history = history
        self._one = one
        self._by_key: dict[bytes, list[tuple[int, int | None, int | None, int | None]]] = {}
        self._silent_from = one.echo_off_at
        if history.deaths and one.echo_off_at is not None:
            is_certain = history.is_told(one) and one.certain_from(one.echo_off_at) is not None
            self._silent_from = one.echo_off_at if is_certain else None
        unsure = {it.pattern for it in one.subscriptions if one.certain_from(it.sent_at) is None}
        ended = {it.pattern for it in one.subscriptions if it.ended_at is not None}
        self._doubtful = unsure & ended
        """An `UNSUB` ends another subscription if its own was lost."""

    def _subscriptions(self, key: bytes) -> list[tuple[int, int | None, int | None, int | None]]:
        """Of those that match: sent, certain from, ended, certainly ended."""
        one = self._one
        if key not in self._by_key:
            self._by_key[key] = [
                (
                    it.sent_at,
                    None if it.pattern in self._doubtful else one.certain_from(it.sent_at),
                    it.ended_at,
                    None if it.ended_at is None else one.certain_from(it.ended_at),
                )
                for it in one.subscriptions
                if is_for(it.pattern, key, one.ids, one.dialect.name)
            ]
        return self._by_key[key]

    def may_cause(self, message: Message) -> bool:
        published = _published_at(message)
        return any(
            (published is None or published > sent) and (gone is None or gone > message.sent_at)
            for sent, _, _, gone in self._subscriptions(message.key)
        )

    def must_cause(self, message: Message) -> bool:
        """Whether the message must have come before the last barrier of the client."""
        published = _published_at(message)
        if self._history.knows_all_places or message.has_place:
            if not message.has_place:
                return False
            published = self._one.last_barrier if published is None else published
        elif message.is_of_bus:
            return False
        if published is None or published > self._one.last_barrier:
            return False
        is_own = message.connection is self._one and not message.is_of_bus
        if is_own and self._one.echo_off_at is not None:
            return False
        return any(
            certain is not None
            and certain < message.sent_at
            and (ended is None or published < ended)
            for _, certain, ended, _ in self._subscriptions(message.key)
        )

    def is_silenced(self, message: Message) -> bool:
        """Whether it is the client's own, which it has asked not to receive."""
        is_own = message.connection is self._one and not message.is_of_bus
        return is_own and self._silent_from is not None and message.sent_at > self._silent_from

    def may_be_lost(self, message: Message) -> bool:
        """Whether a message that the client did not receive may be one that it has lost."""
        is_known = self._history.knows_all_places or (
            self._history.knows_own_places and message.is_of_bus
        )
        if (is_known and not message.has_place) or self.is_silenced(message):
            return False
        return self.may_cause(message)


def _published_at(message: Message) -> int | None:
    """When it was certain that the bus had processed this, with which it may have been lost."""
    if message.is_of_bus or message.is_refused:
        return message.received_at
    processed = message.connection.processed_at(message.sent_at)
    if processed is None or message.received_at is None:
        return message.received_at if processed is None else processed
    return min(processed, message.received_at)


class Account:
    """What one client misses, and what it was told."""

    def __init__(self, history: History, one: Connection) -> None:
        due = Due(history, one)
        received = {message for _, message in one.inbox}
        missing = [it for it in history.messages.values() if it not in received]
        self.must = [it for it in missing if due.must_cause(it)]
        if b"order/latest" in one.choices:
            self.must = self._not_replaced(history, received, due)
        self.may = [it for it in missing if due.may_be_lost(it)]
        self.told = sum(count or 0 for _, count in one.losses)
        self.is_exact = all(count is not None for _, count in one.losses)
        self.notices = [count or 0 for _, count in one.losses]

    def _not_replaced(self, history: History, received: set[Message], due: Due) -> list[Message]:
        """Those that no later message of their key may have replaced; where places are unknown, at
        most one of each key, of which no other has come."""
        if history.knows_all_places:
            last = {it.key: it for it in history.placed if it in received or due.may_be_lost(it)}
            return [it for it in self.must if it is last[it.key]]
        keys = {message.key for message in received}
        return list({it.key: it for it in self.must if it.key not in keys}.values())

    def unexplained(self, history: History) -> int:
        """How many messages are missing that no publisher was told to have lost."""
        if history.knows_all_places:
            return len(self.must)
        by_publisher = Counter(it.connection for it in self.must if not it.has_place)
        slack = history.lost_unannounced_max
        return sum(it.has_place for it in self.must) + sum(
            max(0, count - publisher.packets_lost - slack)
            for publisher, count in by_publisher.items()
            if not (history.deaths and not history.is_told(publisher))
        )


@lru_cache(1)
def accountable(history: History) -> list[tuple[Connection, Account]]:
    """The clients that can say what they miss: they stayed, and are told of all losses."""
    found = []
    for one in history.connections.values():
        if one.has_left or one.notices_at is None or one.last_barrier < 0:
            continue
        if history.deaths and not history.is_told(one):
            continue
        first = one.subscriptions[0].sent_at if one.subscriptions else one.notices_at
        if one.notices_at <= first:
            found.append((one, Account(history, one)))
    return found


def check_missing(history: History) -> Iterator[str]:
    has_deaths = bool(history.deaths)
    for one, account in accountable(history):
        count = account.unexplained(history)
        if account.is_exact and count > account.told:
            yield (
                f"client {one.number} misses {count} messages, {account.must[0]} first, "
                f"and was told of {account.told}"
            )
        if history.knows_all_places:
            yield from _check_places(history, one, account)
        elif one.order == b"queue":
            yield from _check_gaps(history, one, account)
        if account.told and not has_deaths and _has_room(history, one, account):
            yield f"client {one.number} has lost {account.told} messages without need"
    for one in history.connections.values():
        is_silent = one.notices_at is None and not one.has_left and one.last_barrier >= 0
        if (
            is_silent
            and not has_deaths
            and _has_room(history, one, missing := Account(history, one))
        ):
            for message in missing.must[:1]:
                yield f"client {one.number} misses {message}"


def _has_room(history: History, one: Connection, account: Account) -> bool:
    """Whether nothing that the client chose, and no limit, may cost it messages."""
    is_default = all(choice.startswith((b"echo/", b"order/")) for choice in one.choices)
    return is_default and len(one.inbox) + len(account.may) < history.backlog_max


def _check_places(history: History, one: Connection, account: Account) -> Iterator[str]:
    """What is missing before a message was announced before that message."""
    missing, missing_before, before = set(account.must), 0, {}
    for message in history.placed:
        before[message] = missing_before
        missing_before += message in missing
    if not account.is_exact:
        return
    notices = [at for at, _ in one.losses]
    for at, message in one.inbox:
        told = sum(account.notices[: bisect_right(notices, at)])
        if message not in before:
            yield f"client {one.number} received {message}, which has no place"
        elif before[message] > told:
            yield (
                f"client {one.number} was told of {told} losses before {message}, "
                f"not of {before[message]}"
            )


def check_published(history: History) -> Iterator[str]:
    if not history.knows_all_places:
        return
    if len(set(history.placed)) < len(history.placed):
        yield "a message has two places"
    for one in history.connections.values():
        missing = sum(not it.has_place for it in one.messages)
        is_told = history.is_told(one) and not one.has_left
        if is_told and missing > one.packets_lost + history.lost_unannounced_max:
            yield (
                f"{missing} messages of client {one.number} have no place, and it was told of "
                f"{one.packets_lost}"
            )


def _check_gaps(history: History, one: Connection, account: Account) -> Iterator[str]:
    """Messages of one publisher that are missing were announced before the next one."""
    if not account.must:
        return
    last_notice = [at for at, _ in one.losses]
    missing = defaultdict(list)
    for message in account.must:
        missing[message.connection].append(message)
    silent: Counter[Connection] = Counter()
    before: dict[Connection, tuple[int, int]] = {}
    for at, message in one.inbox:
        sender = message.connection
        since, seen = before.get(sender, (-1, -1))
        skipped = sum(since < it.sent_at < message.sent_at for it in missing.get(sender, ()))
        if skipped and bisect_right(last_notice, at) == bisect_right(last_notice, seen):
            silent[sender] += skipped
        before[sender] = (message.sent_at, at)
    for sender, count in silent.items():
        is_told = history.is_told(sender) or not history.deaths
        if is_told and count > sender.packets_lost + history.lost_unannounced_max:
            yield (
                f"client {one.number} misses {count} messages of {sender.number} without a notice "
                f"where they are missing"
            )


def check_admitted(history: History) -> Iterator[str]:
    in_doubt = 0
    for one, account in accountable(history):
        has_strangers = not history.knows_own_places and any(
            it.pattern.startswith(PRESENCE) for it in one.subscriptions
        )
        if account.is_exact and not has_strangers:
            in_doubt += sends_in_doubt(account.told - len(account.may), account.notices)
    if in_doubt > history.deaths:
        yield f"{in_doubt} sends were counted as not made, at {history.deaths} deaths"


def sends_in_doubt(too_many: int, notices: Sequence[int]) -> int:
    """How many sends explain that a client was told of this many losses too many.

    The send that was under way at a death counts as not made. If it was a message, that is one
    loss too many. If it was one of these `notices`, a later notice repeats its number.
    """
    repeatable = sorted(notices[:-1])
    sends = 0
    while too_many > 0:
        too_many -= repeatable.pop() if repeatable else 1
        sends += 1
    return sends
