"""Bytes as readable text, without loss: for JSON, tables and logs.

Keys, patterns and payloads are bytes, mostly UTF-8. As text, every byte that is not part of a
printable character becomes `\\xNN`, and a backslash `\\\\`: no terminal reacts to the text, a line
stays a line, and the bytes can be recovered.

    from_text(to_text(b)) == b        for all bytes
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
    """The bytes that `to_text` encoded; raises ValueError for an invalid escape."""
    parts = []
    at = 0
    while (backslash := text.find("\\", at)) >= 0:
        escape = _ESCAPE.match(text, backslash)
        if escape is None:
            raise ValueError(
                f"the backslash at character {backslash} stands for nothing: a byte is written "
                "\\xNN, a backslash \\\\"
            )
        parts.append(text[at:backslash].encode(errors="surrogateescape"))
        parts.append(bytes.fromhex(escape[1]) if escape[1] else b"\\")
        at = escape.end()
    parts.append(text[at:].encode(errors="surrogateescape"))
    return b"".join(parts)


def one_line(text: str) -> str:
    """The text with everything unprintable escaped, so that nothing acts on a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
