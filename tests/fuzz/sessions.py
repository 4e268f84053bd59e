"""Packets through real sessions of real workers, against what the documents make of them.

In every round some clients on each worker send a handful of packets each. Then

    each client has been told just the faults that `verdicts` finds, in their order, and is
    disconnected just when one of them costs that; it has a receipt for each message with one
    two witnesses, subscribed to everything on different workers, have received every message that
    was publishable and nothing else, in one order, in which each client's messages keep theirs
    bystanders have received their own messages and nothing else
    what a client received, one of its patterns matches; what its lasting patterns match, it has

A client that asks for a name waits until the workers have done what others have asked about it.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator

from sbus.limits import Limits
from sbus.protocol.keys import DIALECTS, Dialect
from tests.fuzz.client_model import NOTICES_ON, SETTINGS, ClientModel, is_age, key_of
from tests.fuzz.one_process_bus import WORKERS, OneProcessBus, Peer
from tests.history.names import Members, Names, tells_of_name
from tests.history.verdicts import judge
from tests.support.senders import without_sender
from tests.unit.routing.specification import matches

CLIENTS_PER_WORKER = 4
PACKETS_PER_ROUND_MAX = 25
"""Of one client; all of it fits into the sockets of those who receive it."""
ROUNDS_PER_CHECK = 20
ROUNDS_PER_COMPARISON = 3
SOFT = b"blocking/soft/"
QUEUE = SOFT + b"queue"
OWN_IDS = (b"100", b"1000", b"4711")


class FuzzedClient(ClientModel):
    """A client that says anything, and what must come of it."""

    def __init__(self, peer: Peer, dialect: Dialect, limits: Limits, members: Members) -> None:
        super().__init__(dialect, limits, OWN_IDS, members)
        self.number = peer.number
        self._soft = QUEUE
        self._has_age = False
        """Once it had one, something may wait in its backlog."""
        self.peer = peer
        if dialect.has_control_messages:
            peer.send(NOTICES_ON)

    def begin_round(self) -> None:
        super().begin_round()
        self._echoes = {self.echo}

    def begins_to_lose(self, packet: bytes) -> bool:
        """Whether messages would be lost because of this choice: it has an age, and what finds
        others in its backlog is not queued."""
        if not self._dialect.has_control_messages:
            return False
        _, key, _ = judge(packet, self._dialect, self._limits)
        soft = key if key in SETTINGS and key.startswith(SOFT) else self._soft
        return (self._has_age or is_age(key)) and soft != QUEUE

    def send(self, packet: bytes) -> None:
        self.peer.send(packet)
        verdict = judge(packet, self._dialect, self._limits)
        if verdict.word == b"CMSG":
            self._has_age |= is_age(verdict.text)
            if verdict.text in SETTINGS and verdict.text.startswith(SOFT):
                self._soft = verdict.text
        self.note(packet, verdict)
        self._echoes.add(self.echo)

    def check(self, received: list[bytes], others: list[bytes], *, compare: bool) -> None:
        """What came in this round, and what others published in it."""
        told = [packet for packet in received if packet.startswith(b"CMSG ")]
        shown = self.shown(told)
        due = self.told if self._dialect.has_control_messages else []
        assert shown == due, f"told {shown}, not {due}"
        self.check_receipts(told)
        assert self.peer.ended == bool(self.code)
        messages = Counter(received) - Counter(told)
        always = [*others, *filter(tells_of_name, self.published)]
        own = [packet for packet in self.published if not tells_of_name(packet)]
        possible = [*always, *(own if True in self._echoes else [])]
        assert messages <= Counter(possible), "messages that nobody published for it"
        if compare:
            assert all(self._matches(self.any_pattern, packet) for packet in messages)
            if not self.code:
                sure = [*always, *(own if self._echoes == {True} else [])]
                due_ones = [packet for packet in sure if self._matches(self.lasting, packet)]
                assert Counter(due_ones) <= messages, "not everything came that was due"

    def _matches(self, patterns: Iterable[bytes], packet: bytes) -> bool:
        return any(matches(pattern, key_of(packet), self._dialect) for pattern in patterns)


class Subscriber:
    """A client that does nothing but subscribe to these, and sends what it is told to."""

    def __init__(self, peer: Peer, *patterns: bytes) -> None:
        self.peer = peer
        for pattern in patterns:
            peer.send(b"SUB " + pattern)


class Sessions:
    """Rounds of packets from `packets`, an endless supply, on a bus of one process."""

    def __init__(
        self, bus: OneProcessBus, dialect: str, limits: Limits, packets: Iterator[bytes], seed: int
    ) -> None:
        self._bus = bus
        self._dialect = DIALECTS[dialect]
        self._limits = limits
        self._packets = packets
        self._chance = random.Random(seed)
        self._rounds = 0
        self.counts: Counter[str] = Counter()
        self._members: Members = {}
        self._history = Names()
        self._clients = [self._connect(i % WORKERS) for i in range(CLIENTS_PER_WORKER * WORKERS)]
        everything = [b"", b"!/presence/*/*"] if self._dialect.has_control_messages else [b""]
        self._witnesses = [
            Subscriber(bus.connect(worker), *everything) for worker in range(WORKERS)
        ]
        self._key = self._dialect.separator.join([b"bystanders", b"own"])
        self._bystanders = [Subscriber(bus.connect(worker), self._key) for worker in range(WORKERS)]

    def _connect(self, worker: int) -> FuzzedClient:
        peer = self._bus.connect(worker)
        return FuzzedClient(peer, self._dialect, self._limits, self._members)

    def round(self, packets_max: int) -> int:
        """Send at most so many packets; returns how many. All of them have been served."""
        self._rounds += 1
        sent = 0
        leaving: list[FuzzedClient] = []
        for client in self._clients:
            client.begin_round()
            count = min(self._chance.randint(0, PACKETS_PER_ROUND_MAX), packets_max - sent)
            while count and not client.code:
                packet = next(self._packets)
                if client.begins_to_lose(packet):
                    continue
                verdict = judge(packet, self._dialect, self._limits)
                self._settle(client, client.concerned_name(verdict, packet))
                client.send(packet)
                count -= 1
                sent += 1
            # Who leaves behind an empty packet may have sent nothing but the end.
            if self._chance.random() < 0.03 and client.code != "empty-packet":
                leaving.append(client)
                self._settle(client, client.member and client.member.key)
                client.peer.close()
                client.depart("left")
        own = [b"MSG %b\0%d %d" % (self._key, self._rounds, i) for i in range(WORKERS)]
        for bystander, message in zip(self._bystanders, own, strict=True):
            bystander.peer.send(message)
        received = self._receive([who for who in self._clients if who not in leaving])
        self._check_order(received, own)
        self._check_clients(received, own, leaving)
        if not self._rounds % ROUNDS_PER_CHECK:
            self.check()
        return sent

    def _settle(self, client: FuzzedClient, key: bytes | None) -> None:
        """Make certain who has the name with this key, which a client asks for or gives up."""
        if key is None:
            return
        if any(key in other.unsettled for other in self._clients if other is not client):
            self._bus.settle()
            for other in self._clients:
                other.unsettled.clear()
        client.unsettled.add(key)

    def _receive(self, clients: Iterable[FuzzedClient]) -> dict[Peer, list[bytes]]:
        """Let the workers work, and read, until nothing comes any more."""
        peers = [client.peer for client in clients]
        peers += [who.peer for who in (*self._witnesses, *self._bystanders)]
        received: dict[Peer, list[bytes]] = {peer: [] for peer in peers}
        more = True
        while more:
            more = False
            self._bus.settle()
            for peer in peers:
                if packets := peer.read():
                    received[peer] += [without_sender(packet)[1] for packet in packets]
                    more = True
        return received

    def _check_order(self, received: dict[Peer, list[bytes]], own: list[bytes]) -> None:
        orders = [received[witness.peer] for witness in self._witnesses]
        assert orders[0] == orders[1], "two orders"
        published = [packet for client in self._clients for packet in client.published_openly()]
        assert Counter(orders[0]) == Counter([*published, *own])
        for client in self._clients:
            rest = iter(orders[0])
            assert all(packet in rest for packet in client.published_openly()), "out of order"
        self._history.begin_round()
        for packet in filter(tells_of_name, orders[0]):
            self._history.follow(packet)
        assert self._history.now == {*self._members.values()}
        due = [packet for packet in orders[0] if packet in own]
        assert all(received[bystander.peer] == due for bystander in self._bystanders)

    def _check_clients(
        self, received: dict[Peer, list[bytes]], own: list[bytes], leaving: list[FuzzedClient]
    ) -> None:
        compare = not self._rounds % ROUNDS_PER_COMPARISON
        due_gone = {}
        clients = self._clients[:]
        for at, client in enumerate(clients):
            self.counts += client.counts
            if client not in leaving:
                others = [p for other in clients if other is not client for p in other.published]
                client.check(received[client.peer], [*others, *own], compare=compare)
                client.check_lists(received[client.peer], self._history)
            if client.code or client in leaving:
                due_gone[client.peer.number] = client.code
                client.peer.close()
                self._clients[at] = self._connect(client.peer.worker)
        assert self._bus.gone == due_gone
        self._bus.gone.clear()

    def check(self) -> None:
        """Counters, ledgers and invariants; and the front does what it does now and then."""
        self._bus.settle()
        found = self._bus.counts()
        assert found == self.counts, f"counted {found}, not {self.counts}"
        self._bus.check_invariants()
        self._bus.compact()

    def end(self) -> None:
        """All clients leave: nothing of what they did may be left."""
        self.check()
        for client in self._clients:
            client.peer.close()
            client.depart("left")
        for subscriber in (*self._witnesses, *self._bystanders):
            subscriber.peer.close()
        self._bus.settle()
        self._bus.compact()  # wakes all workers: only then they have read of all the others
        self._bus.check_invariants()
        assert self._bus.index_sizes() == [(1, 0)] * WORKERS
        assert set(self._bus.gone.values()) == {""}
