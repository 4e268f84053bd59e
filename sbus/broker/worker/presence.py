"""Presence: clients of this worker take names, and give them back when they go.

A client that goes has its name until the log and the table have room for what tells of that: a
*departure*, which is made in background steps. It publishes the client's will and that it has left,
in this order, at one place in the total order. What is journalled of a name outlives the worker. So
a successor makes the departures that its predecessor has not made, and a client whose name is
journalled is told of, and its will published, exactly once.

    departures + names of sessions that are served  <=  journalled names of this worker's clients
"""

from collections.abc import Iterator

from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.members import Members, NamedClient
from sbus.broker.worker.presence_steps import CheckMembers, NameChange
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session, name_bytes
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.broker.worker.wait_queue import FOR_ROOM, Wait
from sbus.errors import ClientFault, Refusal
from sbus.protocol.keys import check_key
from sbus.protocol.packets import NUL, PUBLISH_WORD
from sbus.protocol.presence import (
    GAVE_UP,
    LEFT,
    Member,
    key_of_will,
    members_reply,
)
from sbus.protocol.presence_keys import parse_name_pattern
from sbus.shared.accounts import BUS
from sbus.shared.log_block import Publisher
from sbus.shared.subscription_table import encode_record


class Presence:
    """Of one worker."""

    def __init__(
        self, context: WorkerContext, sequencer: Sequencer, subscriptions: Subscriptions
    ) -> None:
        self._context = context
        self._sequencer = sequencer
        self._steps = sequencer.presence
        self._subscriptions = subscriptions
        self.departures = 0
        """That are not made yet."""

    # -- what clients ask for ------------------------------------------------------------------
    def join(self, session: Session, name: bytes, will: bytes) -> Wait | None:
        """Give a client a name, unless it has that already; returns what it has to wait for, if
        anything. Raises Refusal, Misbehaviour."""
        if (session.name, session.will) == (name, will):
            return None  # a worker has died before its reply was sent
        if session.name:
            raise Refusal("has-name", "you have a name: a connection has one at most")
        if will:
            self._check_will(session, key_of_will(will))
        self._subscriptions.quotas.check_room(session, name_bytes(name, will))
        named = _named(session, name, will)
        record = named.taken(self._context.worker)
        message = _own_key(named.member), named.member.join_message()
        change = NameChange(
            record=record,
            publisher=session.publisher,
            session=session,
            account=session.account,
            messages=[message],
            is_removal=False,
            check=_check_free(named),
        )
        wait = self._steps.announce(change)
        if wait is None:
            session.set_name(name, will)
        elif wait is FOR_ROOM and self._sequencer.is_table_full(encode_record(record)):
            raise Refusal("table-full", "the bus has no room for more names")
        return wait

    def leave(self, session: Session) -> Wait | None:
        """Take a client's name back, which it has given up; returns what it has to wait for, if
        anything."""
        if not session.name:
            return None
        named = _named(session, session.name, session.will)
        wait = self._steps.announce(self._removal(named, GAVE_UP, session))
        if wait is None:
            session.set_name(b"", b"")
        return wait

    def list_members(self, session: Session, payload: bytes) -> bytes | None:
        """The reply to a client that asks who has names; None: try again when woken. Raises
        Refusal."""
        pattern, _, after = payload.partition(NUL)
        wanted = parse_name_pattern(pattern)
        uid, name, _ = parse_name_pattern(after) if after else (None, b"", False)
        if not self._steps.barrier():
            return None
        found = self._steps.members.matching(wanted, None if uid is None else (uid, name))
        rules, may_receive = session.profile.subscribe, self._context.rules.may_receive
        return members_reply(member for member in found if may_receive(rules, member.key))

    def _check_will(self, session: Session, key: bytes) -> None:
        """Raise ClientFault unless a client may publish under this key."""
        check_key(key, self._context.dialect, self._context.settings.limits)
        if self._context.rules.denied_by(session.profile.publish, key) is not None:
            raise Refusal("not-allowed", "you may not publish under the key of this will")

    # -- clients that go -----------------------------------------------------------------------
    def depart(self, session: Session, reason: str) -> None:
        """A client goes for this reason, or of itself if that is empty."""
        if session.name:
            named = _named(session, session.name, session.will)
            self._begin_departure(named, reason or LEFT, session)

    def depart_unserved(self, named: NamedClient) -> None:
        """A client has gone that a predecessor has served."""
        self._begin_departure(named, LEFT, None)

    def _begin_departure(self, named: NamedClient, reason: str, session: Session | None) -> None:
        self.departures += 1
        steps = self._depart(named, reason, session)
        self._subscriptions.add_background_steps(named.account_place, steps)
        self._context.wake()

    def _depart(self, named: NamedClient, reason: str, session: Session | None) -> Iterator[bool]:
        change = self._removal(named, reason, session)
        while not self._has_departed(change):
            yield False
        self.departures -= 1
        if session is not None:
            session.set_name(b"", b"")

    def _has_departed(self, change: NameChange) -> bool:
        try:
            return self._steps.announce(change) is None
        except Refusal:
            return True  # another worker has told of it

    def _removal(self, named: NamedClient, reason: str, session: Session | None) -> NameChange:
        member = named.member
        messages = [(_own_key(member), member.leave_message(reason))]
        if named.will and reason != GAVE_UP and self._may_publish_will(named, session):
            messages.insert(0, (key_of_will(named.will), PUBLISH_WORD + named.will))
        account = self._context.accounts[named.account_place]
        if account.uid != member.uid:  # it has been closed, and may be another user's
            account = self._context.accounts[BUS]
        own = member.client, named.own_uid, member.gid, member.pid
        return NameChange(
            record=named.given_back(self._context.worker),
            publisher=Publisher(*own, account.place),
            session=session if reason == GAVE_UP else None,
            account=account,
            messages=messages,
            is_removal=True,
            check=_check_member(member),
        )

    def _may_publish_will(self, named: NamedClient, session: Session | None) -> bool:
        """Whether the limits of this bus and the present rules allow what was allowed before. The
        rules of a client that is not here are not known."""
        key = key_of_will(named.will)
        try:
            if session is None:
                check_key(key, self._context.dialect, self._context.settings.limits)
            else:
                self._check_will(session, key)
        except ClientFault:
            return False
        return True

    # -- clients of other workers --------------------------------------------------------------
    def journal_arrival(self, session: Session) -> bool:
        """Journal the name of a client that comes from another bus; False when there is no room
        for it."""
        if not session.name:
            return True
        record = _named(session, session.name, session.will).taken(self._context.worker)
        if not self._sequencer.journal(encode_record(record), frees=True):
            return False
        self._steps.members.apply(record)  # a worker does not read what it has journalled itself
        return True


def _named(session: Session, name: bytes, will: bytes) -> NamedClient:
    member = Member(session.account.uid, name, session.client, session.gid, session.pid)
    return NamedClient(member, session.slot.number, session.uid, session.account_place, will)


def _own_key(member: Member) -> bytes:
    """The key of messages that only the bus publishes."""
    return member.key + NUL


def _check_free(named: NamedClient) -> CheckMembers:
    def check(members: Members) -> None:
        if members.get(*named.key) is not None:
            raise Refusal("name-taken", "another client of your user has this name")

    return check


def _check_member(member: Member) -> CheckMembers:
    def check(members: Members) -> None:
        if members.get(member.uid, member.name) != member:
            raise Refusal("name-taken", "the client does not have this name")

    return check
