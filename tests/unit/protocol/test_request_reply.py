"""The payloads of requests and answers, from clients that may be hostile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.limits import Limits
from sbus.protocol.keys import SLASH, check_key
from sbus.protocol.packets import Message
from sbus.protocol.request_reply import (
    Answer,
    Envelope,
    encode_answer,
    encode_request,
    parse_answer,
    parse_request,
    reply_key,
)

REPLY_KEY = b"!/cred/5/6/7/reply/0a"


@given(payload=st.binary(), is_failure=st.booleans())
def test_a_request_and_its_answer_come_out_as_they_went_in(
    payload: bytes, is_failure: bool
) -> None:
    key = reply_key(b"!/cred/5/6/7", b"0a")
    assert key == REPLY_KEY
    request = parse_request(Message(b"a", encode_request(key, b"t1", payload)))
    assert request == Envelope(b"a", payload, REPLY_KEY, b"t1")
    answer = encode_answer(request, payload, is_failure=is_failure)
    assert parse_answer(answer) == Answer(b"t1", payload, is_failure)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"on",
        b"a/b\x00t\x00body",
        b"!/cred/5/6/7/x/0a\x00t\x00body",
        b"!/cred/5/6/7/reply/0a/x\x00t\x00body",
        b"!/cred/5/6/7/reply/\x00t\x00body",
        b"!/cred/5/6//reply/0a\x00t\x00body",
        b"!/cred/00/6/7/reply/0a\x00t\x00body",
        b"!/cred/5/06/7/reply/0a\x00t\x00body",
        b"!/cred/5/6/7/reply/0a\x00t!\x00body",
        b"!/cred/5/6/7/reply/0a\x00\x00body",
        REPLY_KEY + b"\x00" + b"t" * 63 + b"\x00body",
        REPLY_KEY + b"\x00t",
        REPLY_KEY * 2 + b"\x00t\x00body",
    ],
)
def test_what_would_make_its_answerer_publish_elsewhere_is_no_request(payload: bytes) -> None:
    assert parse_request(Message(b"a", payload)) is None


ids = st.text("0123456789", min_size=1, max_size=11)


@given(gid=ids, uid=ids, pid=ids)
def test_every_request_has_a_key_that_its_answer_may_have(gid: str, uid: str, pid: str) -> None:
    key = f"!/cred/{gid}/{uid}/{pid}/reply/0a".encode()
    if parse_request(Message(b"a", encode_request(key, b"t", b""))) is not None:
        check_key(key, SLASH, Limits())


@given(st.binary())
def test_any_payload_is_an_answer_to_somebody(payload: bytes) -> None:
    assert parse_answer(payload).token == payload.split(b"\0")[0].removesuffix(b"!")
