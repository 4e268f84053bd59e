"""Many clients that publish numbered messages, and check everything that they receive.

Every client publishes under a key of its own, and subscribes to the keys of some others. Whatever
happens to the bus, it keeps its connection, subscriptions and choices, and for each key that it
receives

    numbers grow: none comes twice or too late, unless the client chose another order
    a number that is missing   was announced by a `!/lost` where it is missing, or the publisher was
                               told that so many packets of it were not processed
    what a client was told     is what it misses, but for one send for each death
"""

import os
import random
import select
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from tests.support.bus import Bus
from tests.support.loss_notices import sends_in_doubt
from tests.support.raw_client import PACKET_BYTES_MAX, RawClient
from tests.support.users import effective_user

_LOST = b"CMSG !/lost\0"
_PACKETS_LOST = b"CMSG !/error\0packets-lost "
_WHOAMI = b"CMSG !/cred/whoami\0"
_END_SECONDS_MAX = 60.0


class Kind(NamedTuple):
    """What some of the clients do."""

    choices: Sequence[bytes] = ()
    keys: int = 4
    """To how many others' keys it subscribes."""
    is_reader: bool = True
    """Whether it reads while the load lasts; otherwise everything waits in its backlog."""

    @property
    def is_ordered(self) -> bool:
        return not any(choice.startswith(b"order/") for choice in self.choices)


