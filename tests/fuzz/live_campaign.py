"""One campaign of packets against a running bus, by ten users, beside the reference matcher.

The clients send in rounds. A round ends with two barriers: every client publishes a message for the
conductor, which waits for all of them, so everything before has its place in the total order; then
the conductor publishes one message for everybody, so everything before has arrived. After a round

    each client has been told just what its own packets cause, in their order, and was disconnected
    just when one of them costs that
    conductor and witness, subscribed to everything, have received all messages that were
    publishable, and no others, in one order, in which each publisher's messages keep theirs
    each client has received, in that order, the messages that it must receive, perhaps those that
    it may receive, and no others
    each receipt counts just the clients that have received the message

and after all rounds the counters of the bus are those of the models.
"""

import os
import random
import re
import socket
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import msgspec

from sbus.limits import Limits
from sbus.protocol.controls import SENDER_BYTES_MAX
from sbus.protocol.keys import DIALECTS, Dialect
from tests.fuzz.access_model import AccessModel, Rule, User, random_rules
from tests.fuzz.client_model import NOTICES_ON, RECEIPT, ClientModel, key_of
from tests.fuzz.generator import CONTROLS, RESERVED, PacketMaker
from tests.fuzz.packets import LIMITS
from tests.fuzz.reference_matcher import ReferenceMatcher
from tests.fuzz.user_process import UserProcess
from tests.fuzz.verdicts import Verdict, asks_for_receipt, judge
from tests.support.admin import administer, wait_for_traffic
from tests.support.bus import Bus, running_bus
from tests.support.senders import without_sender

USERS: Final = [User(70_000 + number, 80_000 + number % 4) for number in range(10)]
_OBSERVER: Final = User(70_100, 80_100)
"""No rule concerns it."""
CLIENTS: Final = 14
_PACKETS_PER_TURN_MAX = 80
_ROUND_BYTES_MAX = 250_000
"""What a round publishes, as the kernel keeps it: all of it fits the socket of every client."""
_KERNEL_BYTES_PER_MESSAGE = 700
_STEADY_SHARE = 0.6
"""Of the rounds: in these no subscription changes, so every recipient is certain."""
_COSTLY_SHARE = 0.05
"""Of the packets for which a client is disconnected: the others are left out, because most of the
time would go into connecting."""
_LEAVING_SHARE = 0.01
_RECENT_TEXTS = 16
_TIMEOUT = struct.pack("ll", 30, 0)
_SECRET_MESSAGE = b"MSG !/"
_BEFORE_PAYLOAD = re.compile(rb"(MSG |CMSG !/publish\0[^\0]*\0)[^\0]*\0")
_LIMITS = msgspec.structs.replace(
    Limits(),
    **{
        name: getattr(LIMITS, name)
        for name in Limits.__struct_fields__
        if getattr(LIMITS, name) != getattr(Limits(), name) and name != "table_bytes"
    },
)


class Setting(NamedTuple):
    """What kind of bus a campaign runs against."""

    workers: int
    dialect: str
    step: str
    has_rules: bool
    placement: str

    def __str__(self) -> str:
        rules = "access rules" if self.has_rules else "no rules"
        return f"{self.workers} workers, {self.dialect}, {self.step}, {rules}, {self.placement}"


