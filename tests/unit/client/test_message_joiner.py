"""Putting messages together again, whatever way their parts come and whatever is missing."""

import dataclasses
import random
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.client import message_joiner
from sbus.client.message_joiner import (
    COMPLETE_SECONDS_MAX,
    WINDOW_SECONDS,
    MessageJoiner,
    MissedItems,
    MonitoredBatch,
)
from sbus.errors import ProtocolViolation
from sbus.protocol.admin_streams import Messages, Missed, Part, Recipients, StreamPacket
from tests.unit.client.joiner_model import Shown, joined

WORKERS = 3


def encode(packet: StreamPacket) -> bytes:
    return msgspec.json.encode(packet)


@dataclass(frozen=True, kw_only=True)
class Told:
    """One message of a packet."""

    key: str
    size: int | None = 3
    recipients: int = 0
    payload: bytes | None = None
    workers: tuple[int, ...] = ()
    entry: int = 0


def packet_of(
    order: int, *told: Told, source: int = 100, missed: int = 0, block: int = 0
) -> Messages:
    """A packet of messages; with payloads if any has one."""
    payloads = [one.payload for one in told if one.payload is not None]
    return Messages(
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
        keys=[one.key for one in told],
        sizes=[one.size for one in told],
        recipients=[one.recipients for one in told],
        payloads=b"".join(payloads) if payloads else None,
        workers=[one.workers for one in told],
        entries=[one.entry for one in told],
    )


def messages(order: int, *told: Told, source: int = 100, missed: int = 0, block: int = 0) -> bytes:
    return encode(packet_of(order, *told, source=source, missed=missed, block=block))


def message(key: str, recipients: int = 0, workers: tuple[int, ...] = (), entry: int = 0) -> Told:
    return Told(key=key, recipients=recipients, workers=workers, entry=entry)


def reported(worker: int, block: int, counts: dict[int, int]) -> bytes:
    """Numbers of recipients of a worker, by the entries of a block."""
    entries, recipients = [*counts], [*counts.values()]
    source = 100 + worker
    return encode(
        Recipients(
            source=source, worker=worker, block=block, entries=entries, recipients=recipients
        )
    )


def all_shown(items: list[MonitoredBatch | MissedItems]) -> list[Shown]:
    found: list[Shown] = []
    for one in items:
        if isinstance(one, MissedItems):
            found.append(one.count)
        else:
            found += [(m.key, m.recipients, m.payload) for m in one.messages()]
    return found


def shown(items: list[MonitoredBatch | MissedItems]) -> list[tuple[str, int | None]]:
    """Keys and recipients, where nothing is missed."""
    found = []
    for one in all_shown(items):
        assert isinstance(one, tuple)
        found.append(one[:2])
    return found


def test_a_message_waits_for_those_that_came_before_it() -> None:
    joiner = MessageJoiner(0)
    joiner.feed(messages(20, message("later"), source=100), 0.0)
    joiner.feed(messages(10, message("sooner"), source=101), WINDOW_SECONDS / 2)
    assert joiner.take(WINDOW_SECONDS / 2) == []
    assert joiner.next_at() == WINDOW_SECONDS * 1.5
    assert shown(joiner.take(WINDOW_SECONDS * 1.5)) == [("sooner", 0), ("later", 0)]
    assert joiner.next_at() is None


def test_a_message_is_complete_with_all_counts_and_all_of_its_payload() -> None:
    joiner = MessageJoiner(0)
    one = Told(key="a", size=7, recipients=1, payload=b"abc", workers=(1,), entry=4)
    joiner.feed(messages(1, one, block=512), 0.0)
    assert joiner.take(WINDOW_SECONDS) == []
    joiner.feed(encode(Part(source=100, payload=b"defg")), 0.0)
    assert joiner.take(WINDOW_SECONDS) == []
    joiner.feed(reported(1, 512, {4: 10}), 0.0)
    assert all_shown(joiner.take(WINDOW_SECONDS)) == [("a", 11, b"abcdefg")]


def test_a_message_that_is_incomplete_in_time_has_unknown_recipients() -> None:
    joiner = MessageJoiner(0)
    joiner.feed(messages(1, message("a", 1, workers=(1, 2)), message("b", 2)), 0.0)
    joiner.feed(reported(1, 0, {0: 10}), 0.1)
    assert joiner.take(COMPLETE_SECONDS_MAX - 0.01) == []
    assert shown(joiner.take(COMPLETE_SECONDS_MAX)) == [("a", None), ("b", 2)]


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
        joiner.feed(reported(1, 1_000_000 + number, {0: 1}), 0.0)
    joiner.check_invariants()
    joiner.take()
    joiner.check_invariants()


