"""A bus on a host where a user has subordinate ids (subuid(5)), and clients of such users. Only
root can have them."""

from pathlib import Path

from tests.support.bus import SBUSD, Bus
from tests.support.raw_client import RawClient
from tests.support.users import effective_user

OWNER = 70_001
FIRST = 200_000
"""The first of the owner's subordinate ids."""
_ANOTHER_FILE = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/subuid && exec "$@"')


def with_subordinate_ids(directory: Path) -> tuple[str, ...]:
    """The command of a bus on a host where the owner has these ids."""
    (directory / "subuid").write_text(f"{OWNER}:{FIRST}:65536\n")
    return (*_ANOTHER_FILE, str(directory / "subuid"), *SBUSD)


def connect_as(bus: Bus, uid: int) -> RawClient:
    """A client of this user, and of the group with the same number."""
    with effective_user(uid):
        return bus.connect()
