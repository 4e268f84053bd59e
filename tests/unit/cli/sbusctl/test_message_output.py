"""Messages as lines: one line each, and nothing is lost."""

import base64
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.cli.sbusctl.message_output import json_line, raw_line, text_line
from sbus.client.inbox import Lost
from sbus.protocol.packets import Message
from sbus.protocol.text import to_text

anything = st.one_of(st.binary(), st.text().map(lambda text: text.encode(errors="replace")))


@given(anything, anything)
def test_a_text_line_is_key_space_payload(key: bytes, payload: bytes) -> None:
    line = text_line(Message(key, payload)).decode()
    assert line.endswith("\n")
    shown_key, space, shown_payload = line[:-1].partition(" ")
    assert space
    assert len(line.splitlines()) == 1
    assert shown_key == to_text(key).replace(" ", "\\x20")
    assert shown_payload == to_text(payload)


def test_a_raw_line_is_the_payload_unchanged() -> None:
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


def test_a_loss_is_an_object_in_json() -> None:
    assert json.loads(json_line(Lost(5))) == {"lost": 5}
    assert json.loads(json_line(Lost(None))) == {"lost": None}
