"""The packets of a connection, from the arguments of its calls.

An invalid argument raises an error here, before anything is sent, because a bus disconnects clients
for some of them. A pattern that is allowed, but probably a mistake, is a PatternWarning.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator

from sbus.errors import ClientFault, ConfigurationError, PacketRefused, PatternWarning
from sbus.limits import Limits
from sbus.protocol.keys import Dialect, check_key, check_pattern
from sbus.protocol.packets import (
    encode_control,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
)
from sbus.protocol.pattern_hints import pattern_hint

_LIBRARY = __name__.rpartition(".")[0]


class PacketEncoder:
    """Encodes for a bus with this dialect and these limits.

    Raises TypeError for what is neither bytes nor text, ValueError for a NUL in a key or pattern,
    and PacketRefused for keys and patterns that the bus does not accept.
    """

    def __init__(self, dialect: Dialect, limits: Limits) -> None:
        self._dialect = dialect
        self._limits = limits
        self._accepted_key = b""
        """The newest one, as most programs publish several times under each key."""

    def publish(self, key: bytes | str, payload: bytes | str) -> bytes:
        name = to_bytes(key, "a key")
        content = to_bytes(payload, "a payload")
        if name != self._accepted_key:
            try:
                check_key(name, self._dialect, self._limits)
            except ClientFault as fault:
                raise _refused(fault) from None
            self._accepted_key = name
        return encode_publish(name, content)

    def payload(self, payload: bytes | str) -> bytes:
        return to_bytes(payload, "a payload")

    def publish_many(self, key: bytes | str, payloads: Iterable[bytes | str]) -> Iterator[bytes]:
        """A packet for each payload."""
        beginning = self.publish(key, b"")
        return (
            beginning + (payload if type(payload) is bytes else to_bytes(payload, "a payload"))
            for payload in payloads
        )

    def publish_all(self, messages: Iterable[tuple[bytes | str, bytes | str]]) -> Iterator[bytes]:
        """A packet for each key and payload."""
        return (self.publish(key, payload) for key, payload in messages)

    def subscribe(self, pattern: bytes | str) -> bytes:
        checked = self.checked_pattern(pattern)
        hint = pattern_hint(checked, self._dialect)
        if hint is not None:
            warnings.warn(hint, PatternWarning, _level_of_program())
        return encode_subscribe(checked)

    def unsubscribe(self, pattern: bytes | str) -> bytes:
        return encode_unsubscribe(self.checked_pattern(pattern))

    def control(self, key: bytes | str, payload: bytes | str | None) -> bytes:
        """Raises ConfigurationError in the dot dialect."""
        self.must_have_control_messages()
        content = None if payload is None else to_bytes(payload, "a payload")
        return encode_control(to_bytes(key, "a key"), content)

    def must_have_control_messages(self) -> None:
        """Raise ConfigurationError in the dot dialect."""
        if not self._dialect.has_control_messages:
            raise ConfigurationError(
                f"the {self._dialect.name} dialect has no control messages: "
                "there is neither whoami nor me"
            )

    def checked_pattern(self, pattern: bytes | str) -> bytes:
        """One that the bus accepts; without a warning."""
        text = to_bytes(pattern, "a pattern")
        try:
            check_pattern(text, self._dialect, self._limits)
        except ClientFault as fault:
            raise _refused(fault) from None
        return text


def to_bytes(value: bytes | str, what: str) -> bytes:
    """A key, pattern or payload as bytes; text is encoded as UTF-8."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{what} is bytes or str, not {type(value).__name__}")


def _refused(fault: ClientFault) -> PacketRefused:
    return PacketRefused(fault.code, fault.text)


def _level_of_program() -> int:
    """The stack level, for the caller, of the program that has called the client library."""
    level, frame = 1, sys._getframe(1)
    while frame.f_globals["__name__"].startswith(_LIBRARY) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level
