"""Bytes as text that reads well and loses nothing: for JSON, tables, logs.

Keys, patterns and payloads are rows of bytes, mostly UTF-8. As text, what is not a printable
character there, or could be taken for an escape, becomes `\\xNN` byte by byte and a backslash
`\\\\`: nothing acts on a terminal, a line stays a line, and the bytes can be had back.

    from_text(to_text(b)) == b        for all bytes

Knows nothing of what the bytes are.
"""

import re

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(\\))")


def to_text(data: bytes) -> str:
    """`data` without control characters; undecodable bytes as `\\xNN`, a backslash doubled."""
    decoded = data.decode(errors="surrogateescape")
    if decoded.isprintable() and "\\" not in decoded:
        return decoded
    return "".join(map(_escape, decoded))


def _escape(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))


def from_text(text: str) -> bytes:
    """The bytes that `to_text` was given. Raises ValueError for a backslash that escapes
    nothing."""
    parts = []
    at = 0
    while (backslash := text.find("\\", at)) >= 0:
        escape = _ESCAPE.match(text, backslash)
        if escape is None:
            raise ValueError(f"a backslash stands for nothing at character {backslash}")
        parts.append(text[at:backslash].encode(errors="surrogateescape"))
        parts.append(bytes.fromhex(escape[1]) if escape[1] else b"\\")
        at = escape.end()
    parts.append(text[at:].encode(errors="surrogateescape"))
    return b"".join(parts)
