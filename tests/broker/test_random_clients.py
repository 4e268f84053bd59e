"""Clients that do anything in any order, on a real bus, against a model of it.

After each action a client publishes a message that ends it, and the observer waits for that
message. So a client can act without reading, the next client acts only when the last one was
served, and the model knows the order of everything. Clients read now and then, or a little; until
then their sockets and their small backlogs fill. Further messages are then handled as the client
chose: they are lost, for which the bus must account, or end the connection, or hold back the acting
client. A client that holds others back reads, or leaves, when nothing else can continue. Meanwhile
clients are moved to other workers, which none of them may notice.
"""

import itertools
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.broker.random_clients_model import Fate, Model, ModelClient, cost
from tests.support.bus import Bus, running_bus
from tests.support.flood import SOCKET_BUFFER_BYTES, WHOAMI_REPLY, limit_options
from tests.support.moves import clients_moving
from tests.support.raw_client import PACKET_BYTES_MAX, WHOAMI, RawClient

CLIENTS_MAX = 6
BACKLOG_MESSAGES = 12
OPTIONS = limit_options(backlog_messages_max=BACKLOG_MESSAGES, user_held_seconds_max=60)
SAFE_UNREAD_COST = 2 * SOCKET_BUFFER_BYTES
"""So much a socket holds for a client that does not read."""
FLOOD_MESSAGES = 60
FLOOD_PAYLOAD_BYTES = 1_000
PATIENCE_SECONDS = 0.005
"""How long nothing goes on before somebody reads. It only has to be short."""
HELD_SECONDS_MAX = 60.0
DONE = b"done"
KEYS = [b"a", b"b", b"a/b", b"a/b/c", b"a//c", b"x!/y", b"", b"/", b"bc/*"]
PATTERNS = [
    *(b"a", b"b", b"a/b", b"a/*", b"a/", b"", b"*", b"*/", b"a/*/c", b"b*", b"b*c", b"bc/*"),
    *(b"*/*", b"!x", b"/", b"a*/"),
]
RESERVED = [b"!", b"a/!/b", b"a/!/cred/1/2/3/x", b"!/lost"]

CHOICES = [
    *(f"blocking/soft/{choice}" for choice in ("queue", "discard", "block", "block", "error")),
    *(f"blocking/hard/{choice}" for choice in ("discard", "block", "error")),
    *(f"order/{choice}" for choice in ("queue", "queue", "stack", "random")),
]

keys = st.sampled_from(KEYS)
choices = st.sampled_from(CHOICES)
patterns = st.sampled_from(PATTERNS)
picks = st.integers(0, 5)
Act = Callable[["RandomClients", int], None]


def publish(key: bytes, size: int = 0) -> Act:
    return lambda machine, who: machine.publish(who, key, size)


def subscribe(pattern: bytes) -> Act:
    return lambda machine, who: machine.subscribe(who, pattern)


def unsubscribe(pattern: bytes) -> Act:
    return lambda machine, who: machine.unsubscribe(who, pattern)


def unsubscribe_held(pick: int) -> Act:
    return lambda machine, who: machine.unsubscribe_held(who, pick)


def switch_echo(on: bool) -> Act:
    return lambda machine, who: machine.switch_echo(who, on)


def choose(choice: str) -> Act:
    return lambda machine, who: machine.choose(who, choice)


acts = st.one_of(
    st.builds(publish, keys, st.sampled_from([0, 0, 50, 5_000])),
    st.builds(publish, keys),
    st.builds(subscribe, patterns),
    st.builds(unsubscribe, patterns),
    st.builds(unsubscribe_held, picks),
    st.builds(switch_echo, st.booleans()),
    st.builds(choose, choices),
)


class Tally:
    """What happened in all runs together."""

    def __init__(self) -> None:
        self.losses: list[int] = []
        """How much was lost by those who read everything, each time."""
        self.held = 0
        """How often nothing went on until a client that blocks had read."""
        self.ended = 0
        """How many were given up."""


