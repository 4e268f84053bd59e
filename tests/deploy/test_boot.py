"""A bus that starts with its host, with a real systemd: before the directory of users, and with a
configuration that is wrong for a while."""

from typing import Any

import pytest

from tests.deploy import boot_probe, booted
from tests.deploy.boot_probe import FRIEND, LATER, LOCAL, STRANGER

pytestmark = pytest.mark.skipif(booted.why_not() is not None, reason=str(booted.why_not()))


@pytest.fixture(scope="module")
def seen() -> Any:
    return booted.boot(boot_probe.__name__)


def test_the_bus_serves_before_all_names_are_found(seen: Any) -> None:
    assert seen["before"]["missing"] == 3  # one user is named twice


def test_a_name_that_is_not_found_gives_nobody_a_right(seen: Any) -> None:
    """Any user that the host's own files do not name may be the one who may not connect."""
    connect = {str(LATER): False, str(FRIEND): False, str(STRANGER): False, str(LOCAL): True}
    assert seen["before"]["connect"] == connect
    assert seen["before"]["publish"] == {str(LOCAL): True}


def test_names_that_are_found_later_count_from_then_on(seen: Any) -> None:
    connect = {str(LATER): False, str(FRIEND): True, str(STRANGER): True, str(LOCAL): True}
    assert seen["after"]["connect"] == connect
    publish = {str(FRIEND): True, str(STRANGER): False, str(LOCAL): True}
    assert seen["after"]["publish"] == publish
    assert seen["after"]["missing"] == 0


def test_missing_names_are_in_the_log(seen: Any) -> None:
    assert "rules[2].users[0]: there is no user 'later'" in seen["stderr"]


def test_sockets_outlive_a_bus_that_cannot_start(seen: Any) -> None:
    states = seen["while failing"]
    assert (states["sbusd.socket"], states["sbusd-admin.socket"]) == ("active", "active")


def test_a_client_that_waits_is_served_once_the_bus_can_start(seen: Any) -> None:
    assert seen["served"].startswith("CMSG !/cred/whoami\0")
    assert set(seen["mended"].values()) == {"active"}