def test_a_packet_of_no_stream_is_an_error() -> None:
    for data in (b"", b"{}", b'{"stream":"nothing"}', b'{"version":1,"id":1}', b"\xff"):
        with pytest.raises(ProtocolViolation):
            MessageJoiner(0).feed(data, 0.0)


@pytest.mark.parametrize(
    "columns",
    [
        {"sizes": [3]},
        {"recipients": []},
        {"entries": [1]},
        {"workers": [()]},
        {"payloads": b"12"},
    ],
)
def test_columns_that_do_not_fit_are_an_error(columns: dict[str, object]) -> None:
    packet = packet_of(1, Told(key="a", payload=b"123"), Told(key="b", payload=b"456"))
    with pytest.raises(ProtocolViolation, match="a packet of messages"):
        MessageJoiner(0).feed(encode(msgspec.structs.replace(packet, **columns)), 0.0)


class Lanes:
    """What each of some workers says of random messages, some of which it has no room for."""

    def __init__(self, rng: random.Random, batches: int) -> None:
        self._rng = rng
        self._missed = [0] * WORKERS
        self.packets: list[list[StreamPacket]] = [[] for _ in range(WORKERS)]
        for order in range(1, batches + 1):
            self._publish(order, rng.randrange(WORKERS))

    def _publish(self, order: int, worker: int) -> None:
        rng = self._rng
        told = [
            self._message(f"{order}.{entry}", worker, entry) for entry in range(rng.randrange(1, 4))
        ]
        missed = self._missed[worker]
        if rng.random() < 0.2:
            self._missed[worker] += len(told)
            if rng.random() < 0.5:
                self._say(worker, Missed(source=100 + worker, missed=self._missed[worker]))
        else:
            *_, last = told
            shown, rest = self._cut(last.payload or b"")
            told[-1] = dataclasses.replace(last, payload=shown)
            self._say(
                worker, packet_of(order, *told, source=100 + worker, missed=missed, block=order)
            )
            for part in rest:
                self._say(worker, Part(source=100 + worker, payload=part))
        for other in range(WORKERS):
            entries = [one.entry for one in told if other in one.workers]
            if entries and rng.random() < 0.8:
                counts = [rng.randrange(4) for _ in entries]
                packet = Recipients(
                    source=100 + other,
                    worker=other,
                    block=order,
                    entries=entries,
                    recipients=counts,
                )
                self._say(other, packet)

    def _message(self, key: str, worker: int, entry: int) -> Told:
        rng = self._rng
        payload = rng.randbytes(rng.choice([0, 1, 5, 20]))
        is_secret = rng.random() < 0.1
        others = [other for other in range(WORKERS) if other != worker and rng.random() < 0.4]
        return Told(
            key=key,
            size=None if is_secret else len(payload),
            recipients=rng.randrange(4),
            payload=b"" if is_secret else payload,
            workers=tuple(others),
            entry=entry,
        )

    def _cut(self, payload: bytes) -> tuple[bytes, list[bytes]]:
        """What is sent with the message, and its further parts."""
        at = self._rng.randrange(len(payload) + 1)
        return payload[:at], [payload[begin : begin + 4] for begin in range(at, len(payload), 4)]

    def _say(self, worker: int, packet: StreamPacket) -> None:
        self.packets[worker].append(packet)

    def merged(self) -> list[StreamPacket]:
        """In a random order of workers; one of them may have died."""
        lanes = [[*lane] for lane in self.packets]
        if self._rng.random() < 0.3:
            lane = self._rng.choice(lanes)
            del lane[self._rng.randrange(len(lane) + 1) :]
        merged = []
        while left := [lane for lane in lanes if lane]:
            merged.append(self._rng.choice(left).pop(0))
        return merged


@given(st.randoms(use_true_random=False), st.integers(0, 30))
def test_batches_are_joined_as_single_messages_would_be(rng: random.Random, batches: int) -> None:
    packets = Lanes(rng, batches).merged()
    joiner = MessageJoiner(0)
    for packet in packets:
        joiner.feed(encode(packet), 0.0)
        joiner.check_invariants()
    assert all_shown(joiner.take()) == joined(packets)
    joiner.check_invariants()
