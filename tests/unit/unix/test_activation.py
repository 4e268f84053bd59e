"""Which passed sockets are the bus's, which its administrator's, and what is no such thing."""

import os
from unittest.mock import patch

import pytest

from sbus.errors import ConfigurationError
from sbus.unix.activation import (
    PassedSockets,
    forget_passed_sockets,
    take_passed_sockets,
    take_stored_descriptors,
)
from sbus.unix.address import FdAddress
from sbus.unix.descriptor_store import StoredDescriptors

BUS, ADMIN = FdAddress(3), FdAddress(4)


def passing(count: int | str, names: str | None = None, *, pid: int | str = "") -> dict[str, str]:
    """The environment in which a service manager passes this many sockets to this process."""
    variables = {"LISTEN_PID": str(pid or os.getpid()), "LISTEN_FDS": str(count), "HOME": "/root"}
    return variables if names is None else {**variables, "LISTEN_FDNAMES": names}


@pytest.mark.parametrize("name", [None, "", "unknown", "sbusd.socket", "bus", "x y"])
def test_a_single_socket_is_the_bus_s_whatever_its_name(name: str | None) -> None:
    assert take_passed_sockets(passing(1, name)) == PassedSockets(BUS, None)


def test_two_sockets_are_told_apart_by_their_names() -> None:
    assert take_passed_sockets(passing(2, "bus:admin")) == PassedSockets(BUS, ADMIN)
    assert take_passed_sockets(passing(2, "admin:bus")) == PassedSockets(ADMIN, BUS)


@pytest.mark.parametrize(
    ("count", "names", "shown"),
    [
        (1, "admin", "admin"),
        (2, None, "(no name), (no name)"),
        (2, "sbusd.socket:sbusd-admin.socket", "sbusd.socket, sbusd-admin.socket"),
        (2, "bus:bus", "bus, bus"),
        (2, "bus:metrics", "bus, metrics"),
        (2, "admin:admin", "admin, admin"),
        (3, "bus:admin:", "bus, admin, (no name)"),
        (2, "bus:\n", "bus, \\\\n"),
    ],
)
def test_any_other_sockets_are_an_error_that_names_them(
    count: int, names: str | None, shown: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        take_passed_sockets(passing(count, names))
    text = str(caught.value)
    assert shown.replace("\\\\", "\\") in text
    assert "FileDescriptorName" in text
    assert text.isprintable()


def test_a_name_is_missing() -> None:
    with pytest.raises(ConfigurationError, match="2 sockets and 1 names"):
        take_passed_sockets(passing(2, "bus"))


@pytest.mark.parametrize("count", ["", "-1", "two", "9" * 40])
def test_an_invalid_count_is_an_error(count: str) -> None:
    with pytest.raises(ConfigurationError, match="LISTEN_FDS is no number"):
        take_passed_sockets(passing(count))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_PID": str(os.getpid())},
        passing(0),
        passing(1, pid=os.getppid()),
    ],
    ids=["nothing", "no pid", "no count", "none", "somebody else's"],
)
def test_nothing_is_passed(environment: dict[str, str]) -> None:
    assert take_passed_sockets(environment) is None
    assert not environment.keys() & {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}


def test_stored_descriptors_come_behind_sockets() -> None:
    environment = passing(4, "bus:admin:@m5:@a")
    numbers: list[tuple[str, int]] = []
    with patch.object(StoredDescriptors, "of", lambda pairs: numbers.extend(pairs)):
        take_stored_descriptors(environment)
    assert numbers == [("@m5", 5), ("@a", 6)]
    assert take_passed_sockets(environment) == PassedSockets(BUS, ADMIN)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        passing(2, "bus:admin"),
        passing(1, "bus:@1"),
        passing(2, "bus:@1", pid=os.getppid()),
    ],
    ids=["nothing", "sockets", "another number", "somebody else's"],
)
def test_nothing_is_stored(environment: dict[str, str]) -> None:
    before = dict(environment)
    assert take_stored_descriptors(environment) == StoredDescriptors()
    assert environment == before


def test_the_variables_are_removed_and_no_others() -> None:
    environment = passing(2, "bus:admin")
    take_passed_sockets(environment)
    assert environment == {"HOME": "/root"}


def test_invalid_variables_can_be_forgotten() -> None:
    environment = passing("two", "metrics")
    forget_passed_sockets(environment)
    assert environment == {"HOME": "/root"}
