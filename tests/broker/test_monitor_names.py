"""Watching the messages of a bus: what the bus itself publishes about names is among them.

Who watches gets the same messages as clients that subscribe to them, and the same wills.
"""

import os
from collections.abc import Iterator

import pytest

from sbus.client.message_joiner import MonitoredMessage
from sbus.client.streams import MessageStream
from tests.support.bus import Bus, running_bus
from tests.support.presence import join, leave
from tests.support.processes import several_clients
from tests.support.secrets import OWN, secret
from tests.support.streams import TIMEOUT_S, messages_of, messages_to_end

EVERYBODY = b"!/presence/*/*"
KEY = f"!/presence/{os.geteuid()}/member"


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with running_bus(tmp_path_factory.mktemp("bus"), workers=3) as running:
        yield running


def up_to_leave(stream: MessageStream) -> list[MonitoredMessage]:
    """Everything up to the message that a member has left."""
    found: list[MonitoredMessage] = []
    while not (found and (found[-1].payload or b"").startswith(b"leave ")):
        for one in stream.receive_many(TIMEOUT_S):
            assert isinstance(one, MonitoredMessage)
            found.append(one)
    return found


@pytest.mark.parametrize("watchers", [0, 4])
def test_joins_and_leaves_are_shown_with_their_client_and_recipients(
    bus: Bus, watchers: int
) -> None:
    with several_clients(bus, 5) as (member, *others), messages_of(bus, payload=True) as stream:
        for watcher in others[:watchers]:
            watcher.sub(EVERYBODY)
            watcher.whoami()
        join(member, b"member")
        leave(member)
        told = [watcher.sync() for watcher in others[:watchers]]
        joined, left = messages_to_end(stream, member)
    for one, what in ((joined, b"join"), (left, b"leave")):
        ids = b"%d %d %d" % (one.client, os.getegid(), os.getpid())
        reason = b" gave-up" if what == b"leave" else b""
        assert (one.key, one.payload) == (KEY, b"%b %b%b" % (what, ids, reason))
        assert (one.uid, one.gid, one.pid) == (os.geteuid(), os.getegid(), os.getpid())
        assert one.program == joined.program != ""
        assert one.recipients == watchers
    shown = [b"MSG %b\0%b" % (one.key.encode(), one.payload or b"") for one in (joined, left)]
    assert told == [shown] * watchers


def test_a_will_is_shown_before_the_leave_of_its_client(bus: Bus) -> None:
    with several_clients(bus, 3) as (member, *others), messages_of(bus, payload=True) as stream:
        for heir in others:
            heir.sub(b"wills/*")
            heir.whoami()
        join(member, b"member", b"wills/member\0last words")
        member.close()
        joined, will, left = up_to_leave(stream)
    assert (will.key, will.payload, will.recipients) == ("wills/member", b"last words", 2)
    assert will.client == joined.client == left.client
    assert (left.key, left.recipients) == (KEY, 0)


def test_only_its_key_is_shown_of_a_secret_will(bus: Bus) -> None:
    key = secret(OWN)
    with several_clients(bus, 1) as (member,), messages_of(bus, payload=True) as stream:
        join(member, b"member", key + b"\0secret")
        member.close()
        _, will, _ = up_to_leave(stream)
    assert (will.key.encode(), will.size, will.payload) == (key, None, None)


def test_names_are_shown_to_who_watches_everything_or_these_names(bus: Bus) -> None:
    with (
        several_clients(bus, 1) as (member,),
        messages_of(bus, b"!/presence/*/mem*", b"the/end") as some,
        messages_of(bus, b"!/presence/*/other", b"", b"*/") as others,
    ):
        join(member, b"member")
        leave(member)
        assert [one.key for one in messages_to_end(some, member)] == [KEY, KEY]
        # They end with the message that ended the others, or with another one of this key.
        assert {one.key for one in messages_to_end(others, member)} <= {"the/end"}
