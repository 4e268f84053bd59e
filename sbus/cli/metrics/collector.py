"""A bus as a collector for Prometheus' client library.

Every collection asks the admin socket again, over a connection of its own, and takes a bounded
time. If the bus is down, or does not answer, `sbus_up` is 0.
"""

import heapq
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from sbus.bridge.status import BridgeStatus
from sbus.cli.metrics.bridge_families import collect_bridge
from sbus.cli.metrics.families import Snapshot, collect
from sbus.cli.terminal.error_output import report_error
from sbus.client.admin import AdminConnection
from sbus.errors import SbusError
from sbus.protocol.admin import PAGE_MAX, Stats, Users, Version
from sbus.protocol.admin_results import StatsResult, UserReport, UsersResult, VersionResult
from sbus.unix.address import admin_address, parse_address
from sbus.unix.default_address import default_address

ANSWER_SECONDS_MAX = 5.0
"""How long the bus may take for one answer; Prometheus gives a scrape ten seconds."""


class BusCollector:
    """Collects from the bus at `bus_address`, the default one if None, or from the admin socket at
    `address`, if given."""

    def __init__(
        self,
        bus_address: str | None,
        *,
        address: str | None = None,
        users_max: int,
        ask_bridge: Callable[[], BridgeStatus] | None = None,
    ) -> None:
        """`ask_bridge` asks the bridge of the bus, if it is to be asked. Raises AddressError for a
        malformed address; a bus that is not there is no error."""
        if address is None:
            parsed = admin_address(parse_address(bus_address or default_address()))
        else:
            parsed = parse_address(address)
        self._address = parsed.format()
        self._users_max = users_max
        self._last_error = ""
        self._ask_bridge = ask_bridge

    def collect(self) -> Iterator[Metric]:
        """The families with the figures of now. Each error is reported once in a row."""
        snapshot = bridge = None
        error_text = ""
        try:
            snapshot = self._ask()
            bridge = self._ask_bridge and self._ask_bridge()
        except (SbusError, OSError) as error:
            error_text = str(error)
            if error_text != self._last_error:
                report_error(error_text, command="sbusctl")
        self._last_error = error_text
        yield from collect(snapshot)
        if bridge is not None:
            yield from collect_bridge(bridge)

    def _ask(self) -> Snapshot:
        with AdminConnection(address=self._address, timeout_seconds=ANSWER_SECONDS_MAX) as admin:
            version = admin.ask(Version(), VersionResult)
            stats = admin.ask(Stats(), StatsResult)
            users = self._ask_users(admin)
        return Snapshot(version, stats, users, max(0, stats.users - len(users)))

    def _ask_users(self, admin: AdminConnection) -> list[UserReport]:
        """Those who use most of a limit, in the order of their ids."""
        users: list[UserReport] = []
        after: int | None = -1 if self._users_max else None
        while after is not None:
            page = admin.ask(Users(after=after, limit=PAGE_MAX), UsersResult)
            users = heapq.nlargest(self._users_max, [*users, *page.users], key=_use)
            after = page.next
        return sorted(users, key=lambda user: user.uid)


def _use(user: UserReport) -> tuple[float, int, int]:
    """By which users are chosen: the largest part of any limit that they use, then what was
    discarded; of equal ones, the lower id comes first."""
    limits = user.limits
    used = (
        (user.connections, limits.connections_max),
        (user.subscriptions, limits.subscriptions_max),
        (user.subscription_bytes, limits.subscription_bytes_max),
        (user.match_steps, limits.match_steps_max),
        (user.backlog_bytes, limits.backlog_bytes_max),
        (user.held_seconds, limits.held_seconds_max),
    )
    share = max(use / limit if limit else float(use > 0) for use, limit in used)
    return share, user.discarded, -user.uid


def registry_of(collector: BusCollector) -> CollectorRegistry:
    """A registry with this collector only."""
    registry = CollectorRegistry(support_collectors_without_names=True)
    registry.register(collector)
    return registry


def openmetrics_text(collector: BusCollector) -> bytes:
    """The figures of now, as OpenMetrics text."""
    content: bytes = generate_latest(registry_of(collector))  # type: ignore[no-untyped-call]
    return content