def setting_of(seed: int) -> Setting:
    """Twenty-four seeds in a row have all combinations but for the placement."""
    rest, workers = divmod(seed, 3)
    return Setting(
        workers=(1, 2, 4)[workers],
        dialect=("slash", "dot")[rest % 2],
        step=("compiled", "python")[rest // 2 % 2],
        has_rules=bool(rest // 4 % 2),
        placement=("spread", "load")[seed // 24 % 2],
    )


class LiveClient(ClientModel):
    """A connection of one user to the bus: what must come of it, and what came."""

    def __init__(self, process: UserProcess, dialect: Dialect, access: AccessModel | None) -> None:
        super().__init__(dialect, _LIMITS, process.ids, access)
        self.sock = process.connect()
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.sock.setsockopt(socket.SOL_SOCKET, option, _TIMEOUT)
        self.received: list[bytes] = []
        self.is_leaving = False
        if dialect.has_control_messages:
            self.send(NOTICES_ON)

    def send(self, packet: bytes) -> None:
        self.send_judged(packet, judge(packet, self._dialect, _LIMITS))

    def send_judged(self, packet: bytes, verdict: Verdict) -> None:
        self.sock.send(packet)
        self.note(packet, verdict)

    def subscribe_more(self, pattern: bytes) -> None:
        """Subscribe for the harness: this pattern counts as one that was there before."""
        self.send(b"SUB " + pattern)
        self.lasting.add(pattern)

    def receive(self) -> bytes:
        _, packet = without_sender(self.sock.recv(_LIMITS.packet_bytes_max + SENDER_BYTES_MAX))
        self.received.append(packet)
        return packet

    def receive_until(self, last: bytes) -> None:
        while self.receive() != last:
            assert self.received[-1], f"disconnected without reason, told {self._told()}"

    def receive_receipts(self) -> None:
        """The barrier does not wait for them."""
        missing = sum(map(len, self.receipts.values()))
        missing -= sum(RECEIPT.fullmatch(packet) is not None for packet in self.received)
        while missing > 0:
            missing -= RECEIPT.fullmatch(self.receive()) is not None

    def receive_until_closed(self) -> None:
        while self.receive():
            pass
        self.received.pop()

    def _told(self) -> list[bytes]:
        return self.shown([it for it in self.received if it.startswith(b"CMSG ")])

    def check_told(self) -> None:
        due = self.told if self._dialect.has_control_messages else []
        assert self._told() == due, f"told {self._told()}, not {due}"


class LiveCampaign:
    """Rounds of packets against the bus at `address`; all of it follows from the seed."""

    def __init__(self, address: str, seed: int, rules: list[Rule]) -> None:
        self._chance = random.Random(seed)
        setting = setting_of(seed)
        self._dialect = DIALECTS[setting.dialect]
        self._access = {
            user: AccessModel(rules, user, setting.dialect) for user in (*USERS, _OBSERVER)
        }
        self._processes = {user: UserProcess(user, address) for user in (*USERS, _OBSERVER)}
        separator = self._dialect.separator
        self._to_conductor = b"MSG sync%bone\0" % separator
        self._to_all = b"MSG sync%ball\0" % separator
        self._users = [USERS[number % len(USERS)] for number in range(CLIENTS)]
        recent = [b""] * _RECENT_TEXTS
        self._makers = [
            PacketMaker(
                seed * CLIENTS + number,
                separator,
                _LIMITS,
                self._reserved(user),
                [*CONTROLS * 8, b"!/me"],
                recent,
            )
            for number, user in enumerate(self._users)
        ]
        self._numbers = 0
        """Of messages, which makes each of them unique."""
        self.counts: Counter[str] = Counter()
        """What the models say that the bus counts, by code."""
        self.tally: Counter[str] = Counter()
        """What was done and compared."""
        self._conductor, self._witness = self._client(_OBSERVER), self._client(_OBSERVER)
        self._observers = [self._conductor, self._witness]
        self._begin_to_observe()
        self._clients = [self._client(user) for user in self._users]

    def _reserved(self, user: User) -> list[bytes]:
        """Reserved keys and patterns: some with the user's own ids, some with those of others."""
        texts = [*RESERVED]
        if not self._dialect.has_control_messages:
            return texts
        choice = self._chance.choice
        for one in (*[user] * 4, *self._chance.sample(USERS, 4)):
            gid, uid, pid = self._processes[one].ids
            for rest in (b"a", b"", b"a/*", b"*"):
                ids = [choice([own, b""]) for own in (gid, uid, choice([pid, b"1"]))]
                texts.append(b"!/cred/%b/%b/%b/%b" % (*ids, rest))
        return texts

    def _client(self, user: User) -> LiveClient:
        client = LiveClient(self._processes[user], self._dialect, self._access[user])
        client.subscribe_more(key_of(self._to_all))
        return client

    def _begin_to_observe(self) -> None:
        """From now on conductor and witness receive everything."""
        for observer in self._observers:
            observer.subscribe_more(b"")
            greeting = self._to_conductor + b"%d" % observer.sock.fileno()
            observer.send(greeting)
            observer.receive_until(greeting)
        self._conductor.receive_until(greeting)
        for observer in self._observers:
            self._end_round_of(observer)

    def _end_round_of(self, client: LiveClient) -> None:
        self.counts += client.counts
        self.tally["published"] += len(client.published)
        client.received.clear()
        client.begin_round()

    # -- a round -------------------------------------------------------------------------------
    def round(self, packets_max: int) -> int:
        """Send at most so many packets, and check what came of them; returns how many."""
        sent = self._send(packets_max)
        self._pass_barriers()
        everybody = [*self._clients, *self._observers]
        order = _messages(self._conductor.received)
        self._check_order(order)
        self._check_received(everybody, order)
        for client in everybody:
            self._end_round_of(client)
        for at, client in enumerate(self._clients):
            if client.code or client.is_leaving:
                self.tally["disconnected" if client.code else "left"] += 1
                client.sock.close()
                self._clients[at] = self._client(self._users[at])
        self.tally["rounds"] += 1
        return sent

    def _send(self, packets_max: int) -> int:
        """All clients send, in a random order; returns how many packets."""
        is_steady = self._chance.random() < _STEADY_SHARE
        sent = room = 0
        for at in self._chance.sample(range(CLIENTS), CLIENTS):
            client, maker = self._clients[at], self._makers[at]
            count = min(self._chance.randint(0, _PACKETS_PER_TURN_MAX), packets_max - sent)
            while count > 0 and not client.code and room < _ROUND_BYTES_MAX:
                packet = self._numbered(maker.packet())
                verdict = judge(packet, self._dialect, _LIMITS)
                if self._is_left_out(client, verdict, is_steady=is_steady):
                    continue
                client.send_judged(packet, verdict)
                count -= 1
                sent += 1
                if verdict.word == b"MSG" or asks_for_receipt(verdict):
                    room += _KERNEL_BYTES_PER_MESSAGE + len(packet)
            # Who leaves behind an empty packet may have sent nothing but the end.
            client.is_leaving = not client.code and self._chance.random() < _LEAVING_SHARE
        self.tally["packets"] += sent
        return sent

    def _is_left_out(self, client: LiveClient, verdict: Verdict, *, is_steady: bool) -> bool:
        if is_steady and verdict.word in (b"SUB", b"UNSUB") and not verdict.code:
            return True
        return client.costs_connection(verdict) and self._chance.random() > _COSTLY_SHARE

    def _numbered(self, packet: bytes) -> bytes:
        """A message, with a number at the end of its payload, so that no other is the same."""
        beginning = _BEFORE_PAYLOAD.match(packet)
        if beginning is None:
            return packet
        end = beginning.end() - 1
        self._numbers += 1
        number = b"#%d" % self._numbers
        if len(packet) + len(number) <= _LIMITS.packet_bytes_max:
            return packet + number
        return packet[: max(end + 1, len(packet) - len(number))] + number

    def _pass_barriers(self) -> None:
        """See this module's head. A client that leaves does so without having read."""
        number = self.tally["rounds"]
        due = set()
        for at, client in enumerate(self._clients):
            if client.code:
                client.receive_until_closed()
            else:
                packet = b"%b%d %d" % (self._to_conductor, at, number)
                due.add(packet)
                client.send(packet)
            if client.is_leaving:
                client.sock.close()
        while due:
            due.discard(self._conductor.receive())
        last = b"%b%d" % (self._to_all, number)
        self._conductor.send(last)
        for client in (*self._clients, *self._observers):
            if not client.code and not client.is_leaving:
                client.receive_until(last)
                client.receive_receipts()

    # -- checks --------------------------------------------------------------------------------
    def _check_order(self, order: list[bytes]) -> None:
        """Everything that was published is in the one order, and nothing else."""
        assert order == _messages(self._witness.received), "two orders"
        publishers = [*self._clients, self._conductor]
        published = [client.published_openly() for client in publishers]
        assert Counter(order) == Counter(it for messages in published for it in messages)
        for messages in published:
            assert _is_part_of(messages, order), "a publisher's messages are out of order"

    def _check_received(self, everybody: list[LiveClient], order: list[bytes]) -> None:
        matcher = ReferenceMatcher(everybody, self._dialect)
        publisher_of = {packet: it for it in everybody for packet in it.published}
        secrets = [packet for packet in publisher_of if packet.startswith(_SECRET_MESSAGE)]
        must: list[list[bytes]] = [[] for _ in everybody]
        may: list[set[bytes]] = [set() for _ in everybody]
        for packet in (*order, *secrets):
            recipients = matcher.recipients(key_of(packet))
            publisher = publisher_of[packet]
            is_echoed = packet not in publisher.unechoed
            for number in recipients.must:
                if is_echoed or everybody[number] is not publisher:
                    must[number].append(packet)
            for number in recipients.may:
                if is_echoed or everybody[number] is not publisher:
                    may[number].add(packet)
        for client, sure, possible in zip(everybody, must, may, strict=True):
            if client.is_leaving:
                continue
            client.check_told()
            self._compare(client, order, sure, possible)
        self._check_receipts(everybody)
        pairs = len(publisher_of) * len(everybody)
        self.tally["secret"] += len(secrets)
        self.tally["decisions"] += pairs
        self.tally["uncertain"] += sum(map(len, may))

    def _compare(
        self, client: LiveClient, order: list[bytes], sure: list[bytes], possible: set[bytes]
    ) -> None:
        """What a client received, and what it must and may receive. A client that was disconnected
        did not receive what came later."""
        received = _messages(client.received)
        secret = [it for it in client.received if it.startswith(_SECRET_MESSAGE)]
        self.tally["received"] += len(received) + len(secret)
        due = [it for it in sure if not it.startswith(_SECRET_MESSAGE)]
        if client.code or possible:
            assert _is_part_of(received, order), "out of order, or twice"
        else:
            assert received == due, "not just what was due, in its order"
        everything = {*received, *secret}
        assert len(everything) == len(received) + len(secret), "a message came twice"
        foreign = everything - possible - {*sure}
        assert not foreign, f"not for this client: {foreign}"
        missing = {*sure} - everything
        assert client.code or not missing, f"missing: {missing}"

    def _check_receipts(self, everybody: list[LiveClient]) -> None:
        """Who has left or was disconnected may have been sent a message and not have read it."""
        came = Counter(packet for client in everybody for packet in client.received)
        unknown = sum(client.is_leaving or bool(client.code) for client in everybody)
        for client in everybody:
            if client.is_leaving:
                continue
            for token, counts in client.check_receipts(client.received).items():
                self.tally["receipts"] += len(counts)
                received = sum(came[message] for message in client.receipts[token])
                if not client.code:
                    assert received <= sum(counts) <= received + unknown * len(counts), token

    # -- the end -------------------------------------------------------------------------------
    def end(self, bus: Bus) -> None:
        """Everybody leaves; the counters of the bus are those of the models."""
        for client in (*self._clients, *self._observers):
            self._end_round_of(client)
            client.sock.close()

        def has_all_left(traffic: dict[str, Any]) -> bool:
            return bool(traffic["subscriptions"] == 0)

        with administer(bus) as admin:
            traffic = wait_for_traffic(admin, has_all_left)
            stats = admin.ask("stats")
        assert Counter(traffic["refused"]) == self.counts, "counted otherwise"
        assert not sum(traffic["discarded"].values()), "messages were dropped"
        assert traffic["messages_in"] == self.tally["published"]
        assert not stats["connections_refused"]
        assert not any(worker["deaths"] for worker in stats["workers"])
        assert "Traceback" not in bus.stderr_text()

    def close(self) -> None:
        for client in (*self._clients, *self._observers):
            client.sock.close()
        for process in self._processes.values():
            process.end()


def _messages(received: list[bytes]) -> list[bytes]:
    """Without control messages and secret messages."""
    return [it for it in received if it.startswith(b"MSG ") and not it.startswith(_SECRET_MESSAGE)]


def _is_part_of(some: list[bytes], order: list[bytes]) -> bool:
    """Whether all of these are in `order`, in this sequence."""
    rest = iter(order)
    return all(packet in rest for packet in some)


@contextmanager
def campaign(seed: int) -> Iterator[LiveCampaign]:
    """The campaign of a seed against a bus of its own, whose end is checked as well."""
    setting = setting_of(seed)
    with (
        patch.dict(os.environ, SBUS_STEP=setting.step),
        tempfile.TemporaryDirectory(prefix="sbus-fuzz-", dir="/tmp") as name,
    ):
        directory = Path(name)
        directory.chmod(0o711)
        rules = []
        if setting.has_rules:
            rules = random_rules(random.Random(seed), USERS, setting.dialect, _spared(setting))
        options = _options(directory, setting, rules)
        with running_bus(
            directory, *options, workers=setting.workers, placement=setting.placement
        ) as bus:
            running = LiveCampaign(bus.address, seed, rules)
            try:
                yield running
                running.end(bus)
            finally:
                running.close()


def _spared(setting: Setting) -> bytes:
    return b"sync" + DIALECTS[setting.dialect].separator


def _options(directory: Path, setting: Setting, rules: list[Rule]) -> list[str]:
    path = directory / "sbus.toml"
    path.write_text("\n".join(rule.toml() for rule in rules))
    options = ["--others", "--config", str(path), "--dialect", setting.dialect]
    # Of those who are disconnected, all connect again at once.
    options += ["--limit", "user_connections_per_second_max=100000"]
    for name in Limits.__struct_fields__:
        if (value := getattr(_LIMITS, name)) != getattr(Limits(), name):
            options += ["--limit", f"{name}={value}"]
    return options


def run_campaign(seed: int, packets: int) -> Counter[str]:
    """Send so many packets; returns what was done and compared."""
    done = 0
    try:
        with campaign(seed) as running:
            while done < packets:
                done += running.round(packets - done)
            return running.tally
    except Exception as error:
        text = f"seed {seed} ({setting_of(seed)}), after {done} packets: {error!r}"
        raise AssertionError(text) from error