class RandomClients(RuleBasedStateMachine):
    """Up to six clients of one bus, which is there before and afterwards."""

    def __init__(self, bus: Bus, tally: Tally) -> None:
        super().__init__()
        self._bus = bus
        self._tally = tally
        self._model = Model()
        self._clients: dict[int, RawClient] = {}
        self._numbers = itertools.count()
        self._leaves_rather = False
        """Whether those who hold others back leave instead of reading."""
        self._observer = bus.connect()
        self._observer.sub(DONE)
        self._observer.whoami()

    # -- what a client does ----------------------------------------------------------------------
    def publish(self, who: int, key: bytes, size: int) -> None:
        packet = b"MSG %b\0%d " % (key, next(self._numbers)) + bytes(size)
        self._avoid_disconnection(who, key, packet)
        self._send(who, packet)
        self._model.publish(who, key, packet)

    def subscribe(self, who: int, pattern: bytes) -> None:
        self._send(who, b"SUB " + pattern)
        self._model.clients[who].patterns[pattern] += 1

    def unsubscribe(self, who: int, pattern: bytes) -> None:
        self._send(who, b"UNSUB " + pattern)
        self._model.clients[who].unsubscribe(pattern)

    def unsubscribe_held(self, who: int, pick: int) -> None:
        held = sorted(self._model.clients[who].patterns)
        if held:
            self.unsubscribe(who, held[pick % len(held)])

    def switch_echo(self, who: int, on: bool) -> None:
        self._send(who, b"CMSG echo/on" if on else b"CMSG echo/off")
        self._model.clients[who].echo = on

    def choose(self, who: int, choice: str) -> None:
        self._send(who, b"CMSG " + choice.encode())
        self._model.clients[who].choose(choice)

    def await_done(self, who: int) -> None:
        """Wait until the bus has served everything that this client sent."""
        packet = b"MSG %b\0%d" % (DONE, next(self._numbers))
        self._avoid_disconnection(who, DONE, packet)
        self._send(who, packet)
        self._model.publish(who, DONE, packet)
        self._await_done(packet)

    def read(self, who: int) -> None:
        """Read everything that is due, and nothing else; or up to the end of the connection."""
        model = self._model.clients[who]
        unread_cost = model.unread_cost
        received = []
        try:
            self._send(who, b"CMSG " + WHOAMI)
            while not (packet := self._receive(who)).startswith(WHOAMI_REPLY):
                received.append(packet)
        except (BrokenPipeError, ConnectionResetError):
            assert model.may_have_been_ended, "a client was given up"
            received += self._clients[who].receive_until_closed()
            model.end(received)
            self._tally.ended += 1
            self._forget(who)
        else:
            lost = model.read_all(received)
            assert not lost or unread_cost > SAFE_UNREAD_COST, "lost without need"
            self._tally.losses.append(lost)

    # -- room ------------------------------------------------------------------------------------
    def _avoid_disconnection(self, who: int, key: bytes, packet: bytes) -> None:
        """Who may be given up must not be so by what it says itself: nobody could tell what the bus
        has read of it."""
        model = self._model.clients[who]
        endangered = model.fate is Fate.IS_THE_LAST and model.echo and model.wants(key)
        if endangered and model.unread_cost + cost(packet) > SAFE_UNREAD_COST:
            self.read(who)

    def _send(self, who: int, packet: bytes) -> None:
        """Send a packet, though the client may be held back."""
        sock = self._clients[who].sock
        deadline = time.monotonic() + HELD_SECONDS_MAX
        while True:
            sock.settimeout(0)
            try:
                sock.send(packet)
            except BlockingIOError:
                assert time.monotonic() < deadline, "held back for ever"
                if not select.select([], [sock], [], PATIENCE_SECONDS)[1]:
                    self._release_publishers(sender=who)
            else:
                return

    def _receive(self, who: int) -> bytes:
        """The client's next packet; ConnectionResetError at the end of the connection."""
        self._await(self._clients[who], who)
        if packet := self._clients[who].receive():
            return packet
        raise ConnectionResetError

    def _await_done(self, packet: bytes) -> None:
        self._await(self._observer)
        assert self._observer.receive() == packet

    def _await(self, client: RawClient, reader: int | None = None) -> None:
        """Wait until this client, the reader or the observer, has something to read."""
        deadline = time.monotonic() + HELD_SECONDS_MAX
        while not select.select([client], [], [], PATIENCE_SECONDS)[0]:
            assert time.monotonic() < deadline, "held back for ever"
            self._release_publishers(reader=reader)

    def _release_publishers(self, *, sender: int | None = None, reader: int | None = None) -> None:
        """Nothing goes on: let those read who may hold others back, or leave. But who is reading
        does that by itself, and who is sending must not leave."""
        blockers = [
            who
            for who, model in self._model.clients.items()
            if who != reader and model.may_hold and model.unread_cost > SAFE_UNREAD_COST
        ]
        self._tally.held += bool(blockers)
        for who in blockers:
            if self._leaves_rather and who != sender:
                self._forget(who)
            else:
                self._model.clients[who].read_some(self._read_what_is_here(who))

    def _read_what_is_here(self, who: int, packets_max: int = 1_000_000) -> list[bytes]:
        """What a client can read without waiting."""
        sock = self._clients[who].sock
        sock.settimeout(0)
        packets: list[bytes] = []
        with suppress(BlockingIOError, ConnectionResetError):
            while len(packets) < packets_max and (packet := sock.recv(PACKET_BYTES_MAX + 1)):
                packets.append(packet)
        return packets

    def _forget(self, who: int) -> None:
        self._clients.pop(who).close()
        del self._model.clients[who]

    def _join(self, notices: bool, pattern: bytes) -> None:
        who = next(self._numbers)
        self._clients[who] = client = self._bus.connect()
        self._model.clients[who] = ModelClient()
        if notices:
            client.control(b"!/notices/on")
            self._model.clients[who].notices = True
        self.subscribe(who, pattern)
        self.await_done(who)

    def _pick(self, pick: int) -> int:
        """Somebody. Who there is depends on the bus, which ends some; so rules have no conditions,
        or the same random numbers would not always mean the same rules."""
        if not self._clients:
            self._join(True, b"")
        names = list(self._clients)
        return names[pick % len(names)]

    # -- steps -----------------------------------------------------------------------------------
    @rule(notices=st.sampled_from([True, True, False]), pattern=patterns)
    def come(self, notices: bool, pattern: bytes) -> None:
        if len(self._clients) < CLIENTS_MAX:
            self._join(notices, pattern)

    @rule(pick=picks, script=st.lists(acts, min_size=1, max_size=8), leaves_rather=st.booleans())
    def act(self, pick: int, script: list[Act], leaves_rather: bool) -> None:
        self._leaves_rather = leaves_rather
        who = self._pick(pick)
        for each in script:
            each(self, who)
        self.await_done(who)

    @rule(pick=picks, key=keys, leaves_rather=st.booleans())
    def flood(self, pick: int, key: bytes, leaves_rather: bool) -> None:
        self._leaves_rather = leaves_rather
        who = self._pick(pick)
        for _ in range(FLOOD_MESSAGES):
            self.publish(who, key, FLOOD_PAYLOAD_BYTES)
        self.await_done(who)

    @rule(pick=picks, key=keys)
    def run_out_of_patience(self, pick: int, key: bytes) -> None:
        """A client that does not read chooses to be disconnected, which random rules alone do in
        some runs only, depending on what else the interpreter has loaded."""
        who = self._pick(pick)
        self.choose(who, "blocking/soft/error")
        self.subscribe(who, key)
        self.await_done(who)
        self.flood(pick + 1, key, leaves_rather=False)

    @rule(pick=picks, many=st.integers(1, 30))
    def read_a_little(self, pick: int, many: int) -> None:
        who = self._pick(pick)
        self._model.clients[who].read_some(self._read_what_is_here(who, many))

    @rule(pick=picks)
    def sync(self, pick: int) -> None:
        self.read(self._pick(pick))

    @rule(
        pick=picks,
        word=st.sampled_from([b"SUB ", b"UNSUB ", b"MSG "]),
        text=st.sampled_from(RESERVED),
    )
    def be_refused(self, pick: int, word: bytes, text: bytes) -> None:
        """A client whose socket is full would not be served before it has read the notice."""
        who = self._pick(pick)
        self.read(who)
        self._clients[who].send(word + text + b"\0")
        self._model.clients[who].refuse()
        self.await_done(who)

    @rule(pick=picks, key=keys, quietly=st.booleans())
    def leave(self, pick: int, key: bytes, quietly: bool) -> None:
        """What a client said last is still served; what is on its way to it does not matter."""
        who = self._pick(pick)
        if not quietly:
            self.publish(who, key, 0)
        packet = b"MSG %b\0%d" % (DONE, next(self._numbers))
        self._avoid_disconnection(who, DONE, packet)
        self._send(who, packet)
        self._model.publish(who, DONE, packet)
        self._forget(who)
        self._await_done(packet)

    @invariant()
    def nobody_else_is_told(self) -> None:
        self._observer.receive_nothing()

    @invariant()
    def who_may_have_been_ended_finds_out(self) -> None:
        for who, model in list(self._model.clients.items()):
            if model.may_have_been_ended and model.unread_cost > SAFE_UNREAD_COST:
                self.read(who)

    def teardown(self) -> None:
        try:
            for who in list(self._clients):
                self.read(who)
        finally:
            for client in (*self._clients.values(), self._observer):
                client.close()


