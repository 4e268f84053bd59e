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
    joins and leaves are in that order, a will right before the leave of its client, and a list of
    members has those who had names at its place

A client that asks for a name waits until the bus has done what others have asked about that name,
so it is certain who gets it.

and after all rounds the counters of the bus are those of the models.
"""

import os
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from sbus.compiled import STEP
from sbus.protocol.keys import DIALECTS
from tests.fuzz.access_model import AccessModel, Rule, User
from tests.fuzz.generator import CONTROLS, RESERVED, PacketMaker
from tests.fuzz.live_checks import LiveChecks
from tests.fuzz.live_client import LiveClient
from tests.fuzz.live_setting import LIMITS, OBSERVER, USERS, bus_options, rules_of, setting_of
from tests.fuzz.user_process import UserProcess
from tests.history.names import Members
from tests.history.verdicts import Verdict, judge
from tests.support.admin import administer, wait_for_traffic
from tests.support.bus import Bus, running_bus

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
_BEFORE_PAYLOAD = re.compile(rb"(MSG |CMSG !/publish\0[^\0]*\0)[^\0]*\0")
_BEFORE_WILL = re.compile(rb"CMSG !/join\0[^\0]*\0[^\0]*\0")


class LiveCampaign:
    """Rounds of packets against the bus at `address`; all of it follows from the seed."""

    def __init__(self, address: str, seed: int, rules: list[Rule]) -> None:
        self._chance = random.Random(seed)
        setting = setting_of(seed)
        self._dialect = DIALECTS[setting.dialect]
        self._access = {
            user: AccessModel(rules, user, setting.dialect) for user in (*USERS, OBSERVER)
        }
        self._processes = {user: UserProcess(user, address) for user in (*USERS, OBSERVER)}
        separator = self._dialect.separator
        self._to_conductor = b"MSG sync%bone\0" % separator
        self._to_all = b"MSG sync%ball\0" % separator
        self._users = [USERS[number % len(USERS)] for number in range(CLIENTS)]
        recent = [b""] * _RECENT_TEXTS
        self._makers = [
            PacketMaker(
                seed * CLIENTS + number,
                separator,
                LIMITS,
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
        self._members: Members = {}
        self._checks = LiveChecks(self._dialect, self._members, self.tally)
        self._conductor, self._witness = self._client(OBSERVER), self._client(OBSERVER)
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
        process, access = self._processes[user], self._access[user]
        client = LiveClient(process, self._dialect, self._members, access)
        self.tally["published"] += bool(client.number)
        return client

    def _begin_to_observe(self) -> None:
        """From now on conductor and witness receive everything."""
        for observer in self._observers:
            observer.subscribe_more(b"")
            if self._dialect.has_control_messages:
                observer.subscribe_more(b"!/presence/*/*")
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
        self._checks.check(self._clients, self._conductor, self._witness)
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
                packet = self._numbered(maker.packet(), client)
                verdict = judge(packet, self._dialect, LIMITS)
                if self._is_left_out(client, verdict, packet, is_steady=is_steady):
                    continue
                self._settle(client, client.concerned_name(verdict, packet))
                client.send_judged(packet, verdict)
                count -= 1
                sent += 1
                if verdict.word in (b"MSG", b"CMSG"):
                    room += _KERNEL_BYTES_PER_MESSAGE + len(packet)
            if self._dialect.has_control_messages and self._chance.random() < 0.1:
                self._witness.send(b"CMSG !/members\0*/*")
            # Who leaves behind an empty packet may have sent nothing but the end.
            client.is_leaving = not client.code and self._chance.random() < _LEAVING_SHARE
        self.tally["packets"] += sent
        return sent

    def _is_left_out(
        self, client: LiveClient, verdict: Verdict, packet: bytes, *, is_steady: bool
    ) -> bool:
        if is_steady and verdict.word in (b"SUB", b"UNSUB") and not verdict.code:
            return True
        return client.costs_connection(verdict, packet) and self._chance.random() > _COSTLY_SHARE

    def _settle(self, client: LiveClient, key: bytes | None) -> None:
        """Wait until it is certain who has the name with this key, which the client asks for or
        gives up."""
        if key is None:
            return
        for other in self._clients:
            if other is not client and key in other.unsettled:
                other.settle()
                self._wait_for_farewell(other)
        client.unsettled.add(key)

    def _wait_for_farewell(self, client: LiveClient) -> None:
        while not {*client.farewell[-1:]} <= {*self._conductor.received}:
            self._conductor.receive()

    def _numbered(self, packet: bytes, client: LiveClient) -> bytes:
        """A message, with a number at the end of its payload, so that no other is the same. All
        wills of a client have one number, and so are repeated."""
        if _BEFORE_WILL.match(packet):
            return packet + b"~%d" % client.number
        beginning = _BEFORE_PAYLOAD.match(packet)
        if beginning is None:
            return packet
        end = beginning.end() - 1
        self._numbers += 1
        number = b"#%d" % self._numbers
        if len(packet) + len(number) <= LIMITS.packet_bytes_max:
            return packet + number
        return packet[: max(end + 1, len(packet) - len(number))] + number

    # -- its end -------------------------------------------------------------------------------
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
        leaving = [client for client in self._clients if client.is_leaving]
        for client in leaving:
            self._settle(client, client.member and client.member.key)
        for client in leaving:
            client.sock.close()
            client.depart("left")
        due -= {*self._conductor.received}
        while due:
            due.discard(self._conductor.receive())
        for client in self._clients:
            self._wait_for_farewell(client)
        last = b"%b%d" % (self._to_all, number)
        self._conductor.send(last)
        for client in (*self._clients, *self._observers):
            if not client.code and not client.is_leaving:
                client.receive_until(last)
                client.receive_receipts()

    # -- the end -------------------------------------------------------------------------------
    def end(self, bus: Bus) -> None:
        """Everybody leaves; the counters of the bus are those of the models."""
        for client in (*self._clients, *self._observers):
            client.depart("left")
            self._end_round_of(client)
            client.sock.close()

        def has_all_left(traffic: dict[str, Any]) -> bool:
            published: int = self.tally["published"]
            return not traffic["subscriptions"] and traffic["messages_in"] >= published

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


@contextmanager
def campaign(seed: int) -> Iterator[LiveCampaign]:
    """The campaign of a seed against a bus of its own, whose end is checked as well."""
    setting = setting_of(seed)
    with (
        patch.dict(os.environ, SBUS_STEP=setting.step if STEP == "compiled" else STEP),
        tempfile.TemporaryDirectory(prefix="sbus-fuzz-", dir="/tmp") as name,
    ):
        directory = Path(name)
        directory.chmod(0o711)
        rules = rules_of(seed)
        options = bus_options(directory, setting, rules)
        with running_bus(
            directory, *options, workers=setting.workers, placement=setting.placement
        ) as bus:
            running = LiveCampaign(bus.address, seed, rules)
            try:
                yield running
                running.end(bus)
            finally:
                running.close()


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
