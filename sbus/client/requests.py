"""The requests of a client to the bus, and the replies: the barrier of `sync`, `whoami` and `me`.

A *barrier* is a request whose reply follows everything that was sent before it. In the slash
dialect that is `whoami`; the dot dialect has no control messages, so there the client sends a
message to itself, with a key that no other client uses. Every request that was sent gets a
*ticket*; tickets are numbered in the order of the requests, and a reply settles its ticket and all
earlier ones.
"""

import os
from typing import TYPE_CHECKING

import msgspec

from sbus.errors import ProtocolViolation
from sbus.protocol import controls
from sbus.protocol.keys import Dialect
from sbus.protocol.packets import encode_control, encode_publish, encode_subscribe

if TYPE_CHECKING:
    from sbus.protocol.admin_results import MeResult

ID_DIGITS_MAX = 10
"""Digits of a group, user or process id of 32 bits."""


class Identity(msgspec.Struct, frozen=True):
    """This client's peer credentials: the kernel's ids of the process that connected.

    `key` is the beginning of the keys of secret messages to this client: `!/cred/GID/UID/PID`,
    after the bus's own prefix if it is uplinked to another bus (docs/protocol.md, "Secret
    messages").
    """

    key: bytes
    gid: int
    uid: int
    pid: int

    def secret_key(self, rest: bytes | str = b"") -> bytes:
        """The key, or pattern, `!/cred/GID/UID/PID/rest` of messages to this client only.

        As a pattern without `rest` it matches all of them.
        """
        return b"%b/%b" % (self.key, rest.encode() if isinstance(rest, str) else rest)


def parse_identity(payload: bytes) -> Identity:
    """The identity in a `whoami` reply; raises ProtocolViolation for any other payload."""
    segments = payload.split(b"/")[-5:]
    ids = segments[2:]
    if segments[:2] != [b"!", b"cred"] or len(ids) != 3 or not all(map(_is_id, ids)):
        raise ProtocolViolation(f"the bus replied to whoami with {payload[:64]!r}")
    gid, uid, pid = map(int, ids)
    return Identity(payload, gid, uid, pid)


def _is_id(text: bytes) -> bool:
    return text.isdigit() and len(text) <= ID_DIGITS_MAX


class Requests:
    """The requests of one kind on one connection. Replies come in order, so they are counted."""

    def __init__(self) -> None:
        self._sent = 0
        self._settled = 0

    def encode(self) -> bytes:
        """A packet to which the bus will reply."""
        raise NotImplementedError

    def sent(self, packet: bytes) -> int:
        """Returns the ticket of a request that was sent."""
        self._sent += 1
        return self._sent

    def replied(self, payload: bytes) -> None:
        """Take in a reply; raises ProtocolViolation when it is invalid."""
        self._settled += 1

    def is_settled(self, ticket: int) -> bool:
        return self._settled >= ticket

    @property
    def has_open(self) -> bool:
        """Whether a reply has not come yet."""
        return self._settled < self._sent

    @property
    def newest(self) -> int:
        """The ticket of the last request."""
        return self._sent

    def settle(self, ticket: int) -> None:
        """The bus has replied to all requests up to this one, or lost them."""
        self._settled = max(self._settled, ticket)

    def abandon(self, ticket: int) -> None:
        """Nobody waits for this ticket any more; its reply is still counted when it comes."""

    def abandon_all(self) -> None:
        """The connection was lost: no reply comes for any ticket so far. They are settled, so that
        nobody waits for one."""
        self._settled = self._sent


class MeRequests(Requests):
    """`me`: what the bus knows about this client's user.

    The reply is decoded, and its types are imported, only when the result is used.
    """

    _newest = b""

    def encode(self) -> bytes:
        return encode_control(controls.ME)

    def replied(self, payload: bytes) -> None:
        self._newest = payload
        super().replied(payload)

    def result(self) -> "MeResult":
        """The newest reply; raises ProtocolViolation when it is invalid."""
        from sbus.protocol.admin_results import MeResult

        try:
            return msgspec.json.decode(self._newest, type=MeResult)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"the bus sent an invalid reply to me: {error}") from error


class Barrier(Requests):
    """Requests whose reply follows everything that was sent before."""

    greeting: bytes
    """The first packet to send."""
    echo_key: bytes | None = None
    """The key of messages that are replies and not for the user."""
    identity: Identity | None = None
    """From the newest reply on this connection, in the slash dialect."""


class WhoamiBarrier(Barrier):
    """In the slash dialect."""

    greeting = encode_control(controls.NOTICES_ON)

    def abandon_all(self) -> None:
        super().abandon_all()
        self.identity = None

    def encode(self) -> bytes:
        return encode_control(controls.WHOAMI)

    def replied(self, payload: bytes) -> None:
        self.identity = parse_identity(payload)
        super().replied(payload)


class EchoBarrier(Barrier):
    """In the dot dialect. A subscriber to everything sees these messages and could imitate one.

    So each has a random token, which is secret until the bus has processed the message.
    """

    def __init__(self, separator: bytes) -> None:
        super().__init__()
        self._key = separator.join((b"sbus", b"sync", os.urandom(16).hex().encode()))
        self.echo_key = self._key
        self.greeting = encode_subscribe(self._key)
        self._tickets: dict[bytes, int] = {}

    def encode(self) -> bytes:
        return encode_publish(self._key, os.urandom(16).hex().encode())

    def sent(self, packet: bytes) -> int:
        ticket = self._tickets[packet.partition(b"\0")[2]] = super().sent(packet)
        return ticket

    def replied(self, payload: bytes) -> None:
        ticket = self._tickets.get(payload)
        if ticket is not None:
            self._settled = ticket
            self._tickets = {token: n for token, n in self._tickets.items() if n > ticket}

    def abandon(self, ticket: int) -> None:
        self._tickets = {token: n for token, n in self._tickets.items() if n != ticket}

    def abandon_all(self) -> None:
        super().abandon_all()
        self._tickets.clear()


def barrier_of(dialect: Dialect) -> Barrier:
    """A new barrier for a connection in this dialect."""
    return WhoamiBarrier() if dialect.has_control_messages else EchoBarrier(dialect.separator)
