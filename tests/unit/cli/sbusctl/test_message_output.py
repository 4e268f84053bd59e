"""Messages as lines: one line each, and nothing is lost."""

import base64
import json
import re
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.cli.sbusctl.message_output import (
    LOSSES_SECONDS,
    Losses,
    json_line,
    raw_line,
    style_of,
    text_line,
    text_lines,
)
from sbus.client.message_queue import Lost, NotKept
from sbus.errors import ConfigurationError
from sbus.protocol.packets import Message, Sender
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


@given(st.lists(st.builds(Message, st.sampled_from([b"a", b"a/b", b"a b", b"\xff"]), anything)))
def test_lines_of_several_messages_are_those_of_each(messages: list[Message]) -> None:
    assert text_lines(messages) == b"".join(map(text_line, messages))


def test_a_raw_line_is_the_payload_unchanged() -> None:
    message = Message(b"a", b"\x1b\0\xff")
    assert raw_line(message) == b"\x1b\0\xff\n"
    assert style_of("raw", None, timestamps=False).line(message, AT) == b"\x1b\0\xff\n"


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


AT = datetime(2026, 11, 22, 9, 8, 7, 65_400).timestamp()
SHOWN = "2026-11-22T09:08:07.065"


def test_a_format_has_fields_in_their_places() -> None:
    line = style_of(None, "{{{time}}} {payload}\t<{key}>", timestamps=False).line
    assert (
        line(Message(b"a b", b"{key}\xff"), AT).decode() == f"{{{SHOWN}}} {{key}}\\xff\t<a\\x20b>\n"
    )


def test_timestamps_are_printed_in_text_and_json() -> None:
    message = Message(b"k", b"p")
    assert style_of(None, None, timestamps=True).line(message, AT).decode() == f"{SHOWN} k p\n"
    as_json = style_of("json", None, timestamps=True).line(message, AT)
    assert json.loads(as_json) == {"time": AT, "key": "k", "payload": "p"}
    assert json.loads(style_of("json", None, timestamps=False).line(message, AT)) == {
        "key": "k",
        "payload": "p",
    }


@pytest.mark.parametrize(
    "template", ["{", "{uid}", "{}", "{0}", "{key.real}", "{key!r}", "{key:9}"]
)
def test_a_format_with_anything_else_is_an_error(template: str) -> None:
    with pytest.raises(ConfigurationError, match="--format"):
        style_of(None, template, timestamps=False)


def test_losses_that_follow_soon_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("sbus.cli.sbusctl.message_output.time.monotonic", lambda: now)
    losses = Losses()
    losses.add([Lost(1)])
    losses.add([Lost(2), Lost(3)])
    losses.add([])
    assert capsys.readouterr().err.startswith("sbusctl: 1 messages were lost here")
    now += LOSSES_SECONDS
    losses.add([Lost(4)])
    assert capsys.readouterr().err.startswith("sbusctl: 9 messages were lost in 3 places")
    losses.add([Lost(5)])
    losses.report()
    losses.report()
    assert capsys.readouterr().err.splitlines() == [
        "sbusctl: 5 messages were lost here: this client read too slowly"
    ]


def test_a_sender_is_shown_where_it_is_asked_for() -> None:
    message = Message(b"k", b"p", Sender(place=9, client=4, gid=100, uid=1000, pid=4711))
    template = "{place} {client} {gid} {uid} {pid} {key}"
    line = style_of(None, template, timestamps=False, sender=True).line
    assert line(message, AT) == b"9 4 100 1000 4711 k\n"
    shown = json.loads(style_of("json", None, timestamps=False, sender=True).line(message, AT))
    assert shown["sender"] == {"place": 9, "client": 4, "gid": 100, "uid": 1000, "pid": 4711}
    assert line(Message(b"k", b"p"), AT) == b"- - - - - k\n"
    with pytest.raises(ConfigurationError, match="uid"):
        style_of(None, "{uid}", timestamps=False)


def test_what_a_service_has_not_kept_is_no_loss_of_this_client(
    capsys: pytest.CaptureFixture[str],
) -> None:
    losses = Losses()
    losses.add([NotKept(3), NotKept(None)])
    assert capsys.readouterr().err.splitlines() == [
        "sbusctl: the service of last values has not kept 3 messages",
        "sbusctl: the service of last values has not kept an unknown number of messages",
    ]
