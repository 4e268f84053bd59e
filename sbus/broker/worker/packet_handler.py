"""What a client's packet asks for, if it is not a message that may be published: doing it.

One packet at a time: subscriptions go to the subscriptions, control keys change the session or are
answered, and a message comes here only to be refused. This module does not know turns or sockets.
"""

from collections.abc import Callable

from sbus.broker.config.access_policy import KeyRules
from sbus.broker.delivery.secret_recipient import SecretRecipient
from sbus.broker.worker.client_events import ClientEvents
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.errors import QuotaReached, Refusal
from sbus.limits import Limits
from sbus.protocol import controls
from sbus.protocol.keys import Dialect, check_key, check_pattern
from sbus.protocol.packets import Control, Publish, Subscribe, Unsubscribe, parse_client_packet
from sbus.protocol.secret_keys import begins_secret
from sbus.shared.accounts import BLOCKING
from sbus.shared.worker_statistics import WorkerStatistics
from sbus.unix.open_files import watched_processes_max


class PacketHandler:
    """Of the clients of one worker. `begin_blocking` lets a client hold publishers back from now
    on, and says whether there was a place for it; `inquire` has the front say what the bus has of
    the client's user."""

    def __init__(
        self,
        dialect: Dialect,
        limits: Limits,
        rules: KeyRules,
        sequencer: Sequencer,
        subscriptions: Subscriptions,
        begin_blocking: Callable[[Session], bool],
        inquire: Callable[[Session], None],
        events: ClientEvents,
        statistics: WorkerStatistics,
    ) -> None:
        self._dialect = dialect
        self._limits = limits
        self._rules = rules
        self._sequencer = sequencer
        self._subscriptions = subscriptions
        self._begin_blocking = begin_blocking
        self._inquire = inquire
        self._events = events
        self._statistics = statistics
        self._watching: set[SecretRecipient] = set()
        self._watched_max = watched_processes_max()

    def forget(self, recipient: SecretRecipient) -> None:
        """A client leaves: its process is watched no more."""
        self._watching.discard(recipient)

    def obey(self, session: Session, packet: bytes) -> bool:
        """Do what a packet other than an ordinary message says; False when it has to wait.

        Raises Refusal, Misbehaviour.
        """
        what = parse_client_packet(packet, self._dialect)
        if isinstance(what, Control):
            return self._control(session, what.key)
        if isinstance(what, Publish):
            check_key(what.key, self._dialect, self._limits)
            denied_by = self._rules.publish_denied_by(session.profile, what.key)
            if denied_by is not None:
                raise self._not_allowed(session, "publish under this key", what.key, denied_by)
        elif isinstance(what, Subscribe):
            check_pattern(what.pattern, self._dialect, self._limits)
            denied_by = self._rules.subscribe_denied_by(session.profile, what.pattern)
            if denied_by is not None:
                raise self._not_allowed(
                    session, "subscribe to this pattern", what.pattern, denied_by
                )
            if begins_secret(what.pattern):
                self._prepare_secret(session.secret_recipient, what.pattern)
            done = self._subscriptions.subscribe(session, what.pattern)
            if done:
                self._events.subscribed(session, what.pattern)
            return done
        elif isinstance(what, Unsubscribe):
            check_pattern(what.pattern, self._dialect, self._limits)
            if begins_secret(what.pattern):
                session.secret_recipient.check_own(what.pattern)
            if what.pattern in session.patterns:
                done = self._subscriptions.unsubscribe(session, what.pattern)
                if done:
                    self._events.unsubscribed(session, what.pattern)
                return done
            self._statistics.record_refusal("unknown-unsubscription")
        return True

    def _prepare_secret(self, recipient: SecretRecipient, pattern: bytes) -> None:
        """Accept a client's secret pattern. Raises Refusal, Misbehaviour."""
        recipient.check_own(pattern)
        if recipient not in self._watching:
            if len(self._watching) >= self._watched_max:
                raise Refusal("too-many-secret", "the bus watches as many processes as it can")
            recipient.watch()
            self._watching.add(recipient)
        recipient.check_alive(pattern)

    def _control(self, session: Session, key: bytes) -> bool:
        if key == controls.WHOAMI:
            self._sequencer.barrier()
            own = session.credentials
            session.outbox.reply(controls.whoami_reply(own.gid, own.uid, own.pid))
        elif key == controls.ME:
            self._sequencer.barrier()
            self._inquire(session)
        elif key == controls.ECHO_ON:
            session.echo = True
        elif key == controls.ECHO_OFF:
            session.echo = False
        elif key == controls.NOTICES_ON:
            session.outbox.notices = True
        elif (choice := controls.FLOOD_CONTROLS.get(key)) is not None:
            session.outbox.choose(choice)
            if choice in (controls.Soft.BLOCK, controls.Hard.BLOCK):
                return self._block(session)
        else:
            self._statistics.record_refusal("unknown-control")
        return True

    def _block(self, session: Session) -> bool:
        """Let a client hold publishers back; False until all workers know by which patterns."""
        if session.backpressure is None and not self._begin_blocking(session):
            raise QuotaReached(
                "too-many-blocking",
                "as many clients as may hold publishers back do: block acts as discard",
                BLOCKING,
            )
        return self._subscriptions.is_settled(session)

    def _not_allowed(self, session: Session, what: str, text: bytes, denied_by: int) -> Refusal:
        """What is said to a client, and about it, when the access rules deny it something."""
        self._events.denied(session, what, text, denied_by)
        return Refusal("not-allowed", f"you may not {what}")
