"""Putting messages together again, whatever way their parts come and whatever is missing."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.client import message_joiner
from sbus.client.message_joiner import (
    COMPLETE_SECONDS_MAX,
    WINDOW_SECONDS,
    MessageJoiner,
    MissedItems,
    MonitoredMessage,
)
from sbus.errors import ProtocolViolation
from sbus.protocol.admin_streams import Message, Messages, Missed, Part, Recipients, StreamPacket

WORKERS = 3


def encode(packet: StreamPacket) -> bytes:
    return msgspec.json.encode(packet)


def messages(
    order: int, *told: Message, source: int = 100, missed: int = 0, block: int = 0
) -> bytes:
    return encode(
        Messages(
            source=source,
            missed=missed,
            worker=source - 100,
            time=1.5,
            order=order,
            block=block,
            client=7,
            uid=1000,
            gid=100,
            pid=77,
            program="cat",
            messages=list(told),
        )
    )


def message(key: str, recipients: int = 0, **more: object) -> Message:
    return Message(key=key, size=3, recipients=recipients, **more)  # type: ignore[arg-type]


def shown(items: list[MonitoredMessage | MissedItems]) -> list[tuple[str, int | None]]:
    """Keys and recipients, where nothing is missed."""
    found = []
    for one in items:
        assert isinstance(one, MonitoredMessage)
        found.append((one.key, one.recipients))
    return found


def test_a_message_waits_for_those_that_came_before_it() -> None:
    joiner = MessageJoiner(0)
    joiner.feed(messages(20, message("later"), source=100), 0.0)
    joiner.feed(messages(10, message("sooner"), source=101), WINDOW_SECONDS / 2)
    assert joiner.take(WINDOW_SECONDS / 2) == []
    assert joiner.next_at() == WINDOW_SECONDS * 1.5
    assert shown(joiner.take(WINDOW_SECONDS * 1.5)) == [("sooner", 0), ("later", 0)]
    assert joiner.next_at() is None


def test_recipients_of_other_workers_are_added_before_and_after() -> None:
    joiner = MessageJoiner(0)
    one = message("a", 1, workers=(1, 2), entry=4)
    joiner.feed(encode(Recipients(source=101, worker=1, counts=[(512, 4, 10)])), 0.0)
    joiner.feed(messages(1, one, block=512), 0.0)
    assert joiner.take(WINDOW_SECONDS) == []
    joiner.feed(encode(Recipients(source=102, worker=2, counts=[(512, 4, 100)])), 0.5)
    assert shown(joiner.take(0.5)) == [("a", 111)]


def test_a_message_that_is_incomplete_in_time_has_unknown_recipients() -> None:
    joiner = MessageJoiner(0)
    joiner.feed(messages(1, message("a", 1, workers=(1, 2)), message("b", 2)), 0.0)
    joiner.feed(encode(Recipients(source=101, worker=1, counts=[(0, 0, 10)])), 0.1)
    assert joiner.take(COMPLETE_SECONDS_MAX - 0.01) == []
    assert shown(joiner.take(COMPLETE_SECONDS_MAX)) == [("a", None), ("b", 2)]


def test_a_place_of_the_log_is_not_mistaken_for_another() -> None:
    joiner = MessageJoiner(0)
    joiner.feed(messages(1, message("a", 0, workers=(1,), entry=1), block=64), 0.0)
    counts = [(64, 0, 5), (128, 1, 6), (0, 1, 7)]
    joiner.feed(encode(Recipients(source=101, worker=1, counts=counts)), 0.0)
    joiner.feed(encode(Recipients(source=102, worker=2, counts=[(64, 1, 8)])), 0.0)
    assert shown(joiner.take()) == [("a", None)]


def test_large_payloads_are_joined() -> None:
    joiner = MessageJoiner(0)
    large = Message(key="a", size=10, recipients=0, payload=b"abc")
    joiner.feed(messages(1, message("before"), large), 0.0)
    joiner.feed(messages(2, message("other"), source=101), 0.0)
    joiner.feed(encode(Part(source=100, payload=b"defg")), 0.0)
    assert shown(joiner.take(WINDOW_SECONDS)) == [("before", 0)]
    joiner.feed(encode(Part(source=100, payload=b"hij")), 0.0)
    first, _ = joiner.take(WINDOW_SECONDS)
    assert isinstance(first, MonitoredMessage)
    assert (first.size, first.payload) == (10, b"abcdefghij")


def test_a_payload_that_never_comes_is_a_message_missed() -> None:
    joiner = MessageJoiner(0)
    joiner.feed(messages(1, Message(key="a", size=10, recipients=0, payload=b"abc")), 0.0)
    joiner.feed(messages(2, message("b"), source=101), 0.0)
    missed, b = joiner.take(COMPLETE_SECONDS_MAX)
    assert missed == MissedItems(1)
    assert shown([b]) == [("b", 0)]


def test_what_sources_missed_adds_up() -> None:
    joiner = MessageJoiner(0)
    joiner.feed(messages(1, source=100, missed=3), 0.0)
    joiner.feed(encode(Missed(source=101, missed=4)), 0.0)
    assert joiner.take(0.0) == [MissedItems(7)]
    joiner.feed(messages(2, source=100, missed=3), 0.0)
    joiner.feed(encode(Missed(source=101, missed=5)), 0.0)
    assert joiner.take(0.0) == [MissedItems(1)]
    assert joiner.take(0.0) == []


def test_messages_from_before_the_stream_had_begun_everywhere_are_left_out() -> None:
    joiner = MessageJoiner(50)
    joiner.feed(messages(49, message("before"), missed=2), 0.0)
    joiner.feed(messages(50, message("from here"), missed=2), 0.0)
    assert shown(joiner.take()) == [("from here", 0)]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_joiner, "WAITING_MAX", 100)
    joiner = MessageJoiner(0)
    for number in range(110):
        joiner.feed(messages(number, message("a", workers=(1,)), block=number), 0.0)
    assert len(shown(joiner.take(0.0))) == 10
    for number in range(110):
        counts = [(1_000_000 + number, 0, 1)]
        joiner.feed(encode(Recipients(source=101, worker=1, counts=counts)), 0.0)
    assert len(joiner._early) == 100
    joiner.take()
    assert not joiner._places
    assert not joiner._open
    assert joiner._bytes == 0


def test_a_packet_of_no_stream_is_an_error() -> None:
    for data in (b"", b"{}", b'{"stream":"nothing"}', b'{"version":1,"id":1}', b"\xff"):
        with pytest.raises(ProtocolViolation):
            MessageJoiner(0).feed(data, 0.0)


class Told:
    """A message as its publisher's worker `worker` and the others would tell it."""

    def __init__(self, rng: random.Random, number: int) -> None:
        self.order = number
        self.worker = rng.randrange(WORKERS)
        self.by_worker = {
            worker: rng.randrange(4) for worker in range(WORKERS) if rng.random() < 0.6
        }
        self.payload = rng.randbytes(rng.choice([0, 1, 5, 20]))

    def packets(self, rng: random.Random) -> dict[int, list[bytes]]:
        """What each process says."""
        others = tuple(worker for worker in self.by_worker if worker != self.worker)
        cut = rng.randrange(len(self.payload) + 1)
        told = Message(
            key=f"{self.order}",
            size=len(self.payload),
            recipients=self.by_worker.get(self.worker, 0),
            payload=self.payload[:cut],
            workers=others,
        )
        source = 100 + self.worker
        own = [messages(self.order, told, source=source, block=self.order)]
        for at in range(cut, len(self.payload), 4):
            own.append(encode(Part(source=source, payload=self.payload[at : at + 4])))
        said = {self.worker: own}
        for worker in others:
            counts = [(self.order, 0, self.by_worker[worker])]
            said[worker] = [encode(Recipients(source=100 + worker, worker=worker, counts=counts))]
        return said


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(0, 40))
def test_all_messages_come_in_order_however_their_parts_arrive(
    rng: random.Random, count: int
) -> None:
    told = [Told(rng, number) for number in range(count)]
    lanes: dict[int, list[bytes]] = {worker: [] for worker in range(WORKERS)}
    for one in told:
        for worker, packets in one.packets(rng).items():
            lanes[worker] += packets
    joiner = MessageJoiner(0)
    while any(lanes.values()):
        lane = rng.choice([lane for lane in lanes.values() if lane])
        joiner.feed(lane.pop(0), 0.0)
    found = joiner.take(WINDOW_SECONDS)
    assert [(o.key, o.recipients, o.payload) for o in found if isinstance(o, MonitoredMessage)] == [
        (f"{one.order}", sum(one.by_worker.values()), one.payload) for one in told
    ]
    assert not Counter(type(one) for one in found)[MissedItems]
    assert (joiner._bytes, joiner._places, joiner._early, joiner._open) == (0, {}, {}, {})