def test_a_client_that_waits_for_itself_reads_whatever_it_chooses_next(tmp_path: Path) -> None:
    with running_bus(tmp_path, *OPTIONS) as bus:
        machine = RandomClients(bus, Tally())
        flood = [publish(b"a", FLOOD_PAYLOAD_BYTES)] * FLOOD_MESSAGES
        block, queue = choose("blocking/soft/block"), choose("blocking/soft/queue")
        try:
            machine.act(0, [subscribe(b"a"), block, *flood, queue], leaves_rather=False)
        finally:
            machine.teardown()


def test_every_client_receives_what_the_model_says(tmp_path: Path) -> None:
    tally = Tally()
    with running_bus(tmp_path, *OPTIONS) as bus, clients_moving(bus) as moves:

        class OnThisBus(RandomClients):
            def __init__(self) -> None:
                super().__init__(bus, tally)

        run_state_machine_as_test(
            OnThisBus,
            settings=settings(
                max_examples=settings().max_examples // 2,
                # To make an example that failed smaller takes minutes, with Phase.shrink.
                phases=[Phase.generate],
                stateful_step_count=40,
                deadline=None,
                database=None,
            ),
        )
    assert moves[""], "nobody was ever moved"
    assert any(tally.losses), "nobody was ever slow enough to lose anything"
    assert tally.losses.count(0) > len(tally.losses) // 2
    assert tally.held, "nobody was ever held back"
    assert tally.ended, "nobody was ever given up"
