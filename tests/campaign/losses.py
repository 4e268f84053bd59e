"""What clients miss, and what they were told of it: see `checks`."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.campaign.history import PRESENCE, Connection, History, Message, is_for
from tests.support.loss_notices import sends_in_doubt


class Due:
    """What a client must and may receive."""

    def __init__(self, one: Connection) -> None:
        self._one = one
        self._by_key: dict[bytes, list[tuple[int, int | None, int | None, int | None]]] = {}
        self._wants_echo = b"echo/off" not in one.choices

    def _subscriptions(self, key: bytes) -> list[tuple[int, int | None, int | None, int | None]]:
        """Of those that match: sent, certain from, ended, certainly ended."""
        one = self._one
        if key not in self._by_key:
            self._by_key[key] = [
                (
                    it.sent_at,
                    one.certain_from(it),
                    it.ended_at,
                    None if it.ended_at is None else one.processed_at(it.ended_at),
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
        if published is None or published > self._one.last_barrier or message.is_will:
            return False
        if message.connection is self._one and not self._wants_echo:
            return False
        return any(
            certain is not None
            and certain < message.sent_at
            and (ended is None or published < ended)
            for _, certain, ended, _ in self._subscriptions(message.key)
        )


def _published_at(message: Message) -> int | None:
    """When it was certain that the bus had processed this, with which it may have been lost."""
    if message.is_will or message.is_refused:
        return message.received_at
    processed = message.connection.processed_at(message.sent_at)
    if processed is None or message.received_at is None:
        return message.received_at if processed is None else processed
    return min(processed, message.received_at)


class Account:
    """What one client misses, and what it was told."""

    def __init__(self, history: History, one: Connection) -> None:
        due = Due(one)
        received = {message for _, message in one.inbox}
        missing = [it for it in history.messages.values() if it not in received]
        self.must = [it for it in missing if due.must_cause(it)]
        if one.order == b"latest" or any(it.startswith(b"order/latest") for it in one.choices):
            self.must = self._not_replaced(received)
        self.may = [
            it
            for it in missing
            if due.may_cause(it) and (it.connection is not one or b"echo/off" not in one.choices)
        ]
        self.told = sum(count or 0 for _, count in one.losses)
        self.is_exact = all(count is not None for _, count in one.losses)
        self.notices = [count or 0 for _, count in one.losses]

    def _not_replaced(self, received: set[Message]) -> list[Message]:
        """At most one message of each key, of which no other has come."""
        keys = {message.key for message in received}
        return list({it.key: it for it in self.must if it.key not in keys}.values())

    def unexplained(self, *, has_deaths: bool) -> int:
        """How many messages are missing that no publisher was told to have lost."""
        by_publisher = Counter(it.connection for it in self.must)
        return sum(
            max(0, count - publisher.packets_lost)
            for publisher, count in by_publisher.items()
            if not (has_deaths and publisher.notices_at is None)
        )


def accountable(history: History) -> Iterator[tuple[Connection, Account]]:
    """The clients that can say what they miss: they stayed, and are told of all losses."""
    for one in history.connections.values():
        if one.has_left or one.notices_at is None or one.last_barrier < 0:
            continue
        first = one.subscriptions[0].sent_at if one.subscriptions else one.notices_at
        if one.notices_at <= first:
            yield one, Account(history, one)


def check_missing(history: History) -> Iterator[str]:
    has_deaths = bool(history.deaths)
    for one, account in accountable(history):
        count = account.unexplained(has_deaths=has_deaths)
        if account.is_exact and count > account.told:
            yield (
                f"client {one.number} misses {count} messages, {account.must[0]} first, "
                f"and was told of {account.told}"
            )
        if one.order == b"queue":
            yield from _check_gaps(one, account, has_deaths=has_deaths)
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


def _check_gaps(one: Connection, account: Account, *, has_deaths: bool) -> Iterator[str]:
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
        is_told = sender.notices_at is not None or not has_deaths
        if is_told and count > sender.packets_lost:
            yield (
                f"client {one.number} misses {count} messages of {sender.number} without a notice "
                f"where they are missing"
            )


def check_admitted(history: History) -> Iterator[str]:
    in_doubt = 0
    for one, account in accountable(history):
        if account.is_exact and not any(
            it.pattern.startswith(PRESENCE[4:]) for it in one.subscriptions
        ):
            in_doubt += sends_in_doubt(account.told - len(account.may), account.notices)
    if in_doubt > history.deaths:
        yield f"{in_doubt} sends were counted as not made, at {history.deaths} deaths"
