"""Attack: a process has so many groups that the bus needs some 25 ms to find out whose it is now,
which it does for each message to the process.

That takes a bounded share of a worker's time, and what is not delivered for it is told as lost.
"""

import os

import pytest

from tests.support.admin import administer
from tests.support.bus import running_bus
from tests.support.children import child_that
from tests.support.pattern_bombs import connect_as
from tests.support.raw_client import RawClient
from tests.support.users import STRANGER, become, directory_for_everybody, needs_root

pytestmark = needs_root

VICTIM = STRANGER - 1
GROUPS = 65_536
"""As many as a process may have. A user with subordinate group ids can give it so many."""
MESSAGES = 100


@pytest.mark.parametrize("choice", [b"blocking/hard/discard", b"blocking/hard/block"])
def test_most_messages_to_its_process_are_lost(choice: bytes) -> None:
    """Also where no message is to be lost: one that nobody has looked for cannot be kept."""
    with directory_for_everybody() as directory, running_bus(directory, "-o", workers=1) as bus:

        def subscribe() -> RawClient:
            become(groups=range(GROUPS))()
            client = RawClient(bus.address)
            client.control(choice)
            client.sub(b"!/cred///%d/" % os.getpid())
            client.whoami()
            return client

        with (
            child_that(subscribe) as pid,
            connect_as(bus, STRANGER) as publisher,
            connect_as(bus, VICTIM) as victim,
            administer(bus) as admin,
        ):
            for _ in range(MESSAGES):
                publisher.pub(b"!/cred///%d/k" % pid, b"")
                victim.whoami()
            publisher.sync()
            traffic = admin.ask("stats")["traffic"]
    lost = traffic["discarded"]["fan-out"]
    assert MESSAGES / 2 < lost < MESSAGES
    assert traffic["delivered"] + traffic["backlog"] == MESSAGES - lost
