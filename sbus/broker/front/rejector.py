"""The rejector: ends connections that may not come in.

A user may provoke any number of rejections, so they are cheap. A client is told why in one packet,
if its socket takes it, and the log is told at a limited rate. What that costs is the user's, under
whichever of its subordinate ids: for the rest of a second in which it has cost too much, the user's
connections are closed without a look. The second ends no sooner than the listen queue is empty: on
a busy host the front may have less CPU time in a second than telling may take, and all that wait in
the queue would wait for that.
"""

import socket
import time
from collections import Counter

import msgspec

from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter, describe_process
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.front.closer import Closer
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.protocol.controls import error_notice
from sbus.protocol.events import ConnectionRefused
from sbus.protocol.keys import DIALECTS
from sbus.shared.accounts import CONNECTIONS, Account
from sbus.unix.closing import discard_unread, end_connection, send_last
from sbus.unix.credentials import Credentials
from sbus.unix.peer_process import program_name

_TELLING_NS_MAX = 20_000_000
"""CPU time for finding out and telling why connections of one user are refused, in a second."""
_DISCARDED_PACKETS_MAX = 64
"""So many unread packets are discarded for a client to read why it is refused; some 0.1 ms."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a connection is refused."""

    code: str
    text: str
    """What the client is told."""
    why: str
    """What administrators are told."""
    full_account: Account | None = None
    """The account that has as many connections as it may, if that is the reason."""


class Rejector:
    """Rejects connections to one bus."""

    def __init__(
        self,
        settings: BusSettings,
        user_limits: EffectiveUserLimits,
        closer: Closer,
        rate_limiter: LogRateLimiter,
        events: EventEmitter,
    ) -> None:
        self._user_limits = user_limits
        self._closer = closer
        self._rate_limiter = rate_limiter
        self._events = events
        self.refused: Counter[str] = Counter()
        """Connections that were refused, by code."""
        self._told: dict[int, tuple[int, str]] = {}
        """The CPU time that telling a user has cost since `_told_since`, and the last code."""
        self._told_since = 0.0
        self._was_empty = True
        """Whether the listen queue has been empty since `_told_since`."""
        self.apply_settings(settings)

    def apply_settings(self, settings: BusSettings) -> None:
        self._tells = DIALECTS[settings.dialect].has_control_messages
        self._rate_limiter.set_interval(settings.limits.log_interval_seconds)

    def reject(
        self, sock: socket.socket, own: Credentials, refusal: Refusal, began_ns: int
    ) -> None:
        """Refuse a client, and tell it why in a dialect that has words for it. The CPU time of this
        thread from `began_ns` on is its user's."""
        user = self._user_limits.user_of(own.uid)
        self.refused[refusal.code] += 1
        self._log(own, user, refusal)
        self.close(sock, user, error_notice(refusal.code, refusal.text))
        spent_ns, _ = self._told.get(user, (0, ""))
        self._told[user] = spent_ns + time.thread_time_ns() - began_ns, refusal.code

    def close(self, sock: socket.socket, uid: int, notice: bytes) -> None:
        """Close the socket of a client of this user that was not admitted, and tell it why in a
        dialect that has words for it."""
        if discard_unread(sock, _DISCARDED_PACKETS_MAX) and self._tells:
            send_last(sock, notice)
        end_connection(sock)
        self._closer.close(sock, uid)

    def reject_silently(self, sock: socket.socket, uid: int) -> bool:
        """Refuse a client without a word, if telling its user has cost enough; whether it has."""
        now = time.monotonic()
        if self._was_empty and now - self._told_since > 1:
            self._told_since = now
            self._was_empty = False
            self._told.clear()
        user = self._user_limits.user_of(uid)
        spent_ns, code = self._told.get(user, (0, ""))
        if spent_ns < _TELLING_NS_MAX:
            return False
        self.refused[code] += 1
        end_connection(sock)
        self._closer.close(sock, user)
        return True

    def note_empty_listen_queue(self) -> None:
        """No connection waits to be accepted."""
        self._was_empty = True

    def _log(self, own: Credentials, user: int, refusal: Refusal) -> None:
        if refusal.full_account is None:
            self._rate_limiter.log(refusal.code, user, lambda: _event(own, refusal))
            return
        if self._events.is_watched:
            self._events.show(_event(own, refusal))
        self._rate_limiter.log_limit_reached(CONNECTIONS, refusal.full_account, own)


def _event(own: Credentials, refusal: Refusal) -> ConnectionRefused:
    who = describe_process(own, program_name(own.pid))
    return ConnectionRefused(who=who, code=refusal.code, why=refusal.why)
