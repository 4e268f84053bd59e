"""Messages as text: nothing acts on a terminal, and nothing is lost in what is shown."""

import base64
import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.cli.rendering import json_line, printable, raw_line, text_line
from sbus.client.inbox import Lost
from sbus.protocol.packets import Message

anything = st.one_of(st.binary(), st.text().map(lambda text: text.encode(errors="replace")))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"plain", "plain"),
        ("käfer ☃".encode(), "käfer ☃"),
        (b"a\\b", "a\\\\b"),
        (b"\x1b[2Jx", "\\x1b[2Jx"),
        (b"\0\n\r\t\x7f", "\\x00\\x0a\\x0d\\x09\\x7f"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"k\xc3", "k\\xc3"),
        ("\u009b31m".encode(), "\\xc2\\x9b31m"),
        ("\u202egnp.exe".encode(), "\\xe2\\x80\\xaegnp.exe"),
        ("\u2028".encode(), "\\xe2\\x80\\xa8"),
        (b"\\x1b", "\\\\x1b"),
    ],
    ids=repr,
)
def test_what_is_shown_for(text: bytes, shown: str) -> None:
    assert printable(text) == shown


@given(anything)
def test_no_control_character_is_ever_shown(text: bytes) -> None:
    for character in printable(text):
        assert unicodedata.category(character)[0] != "C", repr(character)
        assert unicodedata.category(character) not in {"Zl", "Zp"}


@given(anything)
def test_the_bytes_can_be_told_from_what_is_shown(text: bytes) -> None:
    def unescape(match: re.Match[bytes]) -> bytes:
        escape = match[0]
        return b"\\" if escape == b"\\\\" else bytes([int(escape[2:], 16)])

    shown = printable(text).encode()
    assert re.sub(rb"\\\\|\\x[0-9a-f]{2}", unescape, shown) == text


@given(anything, anything)
def test_a_text_line_is_one_line_of_key_space_payload(key: bytes, payload: bytes) -> None:
    line = text_line(Message(key, payload)).decode()
    assert line.endswith("\n")
    shown_key, space, shown_payload = line[:-1].partition(" ")
    assert space
    assert len(line.splitlines()) == 1
    assert shown_key == printable(key).replace(" ", "\\x20")
    assert shown_payload == printable(payload)


def test_a_raw_line_is_the_payload_as_it_came() -> None:
    assert raw_line(Message(b"a", b"\x1b\0\xff")) == b"\x1b\0\xff\n"


@given(anything, anything)
def test_a_json_line_holds_exactly_the_bytes(key: bytes, payload: bytes) -> None:
    line = json_line(Message(key, payload))
    assert line.endswith(b"\n")
    assert re.fullmatch(rb"[\x20-\x7e]*", line[:-1]), "something could act on a terminal"
    decoded = json.loads(line)
    assert len(decoded) == 2
    for name, value in (("key", key), ("payload", payload)):
        if name in decoded:
            assert decoded[name].encode() == value
        else:
            assert base64.b64decode(decoded[f"{name}_base64"], validate=True) == value
            with pytest.raises(UnicodeDecodeError):
                value.decode()


def test_a_loss_is_an_object_too() -> None:
    assert json.loads(json_line(Lost(5))) == {"lost": 5}
    assert json.loads(json_line(Lost(None))) == {"lost": None}
