"""Hints about patterns that are allowed, but probably a mistake.

They can match nothing, or they are written for another system, where `#`, `+`, `>` and `**` are
wildcards. On this bus `#`, `+` and `>` stand for themselves, and `**` for one segment, like `*`.
"""

from typing import Final

from sbus.protocol.keys import DOT, Dialect, parse_pattern

_OTHER_WILDCARDS: Final = (b"#", b"+", b">")


def pattern_hint(pattern: bytes, dialect: Dialect) -> str | None:
    """What to write instead of `pattern`, or None where it is as good as any."""
    separator = dialect.separator.decode()
    shown = f"the pattern {pattern.decode(errors='backslashreplace')!r}"
    subtree = f"a {separator!r} at the end matches everything below"
    if parse_pattern(pattern, dialect) is None:
        return f"{shown} matches no key: a * is the rest of its segment, up to a {separator!r}"
    segments = pattern.split(dialect.separator)
    if b"**" in segments:
        return f"{shown} matches one segment where it has **, as with *: {subtree}"
    for wildcard in _OTHER_WILDCARDS:
        if wildcard in segments or pattern.endswith(b"." + wildcard):
            name = wildcard.decode()
            return f"{shown} matches {name} only as it is: * is one segment, and {subtree}"
    if dialect == DOT and b"/" in pattern and b"." not in pattern:
        return f"{shown} has one segment: the dot dialect separates them with a dot"
    return None
