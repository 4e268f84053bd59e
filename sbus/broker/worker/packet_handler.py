"""Handling a client's pending packets: messages are published, other packets are carried out.

Consecutive messages are one publish batch. A packet that may not be carried out is refused, and its
client disconnected if that is misbehaviour.
"""

import time
from functools import partial

from sbus.broker.config.access_policy import AccessProfile
from sbus.broker.ipc.worker_protocol import SelfServiceRequest
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.publish_batch import gather
from sbus.broker.worker.receipts import Receipts
from sbus.broker.worker.router import Route, Router
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.broker.worker.wait_queue import FOR_ROOM, Wait
from sbus.errors import ClientFault, QuotaReached, Refusal
from sbus.limits import UNITS_PER_SECOND
from sbus.protocol import controls, presence, receipts
from sbus.protocol.keys import check_key, check_pattern
from sbus.protocol.packets import Publish, Subscribe, Unsubscribe, parse_client_packet
from sbus.protocol.secret_keys import begins_secret
from sbus.shared.accounts import BLOCKING_CLIENTS
from sbus.shared.worker_statistics import ROUTE_LOOKUPS


class PacketHandler:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        router: Router,
        sequencer: Sequencer,
        subscriptions: Subscriptions,
        sessions: Sessions,
    ) -> None:
        self._context = context
        self._dialect = context.dialect
        self._operations = context.operations
        self._rules = context.rules
        self._statistics = context.statistics
        self._client_events = context.client_events
        self._router = router
        self._routes = router.cache
        self._sequencer = sequencer
        self._subscriptions = subscriptions
        self._sessions = sessions
        self._receipts = Receipts(context, router, sequencer, sessions)
        self._presence = sessions.presence
        self._packet_cost = context.memory.workers
        """Of a packet that is not a message, besides the time that it takes here: a subscription
        costs every worker something."""

    def handle_next(self, session: Session, cost_max: int) -> tuple[int, Wait | None]:
        """Publish the client's next messages up to this cost, or carry out its next other packet.

        Returns the cost, and what the rest has to wait for. Raises Misbehaviour.
        """
        routes = self._routes
        if session.profile.publish:
            # Every key is looked up: its route does not say who may publish.
            batch = gather(
                session, {}, partial(self._look_up_if_allowed, session.profile), cost_max
            )
        else:
            batch = gather(session, routes.recent, routes.look_up, cost_max)
        if batch.messages:
            wait = self._sequencer.publish(batch)
            batch.count_published()
            batch.timed_seconds = self._operations.own_time(batch.timed_seconds)
            return 1 + batch.cost, wait
        began_at = self._time_without_walks()
        try:
            wait = self._carry_out(session, session.peek())
        except Refusal as fault:
            self._refuse(session, fault)
            wait = None
        if wait is None:
            session.skip()
        seconds = self._time_without_walks() - began_at
        own_seconds = self._operations.own_time(seconds)
        return self._packet_cost + int(own_seconds * UNITS_PER_SECOND), wait

    def _time_without_walks(self) -> float:
        """A clock that stands still during walks, which publishers are charged for."""
        return time.perf_counter() - self._sequencer.walking_seconds

    def _look_up_if_allowed(self, profile: AccessProfile, key: bytes) -> Route:
        """The route of a key. Raises ClientFault if a client with this profile may not publish
        under it; `_carry_out` then says why."""
        route = self._router.look_up(key)
        if self._rules.denied_by(profile.publish, key) is not None:
            self._statistics.counts[ROUTE_LOOKUPS] += 1  # the sequencer counts the others
            raise Refusal("not-allowed", "you may not publish under this key")
        return route

    def _refuse(self, session: Session, fault: ClientFault) -> None:
        self._count_refusal(session, fault)
        if session.outbox.wants_notices:
            session.reply(controls.error_notice(fault.code, fault.text))

    def _count_refusal(self, session: Session, fault: ClientFault) -> None:
        session.refused += 1
        self._statistics.record_refusal(fault.code)
        if isinstance(fault, QuotaReached):
            self._client_events.limit_reached(session, fault.limit)
        self._client_events.refused(session, fault)

    # -- packets that are not published --------------------------------------------------------
    def _carry_out(self, session: Session, packet: bytes) -> Wait | None:
        """Do what a packet says; returns what it has to wait for, if anything. Raises Refusal,
        Misbehaviour.

        A message comes here only when it may not be published.
        """
        request = parse_client_packet(packet, self._dialect)
        limits = self._context.settings.limits
        is_done = True
        if isinstance(request, Publish):
            self._check_publishing(session, request.key)
        elif isinstance(request, Subscribe):
            check_pattern(request.pattern, self._dialect, limits)
            is_done = self._subscribe(session, request.pattern)
        elif isinstance(request, Unsubscribe):
            check_pattern(request.pattern, self._dialect, limits)
            is_done = self._unsubscribe(session, request.pattern)
        elif request.key == receipts.PUBLISH:
            return self._publish(session, receipts.parse_request(request.payload))
        elif request.key in presence.REQUESTS:
            return self._reply_about_names(session, request.key, request.payload)
        else:
            is_done = self._control(session, request.key, request.payload)
        return None if is_done else FOR_ROOM

    def _check_publishing(self, session: Session, key: bytes) -> None:
        """Raise Refusal or Misbehaviour if this client may not publish under this key."""
        check_key(key, self._dialect, self._context.settings.limits)
        denied_by = self._rules.denied_by(session.profile.publish, key)
        if denied_by is not None:
            raise self._denial(session, "publish under this key", key, denied_by)

    def _publish(self, session: Session, request: receipts.Request) -> Wait | None:
        """Publish a message with a receipt, which also says why it is refused."""
        try:
            self._check_publishing(session, request.key)
        except Refusal as fault:
            self._count_refusal(session, fault)
            session.reply(receipts.refused(request.token, fault))
            return None
        return self._receipts.publish(session, request)

    def tell_complete_receipts(self) -> None:
        """Tell publishers what came of their messages, where all workers have done their part."""
        self._receipts.tell_complete()

    def _denial(self, session: Session, what: str, text: bytes, denied_by: int) -> Refusal:
        """The refusal of what an access rule denies a client; the log hears of it too."""
        self._client_events.denied(session, what, text, denied_by)
        return Refusal("not-allowed", f"you may not {what}")

    def _subscribe(self, session: Session, pattern: bytes) -> bool:
        denied_by = self._rules.subscribe_denied_by(session.profile, pattern)
        if denied_by is not None:
            raise self._denial(session, "subscribe to this pattern", pattern, denied_by)
        done = self._subscriptions.subscribe(session, pattern)
        if done:
            self._client_events.subscribed(session, pattern)
        return done

    def _unsubscribe(self, session: Session, pattern: bytes) -> bool:
        if begins_secret(pattern):
            session.secret_recipient.check_ids(pattern)
        if pattern not in session.patterns:
            self._statistics.record_refusal("unknown-unsubscription")
            return True
        done = self._subscriptions.unsubscribe(session, pattern)
        if done:
            self._client_events.unsubscribed(session, pattern)
        return done

    def _control(self, session: Session, key: bytes, payload: bytes) -> bool:
        if key in (controls.WHOAMI, controls.SYNC):
            self._sequencer.barrier()
            # Statistics that are read after the reply include everything before it.
            self._sequencer.share_statistics()
            own = session.credentials
            is_sync = key == controls.SYNC
            whoami = controls.whoami_reply(own.gid, own.uid, own.pid)
            session.reply(controls.sync_reply(payload) if is_sync else whoami)
        elif key == controls.ME:
            self._sequencer.barrier()
            session.awaits_self_service = True
            self._context.link.send(SelfServiceRequest(session.client))
        elif key == controls.ECHO_ON:
            session.echo = True
            session.save_settings()
        elif key == controls.ECHO_OFF:
            session.echo = False
            session.save_settings()
        elif key in (controls.SENDER_ON, controls.SENDER_OFF):
            self._sequencer.barrier()  # earlier messages come as chosen before
            session.outbox.wants_sender = key == controls.SENDER_ON
            session.save_settings()
        elif key == controls.NOTICES_ON:
            session.outbox.wants_notices = True
            session.save_settings()
        elif (choice := controls.flood_choice(key)) is not None:
            self._sequencer.barrier()  # earlier messages are handled as chosen before
            session.outbox.choose(choice)
            session.save_settings()
            if choice in (controls.Soft.BLOCK, controls.Hard.BLOCK):
                return self._enable_backpressure(session)
        else:
            self._statistics.record_refusal("unknown-control")
        return True

    def _enable_backpressure(self, session: Session) -> bool:
        """Let a client hold publishers back; False until all workers know by which patterns."""
        if session.backpressure is None and not self._sessions.enable_backpressure(session):
            raise QuotaReached(
                "too-many-blocking",
                "as many clients as may hold publishers back do: block acts as discard",
                BLOCKING_CLIENTS,
            )
        return self._subscriptions.is_settled(session)

    def _reply_about_names(self, session: Session, key: bytes, payload: bytes) -> Wait | None:
        """Do what a client asks for that is about names, and reply; returns what it has to wait
        for, if anything. Its reply says why it is refused, so it gets no notice."""
        wait: Wait | None = None
        try:
            if key == presence.MEMBERS:
                members = self._presence.list_members(session, payload)
                if members is None:
                    return FOR_ROOM
                reply = members
            elif key == presence.LEAVE:
                reply = presence.leave_reply(session.name)
                wait = self._presence.leave(session)
            else:
                reply = presence.join_reply(payload)
                wait = self._presence.join(session, *presence.parse_join(payload))
        except Refusal as fault:
            self._count_refusal(session, fault)
            refused = key == presence.MEMBERS
            reply = (
                presence.members_refused(fault) if refused else presence.join_reply(payload, fault)
            )
        if wait is None:
            session.reply(reply)
        return wait
