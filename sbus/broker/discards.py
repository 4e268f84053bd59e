"""Messages discarded for slow clients, as events: at most one per client and look.

Nothing is done where messages are discarded: outboxes count, and while somebody watches, who looks
after them asks what has come since the last look. This module does not know when that is.
"""

from collections.abc import Mapping

from sbus.broker.events import Events, of_client
from sbus.broker.session import Session
from sbus.protocol.events import MessagesDiscarded

LOOK_SECONDS = 1.0


class Discards:
    """Of the clients of one worker, by number."""

    def __init__(self, events: Events, sessions: Mapping[int, Session]) -> None:
        self._events = events
        self._sessions = sessions
        self._told: dict[int, dict[str, int]] = {}

    def begin(self) -> None:
        """Tell nothing of what was discarded before this."""
        self._told = {
            session.id: dict(session.outbox.discarded)
            for session in self._sessions.values()
            if session.outbox.discarded
        }

    def look_at_all(self) -> None:
        """Tell what was discarded since the last look."""
        for session in self._sessions.values():
            self.look(session)

    def look(self, session: Session) -> None:
        """Tell it of one client."""
        discarded = session.outbox.discarded
        if not discarded:
            return
        before = self._told.get(session.id, {})
        reasons = {
            reason: count - before.get(reason, 0)
            for reason, count in discarded.items()
            if count != before.get(reason, 0)
        }
        if reasons:
            self._told[session.id] = dict(discarded)
            self._events.emit(
                of_client(
                    MessagesDiscarded,
                    session.id,
                    session.credentials,
                    session.sock,
                    count=sum(reasons.values()),
                    reasons=reasons,
                )
            )

    def forget(self, session: Session) -> None:
        """A client leaves."""
        self._told.pop(session.id, None)
