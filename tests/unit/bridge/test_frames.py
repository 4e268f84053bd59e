"""Frames: which messages travel together, and that they come out as they went in."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from sbus.bridge.envelope import Crossing, Envelope, Heartbeat
from sbus.bridge.frames import (
    FRAME_BYTES_MAX,
    FRAME_MAX,
    FRAME_MIN,
    decode_frame,
    encode_frame,
    first_frame,
)


def crossing(number: int, *, origin: str = "a", payload: bytes = b"x") -> Crossing:
    return Crossing("lamps", origin, Envelope("aa", number, "v", "h 1 p"), b"k/\xff", payload)


items = st.lists(
    st.builds(crossing, st.integers(1, 4), origin=st.sampled_from("ab"))
    | st.just(Heartbeat("lamps", "a", Envelope("aa", 1, "v"))),
    min_size=1,
    max_size=20,
)


@given(items, st.integers(0, 20))
def test_a_frame_is_a_run_of_consecutive_messages(
    found: list[Crossing | Heartbeat], more: int
) -> None:
    run = [crossing(number) for number in range(5, 5 + more)]
    queue: deque[Crossing | Heartbeat] = deque([*run, *found])
    frame = first_frame(queue)
    assert frame == list(queue)[: len(frame)]
    assert len(frame) == 0 if isinstance(queue[0], Heartbeat) else len(frame) >= 1
    if more >= FRAME_MIN:
        assert len(frame) >= more
    if len(frame) > 1:
        assert len(frame) >= FRAME_MIN
        head = Heartbeat("lamps", "a", frame[0].envelope)
        assert list(decode_frame(head, encode_frame(frame))) == frame


def test_a_frame_is_bounded() -> None:
    assert len(first_frame(deque(crossing(number) for number in range(1_000)))) == FRAME_MAX
    payload = bytes(FRAME_BYTES_MAX // 10)
    large: deque[Crossing | Heartbeat] = deque(crossing(n, payload=payload) for n in range(20))
    assert len(first_frame(large)) == 9


@given(st.binary(max_size=30))
def test_a_payload_that_is_no_frame_is_no_error(payload: bytes) -> None:
    list(decode_frame(Heartbeat("lamps", "a", Envelope("aa", 1, "v")), payload))
