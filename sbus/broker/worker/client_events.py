"""The events of a worker's clients: what they did, what they were refused, what was dropped.

Discarding a message emits nothing, because it happens too often: outboxes count, and while events
are watched the counts are compared once a second.
"""

from collections.abc import Iterable

import trio

from sbus.broker.events.emitter import EventEmitter, describe_client
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.worker.session import Session
from sbus.errors import ClientFault
from sbus.protocol.event import Client
from sbus.protocol.events import (
    AccessDenied,
    ClientExpelled,
    ClientResumed,
    ClientStalled,
    ClientSubscribed,
    ClientUnsubscribed,
    MessagesDiscarded,
    PacketRefused,
    SendsDelayed,
)

_DROPS_SECONDS = 1.0
"""Between two reports of what was dropped."""
_PAUSE_SECONDS = 0.025
"""Within a report; a stream of events collects for a little less."""
_CLIENTS_PER_PAUSE = 50


def _who(session: Session) -> Client:
    return describe_client(session.client, session.credentials, session.sock)


def _escaped(text: bytes, bytes_max: int = 64) -> str:
    """A key or a pattern, printable and short enough for a line of a log."""
    escaped = "".join(
        chr(b) if 32 <= b < 127 and b != 92 else f"\\x{b:02x}" for b in text[:bytes_max]
    )
    return f"{escaped}..." if len(text) > bytes_max else escaped


class ClientEvents:
    """Of the clients of one worker."""

    def __init__(self, emitter: EventEmitter, rate_limiter: LogRateLimiter) -> None:
        self._emitter = emitter
        self._rate_limiter = rate_limiter
        self._reports_drops = False
        self._reported: dict[int, dict[str, int]] = {}
        """What was dropped for each client, by reason, when it was last reported."""

    def set_log_interval(self, seconds: float) -> None:
        """Log the same of the same user once in this time."""
        self._rate_limiter.set_interval(seconds)

    # -- logged at a limited rate --------------------------------------------------------------
    def expelled(self, session: Session, fault: ClientFault) -> None:
        """A client is disconnected for this."""
        self._rate_limiter.log(
            fault.code,
            session.account.uid,
            lambda: ClientExpelled(who=_who(session), code=fault.code, why=fault.text),
        )

    def denied(self, session: Session, what: str, text: bytes, rule: int) -> None:
        """The access rules do not let a client do something with this key or pattern."""
        self._rate_limiter.log(
            "not-allowed",
            session.account.uid,
            lambda: AccessDenied(who=_who(session), what=what, key=_escaped(text), rule=rule),
        )

    def limit_reached(self, session: Session, limit: int) -> None:
        """A client reached a limit of its user's."""
        self._rate_limiter.log_limit_reached(limit, session.account, session.credentials)

    def delayed(self, session: Session) -> None:
        """What a client is sent has to wait, because sends to its user take too long."""
        self._rate_limiter.log(
            "sends-delayed", session.account.uid, lambda: SendsDelayed(who=_who(session))
        )

    # -- only shown ----------------------------------------------------------------------------
    def refused(self, session: Session, fault: ClientFault) -> None:
        """A packet of a client is ignored for this."""
        if self._emitter.is_watched:
            self._emitter.emit(PacketRefused(who=_who(session), code=fault.code, why=fault.text))

    def stalled(self, session: Session, is_stalled: bool) -> None:
        """A client that holds publishers back has no room, or has it again."""
        if self._emitter.is_watched:
            kind = ClientStalled if is_stalled else ClientResumed
            self._emitter.emit(kind(who=_who(session)))

    def subscribed(self, session: Session, pattern: bytes) -> None:
        if self._emitter.is_watched:
            self._emitter.emit(ClientSubscribed(who=_who(session), pattern=_escaped(pattern)))

    def unsubscribed(self, session: Session, pattern: bytes) -> None:
        if self._emitter.is_watched:
            self._emitter.emit(ClientUnsubscribed(who=_who(session), pattern=_escaped(pattern)))

    def arrives(self, session: Session) -> None:
        """A client that another worker served is served here from now on."""
        self._reported[session.client] = dict(session.outbox.dropped)

    def leaves(self, session: Session) -> None:
        """A client is about to be forgotten."""
        if self._emitter.is_watched:
            self._report_drops_of(session)
        self._reported.pop(session.client, None)

    # -- dropped messages ----------------------------------------------------------------------
    async def report_drops(self, sessions: Iterable[Session]) -> None:
        """Report what is dropped from now on, unless that is being done, while events are
        watched."""
        if self._reports_drops:
            return
        self._reports_drops = True
        self._reported = {
            session.client: dict(session.outbox.dropped)
            for session in sessions
            if session.outbox.dropped
        }
        while self._emitter.is_watched:
            await trio.sleep(_DROPS_SECONDS)
            reported = 0
            for session in list(sessions):
                if session.is_open() and self._report_drops_of(session):
                    reported += 1
                    if not reported % _CLIENTS_PER_PAUSE:
                        await trio.sleep(_PAUSE_SECONDS)
        self._reports_drops = False

    def _report_drops_of(self, session: Session) -> bool:
        """Whether there was anything to report."""
        dropped = session.outbox.dropped
        if not dropped:
            return False
        before = self._reported.get(session.client, {})
        reasons = {
            reason: count - before.get(reason, 0)
            for reason, count in dropped.items()
            if count != before.get(reason, 0)
        }
        if reasons:
            self._reported[session.client] = dict(dropped)
            count = sum(reasons.values())
            self._emitter.emit(MessagesDiscarded(who=_who(session), count=count, reasons=reasons))
        return bool(reasons)
