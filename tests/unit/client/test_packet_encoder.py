"""What a program passes to the client, checked and encoded."""

from typing import Any

import pytest

import sbus
from sbus.client.packet_encoder import PacketEncoder
from sbus.errors import PacketRefused, PatternWarning
from sbus.limits import Limits
from sbus.protocol.keys import SLASH
from tests.unit.client.fake_bus import FakeBus

ENCODER = PacketEncoder(SLASH, Limits())


def test_text_goes_out_as_utf_8_and_bytes_as_they_are() -> None:
    assert ENCODER.publish("käfer", "ä") == b"MSG k\xc3\xa4fer\0\xc3\xa4"
    assert ENCODER.publish(b"\xff", b"\0\xfe") == b"MSG \xff\0\0\xfe"
    payload: Any = memoryview(b"view")
    assert ENCODER.publish("a", payload) == b"MSG a\0view"


@pytest.mark.parametrize(
    ("key", "payload", "what"),
    [("a", 3, "a payload is bytes or str, not int"), (None, "", "a key is .*, not NoneType")],
)
def test_other_types_are_named(key: Any, payload: Any, what: str) -> None:
    with pytest.raises(TypeError, match=what):
        ENCODER.publish(key, payload)
    with pytest.raises(TypeError, match="a pattern is bytes or str, not int"):
        ENCODER.subscribe(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "code"),
    [("k" * 4_097, "key-too-long"), ("/" * 128, "key-too-deep"), ("a/!/b", "reserved")],
)
def test_a_key_that_no_bus_accepts_is_refused(key: str, code: str) -> None:
    with pytest.raises(PacketRefused) as caught:
        ENCODER.publish(key, b"")
    assert caught.value.code == code


def test_the_largest_keys_pass() -> None:
    for key in (b"k" * 4_096, b"/" * 127):
        assert ENCODER.publish(key, b"") == b"MSG " + key + b"\0"


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("p" * 4_097, "pattern-too-long"),
        ("/" * 128, "pattern-too-deep"),
        ("!/cred/", "bad-secret-pattern"),
        ("!", "reserved"),
    ],
)
def test_a_pattern_that_no_bus_accepts_is_refused(pattern: str, code: str) -> None:
    for encode in (ENCODER.subscribe, ENCODER.unsubscribe):
        with pytest.raises(PacketRefused) as caught:
            encode(pattern)
        assert caught.value.code == code


def test_a_nul_is_refused_also_the_second_time() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="NUL"):
            ENCODER.publish(b"a\0b", b"")


def test_a_hint_names_the_line_of_the_program(fake: FakeBus) -> None:
    with fake.admitting(), sbus.blocking.connect(fake.address) as bus:
        with pytest.warns(PatternWarning, match=r"'a/#'") as caught:
            bus.subscribe("a/#")
        assert caught[0].filename == __file__
