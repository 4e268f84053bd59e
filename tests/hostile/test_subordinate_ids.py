"""The subordinate ids of a user (/etc/subuid) do not use up the accounts of others."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support.admin import administer
from tests.support.bus import Bus, running_bus
from tests.support.subordinate_ids import FIRST, OWNER, connect_as, with_subordinate_ids
from tests.support.threads import wait_until
from tests.support.users import STRANGER, directory_for_everybody, needs_root

pytestmark = needs_root

ACCOUNTS = 64
IDS = 70
"""More than a bus has accounts."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with directory_for_everybody() as made:
        yield made


@pytest.fixture
def bus(directory: Path) -> Iterator[Bus]:
    """A bus with few accounts, on a host where a user has subordinate ids."""
    limits = (f"--limit=users_max={ACCOUNTS}", f"--limit=user_connections_max={ACCOUNTS}")
    command = with_subordinate_ids(directory)
    with running_bus(directory, "-go", *limits, command=command) as running:
        yield running


def test_other_users_have_accounts_while_a_user_is_there_under_all_of_its_ids(bus: Bus) -> None:
    with ExitStack() as stack:
        for uid in range(FIRST, FIRST + IDS):
            stack.enter_context(connect_as(bus, uid))
        with connect_as(bus, STRANGER) as client:
            client.whoami()
        with administer(bus) as admin:
            users = {user["uid"]: user for user in admin.ask("users")["users"]}
        assert users.keys() == {0, OWNER, STRANGER}
        assert users[OWNER]["connections"] == ACCOUNTS


def test_a_subordinate_id_is_itself_and_asks_about_its_owner(bus: Bus) -> None:
    with connect_as(bus, FIRST) as client, connect_as(bus, OWNER) as other:
        other.whoami()
        assert client.whoami().split(b"/")[3:4] == [b"%d" % FIRST]
        client.control(b"!/me")
        assert b'"uid":%d,"connections":2' % OWNER in client.receive()
        with administer(bus) as admin:
            for uid, own in ((FIRST, [FIRST]), (OWNER, [FIRST, OWNER])):
                clients = admin.ask("clients", uid=uid)["clients"]
                assert sorted(one["uid"] for one in clients) == sorted(own)


def test_users_that_come_in_numbers_replace_each_other() -> None:
    """And not a user that has been known for longer, whether it is connected or not."""
    with directory_for_everybody() as made, running_bus(made, "-go", "--limit=users_max=4") as bus:
        with connect_as(bus, STRANGER) as client:
            client.whoami()
        for uid in range(FIRST, FIRST + 20):
            wait_until(partial(is_served, bus, uid), "another user has left")
        with ExitStack() as stack:
            for uid in range(FIRST, FIRST + 20):
                stack.enter_context(connect_as(bus, uid))
            assert not is_served(bus, FIRST + 20)
            assert is_served(bus, STRANGER)


def is_served(bus: Bus, uid: int) -> bool:
    with connect_as(bus, uid) as client:
        return client.is_served("too-many-users")
