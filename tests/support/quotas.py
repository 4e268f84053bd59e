"""The quotas of one user: the rule by which its clients share them, and the report.

Of each quota a client takes at most as much as it leaves to the user's other clients, and of what
is the whole bus's a user takes at most as much as it leaves to others.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.bus import Bus, running_bus
from tests.support.flood import limit_options
from tests.support.threads import wait_until

_LARGE = {
    "user_connections_max": 1_000_000,
    "user_connections_per_second_max": 1_000_000,
    "user_subscriptions_max": 1_000_000,
    "user_subscription_bytes_max": 1_000_000_000,
    "bus_subscription_bytes_max": 1_000_000_000,
    "table_bytes": 256 * 1024 * 1024,
}
HARDLY_LIMITED = [word for name, n in _LARGE.items() for word in ("--limit", f"{name}={n}")]
"""The command line of a bus for measurements, on which one user may have all connections."""


def share(quota: int, used: int, own: int) -> int:
    """How many more units a client may take that has `own` of the `used` ones: as long as its use
    is then at most the quota without the user's use."""
    more = 0
    while own + more + 1 <= quota - (used + more + 1):
        more += 1
    return more


@contextmanager
def bus_with(directory: Path, workers: int, **limits: float) -> Iterator[Bus]:
    with running_bus(directory, "-go", *limit_options(**limits), workers=workers) as bus:
        yield bus


def own_names() -> set[str]:
    """What this process may be called."""
    return {
        Path("/proc/self/comm").read_text().strip(),
        os.path.basename(os.readlink("/proc/self/exe")),
    }


def assert_reported_once(bus: Bus) -> None:
    """One line for the administrator, which says who it was."""
    wait_until(lambda: bool(bus.stderr_text()), "a report")
    (line,) = bus.stderr_text().splitlines()
    for name, number in (("uid", os.getuid()), ("pid", os.getpid())):
        assert re.search(rf"\b{name}\W{number}\b", line), line
    assert any(name in line for name in own_names()), line
