"""Who may connect: the mode of the socket's file, `-u`, `-g` and `-o`, tried as other users."""

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bus import bus_of
from tests.support.raw_client import RawClient
from tests.support.users import STRANGER, as_user, directory_for_everybody, needs_root

pytestmark = needs_root

ABSTRACT = ("-fa", "/dev/unix/abstract", "--workers=1")
OWN_GID = os.getegid()


@pytest.fixture
def directory() -> Iterator[Path]:
    with directory_for_everybody() as entered_by_all:
        yield entered_by_all


def is_served(address: str) -> bool:
    """Whether this process is let in; anything but that or a clean refusal is an error."""
    try:
        with RawClient(address) as client:
            client.control(b"!/cred/whoami")
            reply = client.receive()
    except (PermissionError, ConnectionResetError, BrokenPipeError):
        return False
    if not reply or reply.startswith(b"CMSG !/error\0not-admitted "):
        return False
    expected = f"!/cred/{os.getegid()}/{os.geteuid()}/{os.getpid()}"
    assert reply == b"CMSG !/cred/whoami\0" + expected.encode()
    return True


# -- a path: its mode ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("widening", "group_may", "others_may"),
    [((), False, False), (("-g",), True, False), (("-o",), True, True), (("-go",), True, True)],
)
def test_mode_of_a_path_decides(
    directory: Path, widening: tuple[str, ...], group_may: bool, others_may: bool
) -> None:
    path = str(directory / "bus")
    with bus_of(directory, "-fa", path, "--workers=1", *widening, address=path):
        assert is_served(path)
        assert as_user(lambda: is_served(path), gid=OWN_GID) is group_may
        assert as_user(lambda: is_served(path), groups=[OWN_GID]) is group_may
        assert as_user(lambda: is_served(path)) is others_may


def test_a_user_whom_the_mode_keeps_out_is_told_of(directory: Path) -> None:
    path = str(directory / "bus")
    users = ("-u", "0", "-u", "nobody", "-u", str(STRANGER))
    with bus_of(directory, "-fa", path, "--workers=1", *users, address=path) as bus:
        assert not as_user(lambda: is_served(path))
    assert bus.stderr_text() == (
        f"sbusd: warning: nobody, {STRANGER} of -u cannot connect, because the mode of {path} is "
        "0700: add -o, with which still only users of -u may\n"
    )


def test_users_of_a_path_for_the_group_are_those_named_who_are_in_it(directory: Path) -> None:
    path = str(directory / "bus")
    options = ("--workers=1", "-g", "-u", str(STRANGER))
    with bus_of(directory, "-fa", path, *options, address=path) as bus:
        assert not bus.stderr_text(), "no warning: users may open the socket"
        assert is_served(path)
        assert as_user(lambda: is_served(path), groups=[OWN_GID])
        assert not as_user(lambda: is_served(path))
        assert not as_user(lambda: is_served(path), uid=STRANGER - 1, groups=[OWN_GID])


def test_the_users_option_restricts_what_the_mode_allows(directory: Path) -> None:
    path = str(directory / "bus")
    options = ("--workers=1", "-o", "-u", str(STRANGER), "-u", "0")
    with bus_of(directory, "-fa", path, *options, address=path) as bus:
        assert not bus.stderr_text(), "no warning: users may open the socket"
        assert is_served(path)
        assert as_user(lambda: is_served(path))
        assert not as_user(lambda: is_served(path), uid=STRANGER - 1)
        assert f"uid {STRANGER - 1}" in bus.stderr_text()
        assert is_served(path), "one who was refused costs the others nothing"


def test_users_are_given_by_name_and_the_owner_may_always_connect(directory: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    with bus_of(directory, *ABSTRACT, "-u", "nobody") as bus:
        assert is_served(bus.address)
        assert as_user(lambda: is_served(bus.address), uid=nobody.pw_uid)
        assert not as_user(lambda: is_served(bus.address))


# -- an abstract address: no mode ------------------------------------------------------------------


def test_abstract_address_is_for_the_group_with_g(directory: Path) -> None:
    with bus_of(directory, *ABSTRACT, "-g") as bus:
        assert is_served(bus.address)
        assert as_user(lambda: is_served(bus.address), gid=OWN_GID)
        assert as_user(lambda: is_served(bus.address), groups=[OWN_GID])
        assert not as_user(lambda: is_served(bus.address))


def test_refused_connections_do_not_count_for_exit_when_empty(directory: Path) -> None:
    with bus_of(directory, *ABSTRACT, "-c") as bus:
        assert not as_user(lambda: is_served(bus.address))
        assert is_served(bus.address)
        assert bus.process.wait(60) == 0
