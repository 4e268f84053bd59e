"""What one worker tells of its clients: what they did, what they were refused, what they lost.

Nothing is done where messages are discarded: outboxes count, and while somebody watches, who looks
after them once in a while asks what has come since the last look. This module does not know when
that is, nor what becomes of a client.
"""

from collections.abc import Iterator, Mapping

from sbus.broker.events.emitter import EventEmitter, client_of
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.worker.session import Session
from sbus.errors import ClientFault
from sbus.protocol.events import (
    AccessDenied,
    Client,
    ClientExpelled,
    ClientResumed,
    ClientStalled,
    ClientSubscribed,
    ClientUnsubscribed,
    MessagesDiscarded,
    PacketRefused,
)

LOOK_SECONDS = 1.0
"""Between two looks at what was discarded."""
PIECE_SECONDS = 0.025
"""Between two pieces of a look; a stream of events collects for a little less."""
_TOLD_PER_PIECE = 50


def _who(session: Session) -> Client:
    return client_of(session.id, session.credentials, session.sock)


def _escaped(text: bytes, bytes_max: int = 64) -> str:
    """A key or a pattern as a line of a log can carry it: printable, and not long."""
    escaped = "".join(
        chr(b) if 32 <= b < 127 and b != 92 else f"\\x{b:02x}" for b in text[:bytes_max]
    )
    return f"{escaped}..." if len(text) > bytes_max else escaped


class ClientEvents:
    """Of the clients of one worker, which are in `sessions` by number."""

    def __init__(
        self, events: EventEmitter, rate_limiter: LogRateLimiter, sessions: Mapping[int, Session]
    ) -> None:
        self._events = events
        self._rate_limiter = rate_limiter
        self._sessions = sessions
        self._discarded: dict[int, dict[str, int]] = {}
        """What was discarded for each client, as far as it was told."""

    # -- what is logged ------------------------------------------------------------------------
    def expelled(self, session: Session, fault: ClientFault) -> None:
        """A client is disconnected for this."""

        def describe() -> ClientExpelled:
            return ClientExpelled(who=_who(session), code=fault.code, why=fault.text)

        self._rate_limiter.log(fault.code, session.uid, describe)

    def denied(self, session: Session, what: str, text: bytes, rule: int) -> None:
        """The access rules do not let a client do something with this key or pattern."""

        def describe() -> AccessDenied:
            return AccessDenied(who=_who(session), what=what, key=_escaped(text), rule=rule)

        self._rate_limiter.log("not-allowed", session.uid, describe)

    # -- what is only shown --------------------------------------------------------------------
    def refused(self, session: Session, fault: ClientFault) -> None:
        """A packet of a client is ignored for this."""
        if self._events.is_watched:
            self._events.emit(PacketRefused(who=_who(session), code=fault.code, why=fault.text))

    def stalled(self, session: Session, is_stalled: bool) -> None:
        """A client that holds publishers back has no room, or has it again."""
        if self._events.is_watched:
            kind = ClientStalled if is_stalled else ClientResumed
            self._events.emit(kind(who=_who(session)))

    def subscribed(self, session: Session, pattern: bytes) -> None:
        """A client has a pattern once more."""
        if self._events.is_watched:
            self._events.emit(ClientSubscribed(who=_who(session), pattern=_escaped(pattern)))

    def unsubscribed(self, session: Session, pattern: bytes) -> None:
        """A client has a pattern once less."""
        if self._events.is_watched:
            self._events.emit(ClientUnsubscribed(who=_who(session), pattern=_escaped(pattern)))

    def leaves(self, session: Session) -> None:
        """A client is about to be forgotten."""
        if self._events.is_watched:
            self._look_at(session)
        self._discarded.pop(session.id, None)

    # -- what is discarded ---------------------------------------------------------------------
    def begin_looking(self) -> None:
        """Tell nothing of what was discarded before this."""
        self._discarded = {
            session.id: dict(session.outbox.discarded)
            for session in self._sessions.values()
            if session.outbox.discarded
        }

    def look(self) -> Iterator[None]:
        """Tell what was discarded since the last look, in pieces that watchers have room for."""
        told = 0
        for number in list(self._sessions):
            session = self._sessions.get(number)
            if session is not None and self._look_at(session):
                told += 1
                if not told % _TOLD_PER_PIECE:
                    yield

    def _look_at(self, session: Session) -> bool:
        """Tell what was discarded for one client; whether there was anything."""
        discarded = session.outbox.discarded
        if not discarded:
            return False
        before = self._discarded.get(session.id, {})
        reasons = {
            reason: count - before.get(reason, 0)
            for reason, count in discarded.items()
            if count != before.get(reason, 0)
        }
        if reasons:
            self._discarded[session.id] = dict(discarded)
            count = sum(reasons.values())
            self._events.emit(MessagesDiscarded(who=_who(session), count=count, reasons=reasons))
        return bool(reasons)