class CheckedClient:
    """A client that checks what it receives."""

    def __init__(self, raw: RawClient, number: int, keys: Sequence[int], kind: Kind) -> None:
        self._raw = raw
        self._number = number
        self.keys = keys
        self.kind = kind
        self.sent = 0
        self.last = dict.fromkeys(keys, -1)
        """The highest number of each key."""
        self._was_told: set[int] = set()
        """Keys of which messages may be missing since a notice."""
        self.missing: Counter[int] = Counter()
        """By key: messages that are missing without a notice."""
        self.skipped: set[tuple[int, int]] = set()
        """Keys and numbers: messages that have not come, though later ones have."""
        self.lost = 0
        """As notices said."""
        self.has_unknown_losses = False
        self.received = 0
        self.notices: list[int] = []
        """The numbers that add up to `lost`."""
        self.unprocessed = 0
        """Packets of this client that were not processed, as the bus says."""
        self.replies = 0
        self.longest_wait_seconds = 0.0
        """For a message."""
        raw.control(b"!/notices/on")
        raw.control(b"echo/off")
        for choice in kind.choices:
            raw.control(choice)
        for key in (*keys, number):
            raw.sub(b"%d" % key)

    def begin(self) -> None:
        """Wait until all subscriptions are in force."""
        self._raw.whoami()
        self._raw.sock.setblocking(False)

    def subscribe_to_nothing(self, count: int) -> None:
        """Subscribe to so many patterns that match no message."""
        for pattern in range(count):
            self._raw.sub(b"idle/%d/%d" % (self._number, pattern))

    def fileno(self) -> int:
        return self._raw.fileno()

    def publish(self) -> None:
        """Send the next message, if the socket takes it."""
        try:
            packet = b"MSG %d\0%d %d" % (self._number, self.sent, time.monotonic_ns())
            self._raw.sock.send(packet)
        except BlockingIOError:
            return
        self.sent += 1

    def change_subscriptions(self, pattern: bytes) -> None:
        """Subscribe to a pattern that nobody publishes, and undo that."""
        self._raw.sock.send(b"SUB " + pattern)
        self._raw.sock.send(b"UNSUB " + pattern)

    def request(self) -> None:
        self._raw.sock.send(b"CMSG !/cred/whoami")

    def receive(self) -> None:
        """Check what is here."""
        for packet in self._packets():
            if packet.startswith(b"MSG "):
                key, _, payload = packet[4:].partition(b"\0")
                number, sent_at = payload.split()
                self._check(int(key), int(number))
                waited = (time.monotonic_ns() - int(sent_at)) / 1e9
                self.longest_wait_seconds = max(waited, self.longest_wait_seconds)
            elif packet.startswith(_LOST):
                count = packet.removeprefix(_LOST)
                self.has_unknown_losses |= count == b"?"
                self.notices.append(0 if count == b"?" else int(count))
                self.lost += self.notices[-1]
                self._was_told.update(self.keys)
            elif packet.startswith(_PACKETS_LOST):
                self.unprocessed += int(packet.removeprefix(_PACKETS_LOST).split()[0])
            else:
                assert packet.startswith(_WHOAMI), packet
                self.replies += 1

    def _packets(self) -> Iterator[bytes]:
        while True:
            try:
                packet = self._raw.sock.recv(PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            assert packet, f"client {self._number} was disconnected"
            yield packet

    def _check(self, key: int, number: int) -> None:
        assert key in self.last, (
            f"client {self._number} never subscribed to {key}, or wants no echo"
        )
        self.received += 1
        last = self.last[key]
        if number <= last:
            assert not self.kind.is_ordered, f"{number} of {key} came behind {last}"
            assert (key, number) in self.skipped, f"{number} of {key} came twice"
            self.skipped.remove((key, number))
            return
        self.skipped.update((key, skipped) for skipped in range(last + 1, number))
        if self.kind.is_ordered and key not in self._was_told:
            self.missing[key] += number - last - 1
        self._was_told.discard(key)
        self.last[key] = number


class CheckedLoad:
    """Clients of one bus, whose kinds, users and choices alternate."""

    def __init__(
        self,
        bus: Bus,
        clients: int,
        chance: random.Random,
        kinds: Sequence[Kind] = (Kind(),),
        uids: Sequence[int] = (os.geteuid(),),
        subscriptions: int = 0,
    ) -> None:
        """Each has so many `subscriptions` at least; those beyond the keys match nothing."""
        self._chance = chance
        self._stack = ExitStack()
        self._publish_at = time.monotonic()
        self.clients: list[CheckedClient] = []
        for number in range(clients):
            kind = kinds[number % len(kinds)]
            keys = [key for key in chance.sample(range(clients), kind.keys) if key != number]
            with effective_user(uids[number % len(uids)]):
                raw = self._stack.enter_context(bus.connect())
            client = CheckedClient(raw, number, keys, kind)
            client.subscribe_to_nothing(subscriptions - len(keys) - 1)
            self.clients.append(client)
        for client in self.clients:
            client.begin()
        self._readers: dict[int, CheckedClient] = {}
        """Those that are read now, by their descriptors."""
        self._poller = self._stack.enter_context(select.epoll())
        self._read(client for client in self.clients if client.kind.is_reader)

    def _read(self, clients: Iterable[CheckedClient]) -> None:
        for client in clients:
            self._readers[client.fileno()] = client
            self._poller.register(client, select.EPOLLIN)

    def close(self) -> None:
        self._stack.close()

    def run(self, messages_per_second: int, is_over: Callable[[], bool]) -> None:
        """Publish and receive."""
        pause = 1 / messages_per_second
        self._publish_at = max(self._publish_at, time.monotonic())
        while not is_over():
            now = time.monotonic()
            while self._publish_at <= now:
                self._publish_at += pause
                self._chance.choice(self.clients).publish()
            self.receive(self._publish_at - now)

    def run_for(self, messages_per_second: int, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        self.run(messages_per_second, lambda: time.monotonic() >= ends_at)

    def receive(self, seconds_max: float) -> None:
        for fd, _ in self._poller.poll(max(0, seconds_max)):
            self._readers[fd].receive()

    def take_longest_wait(self) -> float:
        """How many seconds a message took to a reader at most, since this was asked before."""
        longest = max(client.longest_wait_seconds for client in self._readers.values())
        for client in self.clients:
            client.longest_wait_seconds = 0.0
        return longest

    def finish(self) -> None:
        """Have every client receive a reply, then one message more of each key, while nothing
        happens to the bus."""
        self._read(client for client in self.clients if not client.kind.is_reader)
        self._wait_for_replies()
        for client in self.clients:
            client.publish()
        self._wait_for_replies()

    def _wait_for_replies(self) -> None:
        """Two rounds: what others published before their replies arrives before the second one."""
        for _ in range(2):
            for client in self.clients:
                client.replies = 0
                client.request()
            ends_at = time.monotonic() + _END_SECONDS_MAX
            while waiting := [client for client in self.clients if not client.replies]:
                assert time.monotonic() < ends_at, f"{len(waiting)} clients get no reply"
                self.receive(0.1)

    def check(self, *, deaths: int) -> None:
        """Everybody has everybody's last message, and what is missing was announced."""
        for client in self.clients:
            for key in client.keys:
                publisher = self.clients[key]
                assert client.last[key] == publisher.sent - 1, "a subscription was lost"
                assert client.missing[key] <= publisher.unprocessed, (
                    f"{client.missing[key]} messages are missing, {publisher.unprocessed} announced"
                )
        self._check_numbers(deaths)

    def _check_numbers(self, deaths: int) -> None:
        in_doubt = 0
        for client in self.clients:
            if client.has_unknown_losses:
                continue
            unprocessed = sum(self.clients[key].unprocessed for key in client.keys)
            assert len(client.skipped) <= client.lost + unprocessed
            in_doubt += sends_in_doubt(client.lost - len(client.skipped), client.notices)
        assert in_doubt <= deaths, f"{in_doubt} sends were counted as not made"

    def report(self) -> str:
        clients = self.clients
        notices = sum(len(it.notices) for it in clients)
        return (
            f"{len(clients)} clients, {sum(it.sent for it in clients)} sent, "
            f"{sum(it.received for it in clients)} received, "
            f"{notices} notices of {sum(it.lost for it in clients)} losses, "
            f"{sum(it.has_unknown_losses for it in clients)} clients with unknown losses, "
            f"{sum(it.unprocessed for it in clients)} packets not processed"
        )
