"""How a client learns that the bus has processed everything it sent so far.

It asks something, and the answer follows all that was before it. In the slash dialect that is
`whoami`; in the dot dialect, which has no control messages, it is a message to oneself under a
key that nobody else uses. Either way a question that has left gets a *ticket*, tickets are
numbered in the order of the questions, and an answer settles its own ticket and every earlier one.

Pure: knows no socket, and not who waits for an answer.
"""

import os
from typing import Protocol

import msgspec

from sbus.errors import ProtocolViolation
from sbus.protocol import controls
from sbus.protocol.keys import Dialect
from sbus.protocol.packets import encode_control, encode_publish, encode_subscribe

ID_DIGITS_MAX = 10
"""Digits of a group, user or process id: 32 bits never need more."""


class Identity(msgspec.Struct, frozen=True):
    """Who the bus takes this client for: the kernel's ids of the process that connected.

    `key` begins the keys of secret messages to this client: `!/cred/GID/UID/PID`, behind the
    bus's own prefix where it is uplinked to another bus (PROTOCOL, "Secret messages").
    """

    key: bytes
    gid: int
    uid: int
    pid: int

    def secret_key(self, rest: bytes | str = b"") -> bytes:
        """The key, or pattern, `!/cred/GID/UID/PID/rest`: of messages to this client alone.

        As a pattern without `rest` it matches all of them.
        """
        return b"%b/%b" % (self.key, rest.encode() if isinstance(rest, str) else rest)


def parse_identity(payload: bytes) -> Identity:
    """The payload of a `whoami` reply; raises ProtocolViolation where it is none."""
    segments = payload.split(b"/")[-5:]
    ids = segments[2:]
    if segments[:2] != [b"!", b"cred"] or len(ids) != 3 or not all(map(_is_id, ids)):
        raise ProtocolViolation(f"the bus answered whoami with {payload[:64]!r}")
    gid, uid, pid = map(int, ids)
    return Identity(payload, gid, uid, pid)


def _is_id(text: bytes) -> bool:
    return text.isdigit() and len(text) <= ID_DIGITS_MAX


class Questions(Protocol):
    """The questions of one kind, and their answers, of one connection."""

    def question(self) -> bytes:
        """A packet that the bus will answer."""
        ...

    def asked(self, question: bytes) -> int:
        """This question has left: its ticket."""
        ...

    def answered(self, payload: bytes) -> None:
        """An answer has come; raises ProtocolViolation when it makes no sense."""
        ...

    def settled(self, ticket: int) -> bool: ...

    def abandon(self, ticket: int) -> None:
        """Nobody waits for this ticket any more."""
        ...


class Barrier(Questions, Protocol):
    """Questions whose answer follows everything that was before it."""

    greeting: bytes
    """A packet to send first of all."""
    echo_key: bytes | None
    """The key of messages that are answers and not for the user."""
    identity: Identity | None
    """What the newest answer said, in the dialect where answers say it."""


class CountedQuestions:
    """Answers come in the order of the questions, so counting is enough."""

    def __init__(self) -> None:
        self._asked = 0
        self._answered = 0

    def asked(self, question: bytes) -> int:
        self._asked += 1
        return self._asked

    def settle_one(self) -> None:
        self._answered += 1

    def settled(self, ticket: int) -> bool:
        return self._answered >= ticket

    def abandon(self, ticket: int) -> None:
        """The answer will be counted when it comes, which is all there is to do about it."""


class WhoamiBarrier(CountedQuestions):
    """Slash dialect."""

    greeting: bytes = encode_control(controls.NOTICES_ON)
    echo_key: bytes | None = None
    identity: Identity | None = None

    def question(self) -> bytes:
        return encode_control(controls.WHOAMI)

    def answered(self, payload: bytes) -> None:
        self.identity = parse_identity(payload)
        self.settle_one()


class EchoBarrier:
    """Dot dialect. Whoever subscribes to everything sees these messages and could imitate one.

    So each carries a token of its own, which nobody knows before the bus has processed it.
    """

    identity: Identity | None = None

    def __init__(self, separator: bytes) -> None:
        self._key = separator.join((b"sbus", b"sync", os.urandom(16).hex().encode()))
        self.echo_key: bytes | None = self._key
        self.greeting = encode_subscribe(self._key)
        self._asked = 0
        self._settled = 0
        self._tickets: dict[bytes, int] = {}

    def question(self) -> bytes:
        return encode_publish(self._key, os.urandom(16).hex().encode())

    def asked(self, question: bytes) -> int:
        self._asked += 1
        self._tickets[question.partition(b"\0")[2]] = self._asked
        return self._asked

    def answered(self, payload: bytes) -> None:
        ticket = self._tickets.get(payload)
        if ticket is not None:
            self._settled = ticket
            self._tickets = {token: n for token, n in self._tickets.items() if n > ticket}

    def settled(self, ticket: int) -> bool:
        return self._settled >= ticket

    def abandon(self, ticket: int) -> None:
        self._tickets = {token: n for token, n in self._tickets.items() if n != ticket}


def barrier_of(dialect: Dialect) -> Barrier:
    """A new barrier for a connection that speaks `dialect`."""
    return WhoamiBarrier() if dialect.has_control_messages else EchoBarrier(dialect.separator)
