"""Messages as text: for eyes, for programs, and exactly as they are.

Keys and payloads are other people's bytes. As text they are shown as UTF-8, and whatever is not a
printable character there, or could be taken for an escape, becomes `\\xNN` byte by byte: nothing
acts on a terminal, a line stays a line, and the bytes can be told from what is shown.

Pure: writes nothing, and does not know what losses or lines are for.
"""

import base64
import json

from sbus.client.inbox import Lost
from sbus.protocol.packets import Message


def printable(text: bytes) -> str:
    """`text` without control characters; undecodable bytes as `\\xNN`, a backslash doubled."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError:
        decoded = text.decode(errors="surrogateescape")
    if decoded.isprintable() and "\\" not in decoded:
        return decoded
    return "".join(map(_escape, decoded))


def _escape(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))


def text_line(message: Message) -> bytes:
    """`KEY PAYLOAD`; a space within the key is `\\x20`, so the first one ends it."""
    key = printable(message.key).replace(" ", "\\x20")
    return f"{key} {printable(message.payload)}\n".encode()


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
