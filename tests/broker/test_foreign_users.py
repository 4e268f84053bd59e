"""A bus in a user namespace, where the kernel reports one id for all users of other namespaces."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.admin import Admin
from tests.support.bus import SBUSD, bus_of, refusal
from tests.support.raw_client import RawClient
from tests.support.users import STRANGER, as_user, directory_for_everybody, needs_root

OVERFLOW = int(Path("/proc/sys/kernel/overflowuid").read_text())
UNMAPPED = ("unshare", "--user")
MAPPED_TO_OVERFLOW = ("unshare", "--user", f"--map-user={OVERFLOW}", f"--map-group={OVERFLOW}")

pytestmark = [
    needs_root,
    pytest.mark.skipif(
        shutil.which("unshare") is None
        or subprocess.run([*UNMAPPED, "true"], check=False, capture_output=True).returncode != 0,
        reason="no user namespaces here",
    ),
]
COMMAND = tuple(word for word in SBUSD if word not in ("--run-as", str(os.geteuid())))


def abstract_address() -> str:
    return "/dev/unix/abstract/00" + os.urandom(8).hex()


def is_served(address: str) -> bool:
    try:
        with RawClient(address) as client:
            return bool(client.whoami())
    except (ConnectionResetError, BrokenPipeError, AssertionError):
        return False


@pytest.mark.parametrize("namespace", [UNMAPPED, MAPPED_TO_OVERFLOW], ids=["unmapped", "mapped"])
@pytest.mark.parametrize("group", [(), ("-g",)])
def test_a_bus_that_cannot_tell_its_owner_from_others_does_not_start(
    namespace: Sequence[str], group: Sequence[str]
) -> None:
    line = refusal(*namespace, *COMMAND, "-fa", abstract_address(), *group)
    assert "this user namespace does not translate the id of the bus's own user" in line


@pytest.mark.parametrize("namespace", [UNMAPPED, MAPPED_TO_OVERFLOW], ids=["unmapped", "mapped"])
def test_foreign_users_do_not_administer_a_bus(namespace: Sequence[str]) -> None:
    with directory_for_everybody() as directory, ExitStack() as stack:
        admin_address = abstract_address()
        options = ("-foa", "/dev/unix/abstract", "--workers=1", "--admin-address", admin_address)
        command = (*namespace, *COMMAND)
        bus = stack.enter_context(
            bus_of(directory, *options, f"--admin-group={OVERFLOW}", command=command)
        )
        assert as_user(lambda: is_served(bus.address))
        name = bytes.fromhex(admin_address.rpartition("/")[2]).ljust(108, b"\0")

        def is_turned_away() -> bool:
            try:
                with Admin(name) as admin:
                    reply = admin.exchange(b'{"verb": "stats"}')
                    return bool(reply["error"]["code"] == "not-allowed")
            except (ConnectionResetError, BrokenPipeError):
                return True

        assert as_user(is_turned_away, uid=STRANGER)


def test_named_users_are_admitted_and_the_owner_is_not_taken_for_others() -> None:
    with directory_for_everybody() as directory:
        options = ("-fa", "/dev/unix/abstract", "--workers=1", "-u", "1234")
        with bus_of(directory, *options, command=(*UNMAPPED, *COMMAND)) as bus:
            assert not as_user(lambda: is_served(bus.address))
