"""The deliveries to one client: straight to its socket, or by its backlog while that is full.

For a message that the socket does not take, the *soft* policy decides: it goes to the backlog, it
is dropped, its publisher is held back, or the client is disconnected. While a message waits the
socket counts as full. For a message that the backlog has no room for, the *hard* policy decides.

The message that found no room is kept when its publisher is held back, and so are messages that
already had their place in the total order: the *overshoot*, of at most the size of the log. A
message whose publisher may not be held is dropped. Publishers go on when, with soft `block`, no
message waits, and with hard `block`, half of the backlog is free.

A dropped message is counted, leaves a gap in the backlog, and becomes a `!/lost` notice there. One
that is too old is dropped when it would be sent, or when there is no room for another one. No
policy concerns control messages. They wait behind what was accepted before them, and are few: a
client that has one waiting is not read.

    publishers are held  ⇒  an overshoot waits, or the backlog is more than half full

When the socket has room again, the worker queues the backlog in the fair queue, so that its user
is charged for sending it as for any other work. `outbox_state` has the table of states, and
`outbox_ledger` counts.
"""

from errno import EAGAIN, EMSGSIZE

import msgspec

from sbus.broker.delivery import outbox_state
from sbus.broker.delivery.backlog_section import ControlMessage
from sbus.broker.delivery.backpressure import Backpressure
from sbus.broker.delivery.bounded_backlog import BoundedBacklog
from sbus.broker.delivery.outbox_ledger import NO_SIZE, OutboxLedger
from sbus.broker.delivery.outbox_listener import OutboxListener
from sbus.broker.delivery.send_times import TimedSocket
from sbus.errors import Misbehaviour
from sbus.limits import BYTES_PER_UNIT, Limits
from sbus.protocol import controls
from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft
from sbus.shared.accounts import Account
from sbus.shared.worker_statistics import WorkerStatistics

_COST_PER_PACKET = 2
"""Sending one from a backlog takes twice as long as delivering it at once."""
_QUEUE = Soft.QUEUE  # looking a member up costs more than using it
_FLOOD_CONTROL = {Soft: "soft", Hard: "hard", BacklogOrder: "order", int: "age_ms_max"}


