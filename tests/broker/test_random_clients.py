"""Clients that do anything in any order, on a real bus, against a model of it.

Whoever does something says at the end that it did, in a message of its own; the observer waits for
that. So a client needs to read nothing in order to act, the next client acts only when the last
one was served, and the model knows the order of everything. Clients read now and then: until then
their sockets fill, and their small backlogs, and messages are lost, which the bus must account for.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.broker.random_clients_model import Model, ModelClient
from tests.support.bus import Bus, running_bus
from tests.support.raw_client import RawClient

CLIENTS_MAX = 6
BACKLOG_MESSAGES = 30
SAFE_UNREAD_BYTES = 20_000
"""So much, in packets of some size, a socket holds for a client that does not read."""
FLOOD_MESSAGES = 120
FLOOD_PAYLOAD_BYTES = 3_000
DONE = b"done"
KEYS = [b"a", b"b", b"a/b", b"a/b/c", b"a//c", b"x!/y", b"", b"/", b"bc/*"]
PATTERNS = [
    *(b"a", b"b", b"a/b", b"a/*", b"a/", b"", b"*", b"*/", b"a/*/c", b"b*", b"b*c", b"bc/*"),
    *(b"*/*", b"!x", b"/", b"a*/"),
]
RESERVED = [b"!", b"a/!/b", b"a/!/cred/1/2/3/x", b"!/lost"]

keys = st.sampled_from(KEYS)
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


acts = st.one_of(
    st.builds(publish, keys, st.sampled_from([0, 0, 50, 5_000])),
    st.builds(publish, keys),
    st.builds(subscribe, patterns),
    st.builds(unsubscribe, patterns),
    st.builds(unsubscribe_held, picks),
    st.builds(switch_echo, st.booleans()),
)


class RandomClients(RuleBasedStateMachine):
    """Up to six clients of one bus, which is there before and afterwards."""

    def __init__(self, bus: Bus, losses: list[int]) -> None:
        super().__init__()
        self._bus = bus
        self._losses = losses
        self._model = Model()
        self._clients: dict[int, RawClient] = {}
        self._numbers = itertools.count()
        self._observer = bus.connect()
        self._observer.sub(DONE)
        self._observer.whoami()

    # -- what a client does ----------------------------------------------------------------------
    def publish(self, who: int, key: bytes, size: int) -> None:
        packet = b"MSG %b\0%d " % (key, next(self._numbers)) + bytes(size)
        self._clients[who].send(packet)
        self._model.publish(who, key, packet)

    def subscribe(self, who: int, pattern: bytes) -> None:
        self._clients[who].sub(pattern)
        self._model.clients[who].patterns[pattern] += 1

    def unsubscribe(self, who: int, pattern: bytes) -> None:
        self._clients[who].unsub(pattern)
        self._model.clients[who].unsubscribe(pattern)

    def unsubscribe_held(self, who: int, pick: int) -> None:
        held = sorted(self._model.clients[who].patterns)
        if held:
            self.unsubscribe(who, held[pick % len(held)])

    def switch_echo(self, who: int, on: bool) -> None:
        self._clients[who].control(b"echo/on" if on else b"echo/off")
        self._model.clients[who].echo = on

    def say_done(self, who: int) -> None:
        """Wait until the bus has done everything that this client said."""
        packet = b"MSG %b\0%d" % (DONE, next(self._numbers))
        self._clients[who].send(packet)
        self._model.publish(who, DONE, packet)
        assert self._observer.receive() == packet

    def read(self, who: int) -> None:
        """Read everything that is due, and nothing else."""
        client = self._model.clients[who]
        unread_bytes = client.unread_bytes
        lost = client.read(self._clients[who].sync())
        assert not lost or unread_bytes > SAFE_UNREAD_BYTES, "lost without need"
        self._losses.append(lost)

    def _pick(self, pick: int) -> int:
        names = list(self._clients)
        return names[pick % len(names)]

    # -- steps -----------------------------------------------------------------------------------
    @precondition(lambda self: len(self._clients) < CLIENTS_MAX)
    @rule(notices=st.sampled_from([True, True, False]), pattern=patterns)
    def come(self, notices: bool, pattern: bytes) -> None:
        who = next(self._numbers)
        self._clients[who] = client = self._bus.connect()
        self._model.clients[who] = ModelClient()
        if notices:
            client.control(b"!/notices/on")
            self._model.clients[who].notices = True
        self.subscribe(who, pattern)
        self.say_done(who)

    @precondition(lambda self: self._clients)
    @rule(pick=picks, script=st.lists(acts, min_size=1, max_size=8))
    def act(self, pick: int, script: list[Act]) -> None:
        who = self._pick(pick)
        for each in script:
            each(self, who)
        self.say_done(who)

    @precondition(lambda self: self._clients)
    @rule(pick=picks, key=keys)
    def flood(self, pick: int, key: bytes) -> None:
        who = self._pick(pick)
        for _ in range(FLOOD_MESSAGES):
            self.publish(who, key, FLOOD_PAYLOAD_BYTES)
        self.say_done(who)

    @precondition(lambda self: self._clients)
    @rule(pick=picks)
    def sync(self, pick: int) -> None:
        self.read(self._pick(pick))

    @precondition(lambda self: self._clients)
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
        self.say_done(who)

    @precondition(lambda self: self._clients)
    @rule(pick=picks, key=keys, quietly=st.booleans())
    def leave(self, pick: int, key: bytes, quietly: bool) -> None:
        """What a client said last is still served; what is on its way to it does not matter."""
        who = self._pick(pick)
        if not quietly:
            self.publish(who, key, 0)
        packet = b"MSG %b\0%d" % (DONE, next(self._numbers))
        self._clients[who].send(packet)
        self._clients.pop(who).close()
        self._model.publish(who, DONE, packet)
        del self._model.clients[who]
        assert self._observer.receive() == packet

    @invariant()
    def nobody_else_is_told(self) -> None:
        self._observer.receive_nothing()

    def teardown(self) -> None:
        try:
            for who in self._clients:
                self.read(who)
        finally:
            for client in (*self._clients.values(), self._observer):
                client.close()


def test_every_client_receives_what_the_model_says(tmp_path: Path) -> None:
    losses: list[int] = []
    with running_bus(tmp_path, "--limit", f"backlog_messages_max={BACKLOG_MESSAGES}") as bus:

        class OnThisBus(RandomClients):
            def __init__(self) -> None:
                super().__init__(bus, losses)

        run_state_machine_as_test(
            OnThisBus,
            settings=settings(
                max_examples=150,
                # To make an example that failed smaller takes minutes, with Phase.shrink.
                phases=[Phase.generate],
                stateful_step_count=40,
                deadline=None,
                derandomize=True,
                database=None,
            ),
        )
    assert any(losses), "nobody was ever slow enough to lose anything"
    assert losses.count(0) > len(losses) // 2
