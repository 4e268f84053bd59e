"""The compiled step does exactly what Python does, and survives what no other would send."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.compiled import STEP
from sbus.protocol.controls import Hard, Soft
from tests.unit.broker.worker.step_scene import Client, Clock, Scene, stopped_clock

pytestmark = pytest.mark.skipif(STEP == "python", reason="the step is not compiled here")

KEYS = [b"a/b", b"a/c", b"x", b"far/1", b"both/2"]
PATTERNS = [*KEYS, b"a/", b"far/*", b"both/", b""]

Act = Callable[[Scene, Clock], None]


def message(key: bytes, size: int) -> bytes:
    return b"MSG %b\0%b" % (key, b"." * size)


# -- random scripts --------------------------------------------------------------------------------
_messages = st.builds(message, st.sampled_from(KEYS), st.integers(0, 40))
_oddities = st.sampled_from(
    [
        *(b"", b"M", b"MSG", b"MSG ", b"MSG a/b", b"MSG \0", b"msg a/b\0", b"MSG a/b\0\0x"),
        *(b"SUB a/b", b"UNSUB x", b"CMSG !/cred/whoami", b"MSG unknown/key\0y", b"MSG !/x\0"),
        *(message(b"a/b", 280), message(b"a/b", 292), message(b"a/b", 300), message(b"x", 250)),
    ]
)
_packets = st.lists(st.one_of(_messages, _messages, _messages, _oddities), max_size=12)
_clients = st.integers(0, 3)


def of(scene: Scene, number: int) -> Client:
    return (*scene.clients, scene.other)[number]


def publish(client: int, packets: list[bytes]) -> Act:
    def act(scene: Scene, _clock: Clock) -> None:
        of(scene, client).send(packets)
        scene.turn(of(scene, client))

    return act


_acts = st.one_of(
    st.builds(publish, _clients, _packets),
    st.builds(publish, st.just(0), st.lists(_messages, min_size=1, max_size=8)),
    st.builds(lambda c: lambda scene, _: scene.turn(of(scene, c)), _clients),
    st.builds(lambda c, n: lambda scene, _: of(scene, c).read(n), _clients, st.integers(1, 40)),
    st.builds(lambda c: lambda scene, _: scene.send_backlog(of(scene, c)), _clients),
    st.builds(lambda w: lambda scene, _: scene.walk(w), st.integers(0, 1)),
    st.builds(lambda w: lambda scene, _: scene.barrier(w), st.integers(0, 1)),
    st.builds(lambda ns: lambda _, clock: clock.advance(ns), st.integers(0, 80_000_000)),
    st.builds(lambda key: lambda scene, _: scene.learn(key), st.sampled_from(KEYS)),
    st.builds(
        lambda c, p: lambda scene, _: scene.subscribe(of(scene, c), p),
        _clients,
        st.sampled_from(PATTERNS),
    ),
    st.builds(
        lambda c, p: lambda scene, _: scene.unsubscribe(of(scene, c), p),
        _clients,
        st.sampled_from(PATTERNS),
    ),
    st.builds(
        lambda c, choice: lambda scene, _: scene.choose(of(scene, c), choice),
        _clients,
        st.sampled_from([Soft.QUEUE, Soft.DISCARD, Soft.ERROR, Hard.DISCARD, Hard.ERROR]),
    ),
    st.builds(lambda on: lambda scene, _: scene.set_stalled(on), st.booleans()),
    st.builds(
        lambda c, on: lambda scene, _: of(scene, c).session.set_echo(on), _clients, st.booleans()
    ),
    st.builds(lambda c: lambda scene, _: of(scene, c).peer.close(), st.integers(0, 1)),
)


@settings(max_examples=300)
@given(st.lists(_acts, min_size=10, max_size=60))
def test_both_steps_do_the_same(acts: list[Act]) -> None:
    with stopped_clock() as clock:
        ends = []
        for compiled in (False, True):
            clock.restart()
            scene = Scene(compiled=compiled)
            try:
                scene.subscribe(scene.clients[0], b"a/")
                scene.subscribe(scene.clients[1], b"a/b")
                scene.subscribe(scene.other, b"far/*")
                scene.subscribe(scene.other, b"both/")
                scene.subscribe(scene.clients[2], b"both/")
                scene.learn(b"a/b")
                seen = []
                for act in acts:
                    act(scene, clock)
                    seen.append(scene.observe())
                ends.append(seen)
            finally:
                scene.close()
    for python, compiled_seen in zip(*ends, strict=True):
        assert python == compiled_seen
