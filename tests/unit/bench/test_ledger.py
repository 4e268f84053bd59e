"""The soak's account of a subscriber (ledger.c), against a bus that is simulated here.

The simulated bus keeps one order for all publishers, discards in runs, and puts a notice where a
run of discards was. Of that stream nothing may be complained about; of a stream that was tampered
with, something must be.
"""

import ctypes
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbus.bench.programs import FLAGS, HERE

PUBLISHERS = 16
LANES = 8
ALL_LANES = 0xFF


class CLedger(ctypes.Structure):
    """`struct ledger` of ledger.h."""

    _fields_ = (
        ("lanes", ctypes.c_uint8 * PUBLISHERS),
        ("next", ctypes.c_uint64 * PUBLISHERS),
        ("heard_after", ctypes.c_uint64 * PUBLISHERS),
        ("received", ctypes.c_uint64),
        ("missing", ctypes.c_uint64),
        ("admitted", ctypes.c_uint64),
        ("notices", ctypes.c_uint64),
        ("unheard", ctypes.c_uint32),
        ("watched_admitted", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Message:
    publisher: int
    number: int


@dataclass(frozen=True)
class Notice:
    lost: int


Stream = list[Message | Notice]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    shared = tmp_path_factory.mktemp("ledger") / "ledger.so"
    source = Path(HERE) / "ledger.c"
    subprocess.run(["gcc", *FLAGS, "-shared", "-fPIC", "-o", shared, source], check=True)
    loaded = ctypes.CDLL(str(shared))
    for name in ("ledger_message", "ledger_notice", "ledger_close"):
        getattr(loaded, name).restype = ctypes.c_char_p
    loaded.ledger_message.argtypes = [ctypes.POINTER(CLedger), ctypes.c_uint64, ctypes.c_uint64]
    loaded.ledger_notice.argtypes = [ctypes.POINTER(CLedger), ctypes.c_uint64]
    sent = ctypes.POINTER(ctypes.c_uint64)
    loaded.ledger_close.argtypes = [ctypes.POINTER(CLedger), sent]
    loaded.wanted_among.argtypes = [ctypes.c_uint8, ctypes.c_uint64]
    loaded.wanted_among.restype = ctypes.c_uint64
    return loaded


def complaints(
    library: ctypes.CDLL, lanes: list[int], stream: Stream, sent: list[int]
) -> list[str]:
    """What the ledger says of a whole stream."""
    ledger = CLedger()
    ledger.lanes[:] = lanes
    said: list[bytes | None] = []
    for event in stream:
        if isinstance(event, Message):
            said.append(library.ledger_message(ledger, event.publisher, event.number))
        else:
            said.append(library.ledger_notice(ledger, event.lost))
    said.append(library.ledger_close(ledger, (ctypes.c_uint64 * PUBLISHERS)(*sent)))
    return [text.decode() for text in said if text is not None]


def simulate(seed: int, lanes: list[int], messages: int) -> tuple[Stream, list[int]]:
    """A subscriber's stream through a correct bus, and how many messages each publisher sent."""
    chance = random.Random(seed)
    sent = [0] * PUBLISHERS
    stream: Stream = []
    lost = 0
    discarding = False
    for _ in range(messages):
        publisher = chance.randrange(PUBLISHERS)
        number = sent[publisher]
        sent[publisher] += 1
        if not lanes[publisher] >> number % LANES & 1:
            continue
        if chance.random() < 0.1:
            discarding = not discarding
        if discarding:
            lost += 1
            continue
        if lost:
            stream.append(Notice(lost))
            lost = 0
        stream.append(Message(publisher, number))
    if lost:
        stream.append(Notice(lost))
    return stream, sent


seeds = st.integers(0, 2**32)
some_lanes = st.lists(st.integers(0, 255), min_size=PUBLISHERS, max_size=PUBLISHERS)
with_library = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def positions(stream: Stream, kind: type) -> Iterator[int]:
    return (at for at, event in enumerate(stream) if isinstance(event, kind))


@with_library
@given(lanes=st.integers(0, 255), count=st.integers(0, 1000))
def test_wanted_messages_are_counted_by_lane(library: ctypes.CDLL, lanes: int, count: int) -> None:
    assert library.wanted_among(lanes, count) == sum(lanes >> n % LANES & 1 for n in range(count))


@with_library
@given(seed=seeds, lanes=some_lanes)
def test_a_correct_bus_is_not_complained_about(
    library: ctypes.CDLL, seed: int, lanes: list[int]
) -> None:
    stream, sent = simulate(seed, lanes, 400)
    assert complaints(library, lanes, stream, sent) == []


@with_library
@given(seed=seeds, choice=st.randoms(use_true_random=False))
@pytest.mark.parametrize("kind", [Message, Notice])
def test_anything_left_out_is_noticed(
    library: ctypes.CDLL, kind: type, seed: int, choice: random.Random
) -> None:
    lanes = [ALL_LANES] * PUBLISHERS
    stream, sent = simulate(seed, lanes, 400)
    places = list(positions(stream, kind))
    if places:
        del stream[choice.choice(places)]
        assert complaints(library, lanes, stream, sent)


@with_library
@given(seed=seeds, choice=st.randoms(use_true_random=False), wrong=st.sampled_from([-1, 1]))
def test_a_wrong_count_is_noticed(
    library: ctypes.CDLL, seed: int, choice: random.Random, wrong: int
) -> None:
    lanes = [ALL_LANES] * PUBLISHERS
    stream, sent = simulate(seed, lanes, 400)
    if places := list(positions(stream, Notice)):
        at = choice.choice(places)
        event = stream[at]
        assert isinstance(event, Notice)
        stream[at] = Notice(event.lost + wrong)
        assert complaints(library, lanes, stream, sent)


@with_library
@given(seed=seeds, choice=st.randoms(use_true_random=False))
def test_a_message_that_comes_twice_is_noticed(
    library: ctypes.CDLL, seed: int, choice: random.Random
) -> None:
    lanes = [ALL_LANES] * PUBLISHERS
    stream, sent = simulate(seed, lanes, 400)
    if places := list(positions(stream, Message)):
        at = choice.choice(places)
        stream.insert(choice.randrange(at, len(stream)) + 1, stream[at])
        assert complaints(library, lanes, stream, sent)


def test_a_notice_later_than_the_gap_is_noticed(library: ctypes.CDLL) -> None:
    lanes = [ALL_LANES] + [0] * (PUBLISHERS - 1)
    sent = [4] + [0] * (PUBLISHERS - 1)
    right: Stream = [Message(0, 0), Notice(1), Message(0, 2), Message(0, 3)]
    late: Stream = [Message(0, 0), Message(0, 2), Notice(1), Message(0, 3)]
    assert complaints(library, lanes, right, sent) == []
    assert complaints(library, lanes, late, sent)


def test_a_notice_earlier_than_the_gap_is_noticed(library: ctypes.CDLL) -> None:
    lanes = [ALL_LANES] + [0] * (PUBLISHERS - 1)
    sent = [4] + [0] * (PUBLISHERS - 1)
    early: Stream = [Message(0, 0), Notice(1), Message(0, 1), Message(0, 3)]
    assert complaints(library, lanes, early, sent)


def test_a_message_that_was_not_asked_for_is_noticed(library: ctypes.CDLL) -> None:
    lanes = [0b10] + [0] * (PUBLISHERS - 1)
    sent = [2] + [0] * (PUBLISHERS - 1)
    assert complaints(library, lanes, [Message(0, 1)], sent) == []
    assert complaints(library, lanes, [Message(0, 0), Message(0, 1)], sent)
