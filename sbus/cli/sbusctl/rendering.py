"""Messages as text: for eyes, for programs, and exactly as they are.

Keys and payloads are other people's bytes; what of them is shown as text goes through `to_text`.

Pure: writes nothing, and does not know what losses or lines are for.
"""

import base64
import json

from sbus.client.inbox import Lost
from sbus.protocol.packets import Message
from sbus.protocol.text import to_text


def text_line(message: Message) -> bytes:
    """`KEY PAYLOAD`; a space within the key is `\\x20`, so the first one ends it."""
    key = to_text(message.key).replace(" ", "\\x20")
    return f"{key} {to_text(message.payload)}\n".encode()


def raw_line(message: Message) -> bytes:
    """The payload as it came, and a newline."""
    return message.payload + b"\n"


def json_line(item: Message | Lost) -> bytes:
    """One object: `key` and `payload` where they are UTF-8, else `key_base64`, `payload_base64`.

    A loss is `lost`, a number of messages or null. All in ASCII, so safe on a terminal as well.
    """
    if isinstance(item, Lost):
        return json.dumps({"lost": item.count}).encode() + b"\n"
    fields = (_json_field("key", item.key), _json_field("payload", item.payload))
    return json.dumps(dict(fields)).encode() + b"\n"


def _json_field(name: str, value: bytes) -> tuple[str, str]:
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", base64.b64encode(value).decode()