class Outbox(OutboxLedger):
    """Deliveries to one client. Borrows `sock`; `account` is its user's."""

    __slots__ = (
        *("_backpressure", "_listener", "_send", "_state", "watches_room"),
        *("fault", "flood_control", "is_closed", "wants_notices"),
    )

    def __init__(
        self,
        sock: TimedSocket,
        flood_control: FloodControl,
        limits: Limits,
        account: Account,
        statistics: WorkerStatistics,
        listener: OutboxListener,
    ) -> None:
        self.fd = sock.fileno()
        self._send = sock.send
        self.flood_control = flood_control
        """What the client has chosen."""
        self._listener = listener
        backlog = BoundedBacklog(flood_control.order, limits, account, statistics)
        super().__init__(backlog, account, statistics)
        self._backpressure: Backpressure | None = None
        """What publishers are held back by; without it `block` is `discard`."""
        self.watches_room = False
        self._state = outbox_state.FLOWING
        self.is_flowing = True
        self.is_closed = False
        """What the state means for the next message. Comparing it each time would take 60 of the
        620 ns that a delivery takes."""
        self.fault: Misbehaviour | None = None
        """Why this client is to be disconnected; nothing more is delivered to it."""
        self.wants_notices = False

    @property
    def controls_waiting(self) -> int:
        return self._backlog.controls

    # -- what the client chooses ---------------------------------------------------------------
    def choose(self, choice: controls.FloodChoice) -> None:
        """Change a policy from the next message on, or the order of all that is to be sent."""
        self.decide_anew()
        changed = {_FLOOD_CONTROL[type(choice)]: choice}
        self._control_flood(msgspec.structs.replace(self.flood_control, **changed))
        self._end_stall_if_room()

    def _control_flood(self, chosen: FloodControl) -> None:
        self.flood_control = chosen
        self._backlog.reorder(chosen.order)
        self._backlog.limit_age(chosen.age_ms_max)

    def enable_backpressure(self, backpressure: Backpressure) -> None:
        """From now on publishers are held back where a policy is `block`."""
        self._backpressure = backpressure
        self.decide_anew()

    # -- what comes ----------------------------------------------------------------------------
    def deliver(self, packet: bytes, publisher_account: int) -> None:
        """Accept a message for this client."""
        self.accepted += 1
        if not self.is_flowing and self._drops_likewise(packet, publisher_account):
            return
        if self.wants_sender:
            packet = self._with_sender(packet)
        while self.is_flowing:
            try:
                self.delivered_bytes += self._send(packet)
                return
            except OSError as error:
                if not self._has_more_room_after(error):
                    self._on_failed_send(error)
                    break
        else:
            if self._try_to_send(packet):
                return
        self._decide(packet, publisher_account)

    def leave_out(self, packet: bytes, publisher_account: int, *, may_keep: bool = True) -> None:
        """There is no time for this message (see `FanOutTimes`): drop it, unless the hard policy is
        another one for this publisher. If it may not be kept, it is dropped all the same."""
        if self.leave_out_likewise(packet, publisher_account):
            return
        self.accepted += 1
        packet = self._with_sender(packet) if self.wants_sender else packet
        if self._state in (outbox_state.CLOSED, outbox_state.AWAY):
            self._decide(packet, publisher_account)
            return
        if self.is_flowing:
            self._enter(outbox_state.OUT_OF_TIME)
            self._listener.wait_for_time()
        if self.flood_control.hard is Hard.ERROR:
            self._fail(packet, "its user takes too much time for others' messages")
        elif may_keep and self.keeps_left_out(publisher_account):
            self._overshoot(packet, publisher_account, NO_SIZE)
        else:
            self._drop_likewise(packet, "fan-out", NO_SIZE)
        self._share_waiting()

    def keeps_left_out(self, publisher_account: int) -> bool:
        """Whether `leave_out` holds publishers with this account back, and so loses no message."""
        if self.flood_control.hard is not Hard.BLOCK or self._backpressure is None:
            return False
        return self._backpressure.may_hold(publisher_account)

    def send_control(self, packet: bytes, is_reply: bool = False) -> None:
        """Send a control message, behind everything accepted so far. If it is the reply to the
        client's request, a successor is not to carry that out again."""
        if self.is_flowing:
            try:
                self._send_control(packet, is_reply)
                return
            except OSError as error:
                if self._has_more_room_after(error):
                    self.send_control(packet, is_reply)
                    return
                self._on_failed_send(error)
        if not self.is_closed:
            self._settle_drops()
            self._backlog.append_control(packet, is_reply)

    def _send_control(self, packet: bytes, is_reply: bool) -> None:
        if is_reply and self._slot is not None:
            with self._slot.replying():
                self._send(packet)
        else:
            self._send(packet)

    def _enter(self, event: outbox_state.Event) -> None:
        before, self._state = self._state, outbox_state.TRANSITIONS[self._state][event]
        if self._state is before:
            return
        self.decide_anew()
        self.is_flowing = self._state is outbox_state.FLOWING
        self.is_closed = self._state in (outbox_state.CLOSED, outbox_state.AWAY)
        if self._state is outbox_state.CLOSED:
            self.fd = -1

    def _has_more_room_after(self, error: OSError) -> bool:
        """Whether the socket, which had no room for a packet, has a larger buffer now. Messages
        that may be replaced, or become too old, wait in the backlog instead, if they may."""
        chosen = self.flood_control
        may_wait = chosen.wants_fresh and chosen.soft is _QUEUE
        may_enlarge = error.errno == EMSGSIZE or (error.errno == EAGAIN and not may_wait)
        return may_enlarge and self._listener.enlarge_buffer()

    def _on_failed_send(self, error: OSError) -> None:
        """The socket took nothing. Raises what a peer cannot cause."""
        event = outbox_state.EVENTS.get(error.errno)
        if event is None:
            raise error
        if event is outbox_state.CLOSE:
            had_controls = self._backlog.controls
            self.close()
            if had_controls:
                self._listener.on_control_sent()
            return
        self._enter(event)
        if event is outbox_state.OUT_OF_MEMORY:
            self._listener.retry_later()
        elif event is outbox_state.OUT_OF_TIME:
            self._listener.wait_for_time()
        else:
            self._wait_for_room()

    def _wait_for_room(self) -> None:
        if not self.watches_room:
            self.watches_room = True
            self._listener.watch_room(True)

    def _try_to_send(self, packet: bytes) -> bool:
        """Send this message behind what waits, if no message does; whether it was sent."""
        if self.is_closed or self._backlog.messages:
            return False
        self._settle_drops()
        try:
            while self._backlog:
                self._send_first()
            self.delivered_bytes += self._send(packet)
        except OSError as error:
            if self._has_more_room_after(error):
                return self._try_to_send(packet)
            self._on_failed_send(error)
            return False
        self._on_backlog_sent()
        return True

    # -- what the socket did not take ----------------------------------------------------------
    def _decide(self, packet: bytes, publisher_account: int) -> None:
        """Follow the soft policy. That the kernel has no memory is no fault of the client's."""
        self._settle_drops()
        soft = self.flood_control.soft
        if self._state is outbox_state.AWAY:
            self.accepted -= 1
            self.retract(packet)
            return
        if self.is_closed:
            self._leave_undelivered(packet)
            return
        if soft is _QUEUE or self._state is outbox_state.NO_MEMORY:
            self._offer(packet, publisher_account)
        elif soft is Soft.BLOCK:
            self._overshoot(packet, publisher_account, 0)
        elif soft is Soft.ERROR:
            self._fail(packet, "the client's socket was full")
        else:
            self._drop_likewise(packet, "soft", 0)
        self._share_waiting()

    def _offer(self, packet: bytes, publisher_account: int) -> None:
        """Put a message in the backlog, or follow the hard policy."""
        exceeded = self._backlog.offer(packet)
        if exceeded is not None and self._drop_aged_for_room():
            exceeded = self._backlog.offer(packet)
        if exceeded is None:
            return
        if exceeded == "quota":
            self._listener.on_quota_reached()
        from_bytes = NO_SIZE if self.flood_control.wants_fresh else len(packet)  # one may fit
        if self.flood_control.hard is Hard.BLOCK:
            self._overshoot(packet, publisher_account, from_bytes)
        elif self.flood_control.hard is Hard.ERROR:
            self._fail(packet, "the client's backlog was full")
        else:
            self._drop_likewise(packet, exceeded, from_bytes)

    def _overshoot(self, packet: bytes, publisher_account: int, from_bytes: int) -> None:
        """Keep a message all the same and hold its publisher back, if that may be held. There is no
        room for messages of `from_bytes` and more."""
        backpressure = self._backpressure
        if backpressure is None:
            self._drop_likewise(packet, "unheld", from_bytes)
        elif not backpressure.concerns(publisher_account):
            self._drop_likewise(packet, "unheld", from_bytes, backpressure.rule.holds)
        elif not backpressure.may_hold(publisher_account):
            self._drop(packet, "unheld")
        elif self._backlog.overshoot(packet):
            backpressure.stall()
        else:
            self._drop(packet, "hard")

    def _end_stall_if_room(self) -> None:
        """Let publishers go on if this client has room for what they send."""
        if self._backpressure is None or not self._backpressure.is_stalled:
            return
        chosen, has_room = self.flood_control, True
        if chosen.soft is Soft.BLOCK:
            has_room = not self._backlog.messages
        elif chosen.soft is _QUEUE and chosen.hard is Hard.BLOCK:
            has_room = self._backlog.is_half_free()
        if has_room:
            self._backpressure.end_stall()

    def _fail(self, packet: bytes, text: str) -> None:
        self.fault = Misbehaviour("too-slow", text)
        self._count_undelivered(1, len(packet))
        self.close()
        self._listener.on_fault()

    # -- what goes -----------------------------------------------------------------------------
    def send_backlog(self, cost_max: int) -> tuple[int, bool]:
        """A turn: send until it has cost this much. Returns the cost, and whether more waits."""
        self.decide_anew()
        if not self._backlog:
            return 0, False
        cost = 0
        is_sorted = self.flood_control.needs_sorting
        try:
            while self._backlog and cost < cost_max:
                cost += (is_sorted and self._make_ready(cost_max - cost)) or self._send_first()
        except OSError as error:
            if self._has_more_room_after(error):
                return cost, True
            self._on_failed_send(error)
            return cost, False
        if self._backlog:
            return cost, True
        if not self.is_closed:
            self._on_backlog_sent()
        return cost, False

    def _make_ready(self, cost_max: int) -> int:
        """Drop what is too old, and find what is next in the order; returns the cost."""
        if cost := self._drop_aged_for(cost_max) or self._backlog.index_for(cost_max):
            self._share_waiting()
            self._end_stall_if_room()
        return cost

    def _on_backlog_sent(self) -> None:
        self._enter(outbox_state.BACKLOG_SENT)
        if self.watches_room:
            self.watches_room = False
            self._listener.watch_room(False)

    def _send_first(self) -> int:
        """Send what is the first in the backlog; returns the cost."""
        first = self._backlog.first()
        if isinstance(first, bytes):
            self.delivered_bytes += self._send(first)
            self._backlog.pop()
            self._share_waiting()
            self._end_stall_if_room()
            return _COST_PER_PACKET + len(first) // BYTES_PER_UNIT
        if isinstance(first, ControlMessage):
            self._send_control(first.packet, first.is_reply)
        elif self.wants_notices:
            self._send(controls.lost_notice(first.count))
        self._backlog.pop()
        self._share_waiting()
        if isinstance(first, ControlMessage):
            self._listener.on_control_sent()
        return _COST_PER_PACKET

    # -- moving, and a worker's death ----------------------------------------------------------
    def admit_loss(self, messages: int) -> None:
        """So many messages for the client were lost with another worker."""
        if not self.is_closed:
            self._settle_drops()
            self._backlog.record_drops(messages)
            self._share_waiting()
            if self.is_flowing:
                self._enter(outbox_state.SOCKET_FULL)
                self._wait_for_room()

    def leave(self) -> None:
        """Another worker serves the client from now on; only an outbox at rest may be left."""
        self._enter(outbox_state.LEAVE)

    def arrive(self, flood_control: FloodControl) -> None:
        """This worker serves the client from now on, which has chosen this."""
        self._control_flood(flood_control)
        self._enter(outbox_state.ARRIVE)

    def resume_backlog(self) -> None:
        """The client has arrived: what waits is sent."""
        self._share_waiting()
        if self._backlog:
            self._enter(outbox_state.SOCKET_FULL)
            self._wait_for_room()

    # -- the end -------------------------------------------------------------------------------
    def close(self) -> None:
        """Deliver no more; what is in the backlog stays undelivered."""
        self._settle_drops()
        self._count_undelivered(self._backlog.messages, self._backlog.bytes)
        self._backlog.clear()
        self._end_stall_if_room()
        self._enter(outbox_state.CLOSE)
