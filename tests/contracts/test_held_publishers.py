"""Contract: a client that chose `block` and has no room holds its own user's publishers.

Nothing of theirs is lost for it, and what they publish meanwhile is bounded. Nobody else is held:
no publisher of another user, whose messages it loses, and none that publishes nothing for it. When
it has room, gives up the pattern or the choice, or leaves, its publishers go on where they were.
"""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.lab import UID, Client, Lab, lab

BACKLOG_MAX, LOG_BYTES = 10, 32 * 1024
LIMITS = {
    "backlog_messages_max": BACKLOG_MAX,
    "batch_packets_max": 8,
    "log_bytes": LOG_BYTES,
    "user_held_seconds_max": 1e6,
    "held_window_seconds": 1e6,
}
SOFT, HARD = (b"blocking/soft/block",), (b"blocking/soft/queue", b"blocking/hard/block")
OWN, OTHERS, ELSEWHERE = range(3)
"""What publishers are: of the client's user, of another, and of its user but for other keys."""
KEYS = (b"k", b"k", b"elsewhere")
LOST = b"CMSG !/lost\0"
ENDS = {"unsubscribes": b"UNSUB k", "discards": b"CMSG blocking/soft/discard"}


def numbered(client: Client, kind: int, number: int) -> bytes:
    return b"MSG %b\0%d %d " % (KEYS[kind], client.number, number) + bytes(150)


class Scene:
    """The slow client, a reader of everything, and publishers of each kind."""

    def __init__(self, opened: Lab, choices: tuple[bytes, ...], publishers_worker: int) -> None:
        self.lab = opened
        self.slow = opened.connect(0, small=True)
        self.slow.say(*(b"CMSG " + choice for choice in choices), b"CMSG !/notices/on", b"SUB k")
        self.reader = opened.connect(1, UID)
        self.reader.say(b"SUB ")
        workers = (publishers_worker, 0, publishers_worker)
        self.publishers = [
            opened.connect(worker, UID + (kind == OTHERS)) for kind, worker in enumerate(workers)
        ]
        self.sent = [0, 0, 0]
        self.got: list[bytes] = []
        self.slow_got: list[bytes] = []
        self.look()

    def publish(self, kind: int, count: int) -> None:
        publisher = self.publishers[kind]
        if self.sent[OWN] - len(self.arrived[OWN]) > 150:
            return  # its socket has room for no more
        publisher.send(*(numbered(publisher, kind, self.sent[kind] + at) for at in range(count)))
        self.sent[kind] += count
        self.look()

    def look(self) -> None:
        """The workers rest: who is held?"""
        self.got += self.reader.read_all()
        self.arrived = [self.of(self.got, kind) for kind in range(3)]
        for kind, (publisher, packets) in enumerate(
            zip(self.publishers, self.arrived, strict=True)
        ):
            assert packets == [numbered(publisher, kind, at) for at in range(len(packets))]
            assert kind == OWN or len(packets) == self.sent[kind], "nobody else is held"
        if self.is_held():
            assert self.slow.activity().backlog_bytes <= LOG_BYTES

    def of(self, packets: list[bytes], kind: int) -> list[bytes]:
        head = b"MSG %b\0%d " % (KEYS[kind], self.publishers[kind].number)
        return [packet for packet in packets if packet.startswith(head)]

    def is_held(self) -> bool:
        return len(self.arrived[OWN]) < self.sent[OWN]

    def read(self, count: int) -> None:
        self.slow_got += self.slow.read(count)
        self.look()


PUBLISH = st.tuples(st.sampled_from(["own", "own", "others", "elsewhere"]), st.integers(1, 40))
ACTS = st.lists(
    st.one_of(PUBLISH, PUBLISH, st.tuples(st.just("read"), st.integers(1, 30))), max_size=20
)
EVENTS = st.sampled_from(["nothing", "upgrade", "die"])


@settings(max_examples=25)
@given(ACTS, st.sampled_from([SOFT, HARD]), EVENTS, st.integers(0, 20))
def test_a_client_that_blocks_loses_nothing_of_its_own_user(
    acts: list[tuple[str, int]], choices: tuple[bytes, ...], event: str, at: int
) -> None:
    with lab(**LIMITS) as opened:
        scene = Scene(opened, choices, 1)
        holds = 0
        acts = [("own", 150), *acts]
        for number, (what, count) in enumerate(acts):
            if number == at % len(acts):
                opened.happen(event, scene.slow)
                scene.look()
            if what == "read":
                scene.read(count)
            else:
                scene.publish(["own", "others", "elsewhere"].index(what), count)
            holds += scene.is_held()
        assert holds, "nobody was held"
        read = -1
        while read < len(scene.slow_got):
            read = len(scene.slow_got)
            scene.read(1_000)
        assert not scene.is_held(), "it is held for ever"
        got = scene.of(scene.slow_got, OWN)
        told = sum(int(it.removeprefix(LOST)) for it in scene.slow_got if it.startswith(LOST))
        lost_of_others = scene.sent[OTHERS] - len(scene.of(scene.slow_got, OTHERS))
        due = [numbered(scene.publishers[OWN], OWN, number) for number in range(scene.sent[OWN])]
        assert told == lost_of_others + len(due) - len(got)
        assert got == due or event == "die"
        assert got == [packet for packet in due if packet in set(got)]


@pytest.mark.parametrize("choices", [SOFT, HARD], ids=["soft", "hard"])
@pytest.mark.parametrize(
    ("end", "worker"), [*product(["reads", "leaves", *ENDS], [0, 1]), ("dies", 1)]
)
def test_publishers_go_on(choices: tuple[bytes, ...], worker: int, end: str) -> None:
    with lab(**LIMITS) as opened:
        scene = Scene(opened, choices, worker)
        scene.publish(OWN, 150)
        assert scene.is_held()
        assert scene.slow.activity().stalled
        assert scene.publishers[OWN].activity().waits_for == "stall"
        if end == "reads":
            for _ in range(100):
                if scene.is_held():
                    scene.read(20)
            assert not scene.is_held()
        elif end == "leaves":
            scene.slow.close()
        elif end == "dies":
            opened.bus.stopped.add(0)
            scene.slow.close()
            opened.die(0, scene.slow)
        else:
            scene.slow.send(ENDS[end])
        opened.settle()
        scene.look()
        assert not scene.is_held()
