"""The promises of the bus, as an oracle of what clients have sent and received.

order      one order of all messages agrees with what everybody received, with the order in
           which each client published, and with causes: what a client had received when it
           published comes before; of a client with `order/latest`, for each key by itself
once       nobody receives a message twice
secrecy    nobody receives what no pattern of its matches
ledger     received + lost = sent, for each subscriber, where "lost" is what it was told; at each
           death one send may count as not made: that of a message, or of a notice of losses. With
           `order/latest`, all but the last message of a key may be missing that it was not told of
places     each message has one place for all who are told, and places grow along the one order
receipts   who asks what comes of a message is told, and that agrees with who received it
gaps       what is missing before a message was admitted before that message
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise

from sbus.protocol.keys import SLASH
from tests.simulation.clients import Message, SimulatedClient, Subscription
from tests.support.loss_notices import sends_in_doubt
from tests.unit.routing.specification import matches

_matches = cache(matches)


def check_order(clients: Iterable[SimulatedClient]) -> None:
    """One order and no message twice."""
    behind: dict[Message, list[Message]] = {}
    waits_for: Counter[Message] = Counter()

    def add(before: Message | None, after: Message) -> None:
        if before is not None:
            behind.setdefault(before, []).append(after)
            waits_for[after] += 1

    for client in clients:
        for before, after in pairwise(client.sent):
            add(before, after)
        for message in (*client.sent, *client.announced):
            waits_for[message] += 0
            add(message.behind, message)
        received = [it.message for it in client.received]
        twice = [it for it, count in Counter(received).items() if count > 1]
        assert not twice, f"client {client.number} received {_names(twice)} twice"
        for chain in _by_key(received) if client.wants_latest else [received]:
            for before, after in pairwise(chain):
                add(before, after)
    _check_acyclic(behind, waits_for)


def _by_key(messages: Iterable[Message]) -> list[list[Message]]:
    found: dict[bytes, list[Message]] = {}
    for message in messages:
        found.setdefault(message.key, []).append(message)
    return list(found.values())


def _check_acyclic(behind: dict[Message, list[Message]], waits_for: Counter[Message]) -> None:
    ready = deque(message for message, count in waits_for.items() if not count)
    done = 0
    while ready:
        message = ready.popleft()
        done += 1
        for after in behind.get(message, ()):
            waits_for[after] -= 1
            if not waits_for[after]:
                ready.append(after)
    left = [message for message, count in waits_for.items() if count]
    assert done == len(waits_for), f"no order agrees with all about {_names(left)}"


def check_places(places: Mapping[Message, int], placed: Sequence[Message]) -> None:
    """The places that clients were told agree with the order."""
    told = [places[message] for message in placed if message in places]
    assert told == sorted(set(told)), "places do not grow along the order"


def check_receipts(
    clients: Sequence[SimulatedClient], placed: Sequence[Message] | None, deaths: int
) -> None:
    """Who asked is told once, and again at most once for each death; the numbers of clients agree
    with who received the message, but for clients that left and may have left it unread."""
    received = Counter(it.message for client in clients for it in client.received)
    gone = sum(client.has_left or client.has_ended for client in clients)
    has_place = None if placed is None else set(placed)
    for client in clients:
        is_there = client.settings_are_certain and not (client.has_left or client.has_ended)
        for number, told in client.receipts.items():
            message = client.sent[number]
            what = f"{_names([message])} was told {told}, and {received[message]} received it"
            assert len(told) <= 1 + deaths, what
            assert len({it for it in told if it != b"?"}) <= 1, what
            if is_there and has_place is not None and message in has_place:
                assert told, what
            if is_there and not client.unprocessed:
                assert told, what
            for text in told:
                assert has_place is None or message in has_place, what
                if text != b"?":
                    sent, waiting, _lost = map(int, text.split())
                    assert sent - gone <= received[message] <= sent + waiting, what


def check_secrecy(client: SimulatedClient) -> None:
    """Each message that a client received matches a pattern that it had."""
    for message, _ in client.received:
        assert any(_may_cause(it, message) for it in client.subscriptions), (
            f"client {client.number} received {_names([message])}, which is not for it"
        )
        if client.settings_are_certain and client.echo is False:
            assert message.publisher != client.number, f"client {client.number} gets echoes"


def _may_cause(subscription: Subscription, message: Message) -> bool:
    """Whether a message may be received because of a subscription."""
    has_ended = subscription.end_confirmed_at < message.sent_at
    return not has_ended and _matches(subscription.pattern, message.key, SLASH)


def _must_cause(subscription: Subscription, message: Message) -> bool:
    """Whether a message has to be received, or lost, because of a subscription."""
    is_there = subscription.confirmed_at < message.sent_at and subscription.is_open()
    return is_there and _matches(subscription.pattern, message.key, SLASH)


class Ledger:
    """Of all messages: `placed`, those that have their place in the total order, in that order;
    None if that is not known. Then `announced` are those that the bus itself has published."""

    def __init__(
        self,
        clients: Sequence[SimulatedClient],
        placed: Sequence[Message] | None,
        announced: Sequence[Message],
        deaths: int,
    ) -> None:
        self._clients = clients
        self._deaths = deaths
        self._sent = [message for client in clients for message in client.sent]
        self._placed = [*self._sent, *announced] if placed is None else placed
        self._is_exact = placed is not None
        received = {it.message for client in clients for it in client.received}
        self._unprocessed = 0 if self._is_exact else self._unprocessed_max(received)

    def _unprocessed_max(self, received: set[Message]) -> int:
        """How many messages may have got no place."""
        told = sum(client.unprocessed + self._deaths for client in self._clients)
        return min(told, sum(message not in received for message in self._sent))

    def check(self) -> None:
        if self._is_exact:
            self._check_publishers()
        doubtful = sum(self._check_subscriber(client) for client in self._clients)
        assert doubtful <= self._deaths, f"{doubtful} sends were counted as not made"

    def _check_publishers(self) -> None:
        """Whose messages have no place was told so."""
        placed = set(self._placed)
        assert len(placed) == len(self._placed), "a message has two places"
        for client in self._clients:
            missing = sum(message not in placed for message in client.sent)
            if client.settings_are_certain and not client.has_ended:
                assert missing <= client.unprocessed + self._deaths, (
                    f"{missing} messages of client {client.number} have no place, and it was told "
                    f"of {client.unprocessed}"
                )

    def _check_subscriber(self, client: SimulatedClient) -> int:
        """How many sends must have been in doubt: a client was told of more losses than it had."""
        is_there = not client.has_left and not client.has_ended
        if not is_there or client.lost_unknown or not client.settings_are_certain:
            return 0
        received = {it.message for it in client.received}
        missing = [message for message in self._placed if message not in received]
        certain = client.certain_subscriptions()
        must = [it for it in missing if self._is_due(client, it, _must_cause, certain)]
        if client.wants_latest:
            must = self._not_replaced(client, must, received)
        may = [it for it in missing if self._is_due(client, it, _may_cause, client.subscriptions)]
        assert len(must) <= client.lost + self._unprocessed, (
            f"client {client.number} misses {_names(must)}, and was told of {client.lost}"
        )
        if self._is_exact:
            self._check_places(client, set(must))
        return sends_in_doubt(client.lost - len(may), client.notices)

    def _not_replaced(
        self, client: SimulatedClient, missing: list[Message], received: set[Message]
    ) -> list[Message]:
        """Those of these messages that no later one of the same key may have replaced."""
        if self._is_exact:
            causes = client.subscriptions
            due = [it for it in self._placed if self._is_due(client, it, _may_cause, causes)]
            last = {message.key: message for message in due}
            return [it for it in missing if it is last[it.key]]
        keys = {message.key for message in received}
        return [it for it in {it.key: it for it in missing}.values() if it.key not in keys]

    def _is_due(
        self,
        client: SimulatedClient,
        message: Message,
        causes: Callable[[Subscription, Message], bool],
        subscriptions: Iterable[Subscription],
    ) -> bool:
        if message.publisher == client.number and (
            client.echo is False or (client.echo is None and causes is _must_cause)
        ):
            return False
        return any(causes(it, message) for it in subscriptions)

    def _check_places(self, client: SimulatedClient, missing: set[Message]) -> None:
        place = {message: number for number, message in enumerate(self._placed)}
        missing_before = [0]
        for message in self._placed:
            missing_before.append(missing_before[-1] + (message in missing))
        for message, lost_before in client.received:
            assert message in place, f"{_names([message])} has no place, and was received"
            due = missing_before[place[message]]
            assert due <= lost_before, (
                f"client {client.number} was told of {lost_before} losses before "
                f"{_names([message])}, not of {due}"
            )


def _names(messages: Iterable[Message]) -> str:
    """Publishers and numbers."""
    found = [f"{it.publisher}:{it.number}" for it in messages]
    return ", ".join(found[:8]) + (" ..." if len(found) > 8 else "")
