"""The header of what crosses between bridges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.bridge.envelope import (
    Claim,
    Envelope,
    EnvelopeError,
    decode_claim,
    decode_envelope,
    encode_claim,
    encode_envelope,
)

claims = st.builds(
    Claim, st.text(max_size=12), st.none() | st.integers(0, 2**32 - 1), st.text(max_size=12)
)


@given(claims, st.integers(0, 2**62))
def test_a_header_is_read_as_it_was_written(claim: Claim, number: int) -> None:
    envelope = Envelope("0a1b", number, "web3", encode_claim(claim))
    text = encode_envelope(envelope)
    assert text.isascii()
    assert text.isprintable()
    assert decode_envelope(text) == envelope
    assert decode_claim(envelope.claim) == claim


@pytest.mark.parametrize(
    "text",
    ["", "1", "1 x 1 v c", "1 ab -1 v c", "1 ab ² v c", "1 ab 1", "1 ab 99999999999999999999 v c"],
)
def test_a_header_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(EnvelopeError):
        decode_envelope(text)


def test_another_version_is_named() -> None:
    with pytest.raises(EnvelopeError, match=r"speaks version '2' .* and this one 1"):
        decode_envelope("2 anything")


@given(st.text(max_size=30))
def test_a_claim_is_never_an_error(text: str) -> None:
    decode_claim(text)
