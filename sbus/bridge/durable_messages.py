"""Messages of durable channels, as they travel through a stream of JetStream.

    PREFIX.d.CHANNEL.ORIGIN.KEY      Sbus: …      Sbus-Acked: NUMBER      Nats-Msg-Id: …

The exporter sends each message again, with the same id, until the stream has acknowledged it. What
is sent again may come behind what was sent after it. So NUMBER tells up to which one all were
acknowledged before this was sent, or will never be: what is missing up to there is lost, and
anything else will still come.
"""

from typing import Final

import msgspec
from nats.aio.msg import Msg

from sbus.bridge.envelope import HEADER, ORIGIN, Crossing, EnvelopeError, decode_envelope
from sbus.bridge.subjects import decode_key
from sbus.protocol.keys import SLASH

ACKED: Final = "Sbus-Acked"
MESSAGE_ID: Final = "Nats-Msg-Id"
NUMBER_CHARACTERS: Final = 19


class StreamMessage(msgspec.Struct, frozen=True):
    """A message of the stream."""

    crossing: Crossing
    acked: int
    sequence: int
    """Its number in the stream."""


def stream_name(prefix: str, channel: str) -> str:
    return f"{prefix.replace('.', '_')}_{channel}"


def subjects_of(prefix: str, channel: str) -> str:
    """What a reader of the channel subscribes to."""
    return f"{prefix}.d.{channel}.>"


def parse_message(msg: Msg, prefix: str, channel: str) -> StreamMessage:
    """Raises EnvelopeError."""
    below = msg.subject.removeprefix(f"{prefix}.d.{channel}.")
    origin, _, tokens = below.partition(".")
    key = decode_key(tokens, SLASH)
    if key is None or not ORIGIN.fullmatch(origin):
        raise EnvelopeError(f"its subject is that of no key: {msg.subject[:80]!r}")
    headers = msg.headers or {}
    envelope = decode_envelope(headers.get(HEADER, ""))
    acked = parse_number(headers.get(ACKED, "0"), ACKED)
    crossing = Crossing(channel, origin, envelope, key, msg.data)
    return StreamMessage(
        crossing, max(0, min(acked, envelope.number - 1)), msg.metadata.sequence.stream
    )


def parse_number(text: str, name: str) -> int:
    """From this header. Raises EnvelopeError."""
    try:
        return int(text[:NUMBER_CHARACTERS])
    except ValueError:
        raise EnvelopeError(f"its header {name} is no number: {text[:20]!r}") from None
