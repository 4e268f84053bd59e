"""A bus as something that Prometheus' client library can collect from.

Every collection asks the admin socket anew, over a connection of its own, and takes a bounded time.
That there is no bus, or none that answers, is a figure too, `sbus_up`. Knows neither what the
figures mean nor where the text goes.
"""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from sbus.cli.metrics.families import collect
from sbus.cli.metrics.kinds import Snapshot
from sbus.cli.terminal.error_output import report_error
from sbus.client.admin import AdminConnection
from sbus.client.link import default_address
from sbus.errors import SbusError
from sbus.protocol.admin import PAGE_MAX, Stats, Users, Version
from sbus.protocol.admin_results import StatsResult, UserReport, UsersResult, VersionResult
from sbus.unix.address import admin_address, parse_address

ANSWER_SECONDS_MAX = 5.0
"""How long the bus may take for one answer; Prometheus gives a scrape ten seconds."""


class BusCollector:
    """A collector of the bus at `bus_address`, the default one if None, or of the one whose admin
    socket is at `address`."""

    def __init__(
        self, bus_address: str | None, *, address: str | None = None, users_max: int
    ) -> None:
        """Raises AddressError for what is no address; that nobody is there is no error."""
        if address is None:
            parsed = admin_address(parse_address(bus_address or default_address()))
        else:
            parsed = parse_address(address)
        self._address = parsed.format()
        self._users_max = users_max
        self._complaint = ""

    def collect(self) -> Iterator[Metric]:
        """The families, with the figures of now; why there are none is said once."""
        snapshot = None
        try:
            snapshot = self._ask()
            self._complaint = ""
        except (SbusError, OSError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                report_error(self._complaint, command="sbusctl")
        yield from collect(snapshot)

    def _ask(self) -> Snapshot:
        with AdminConnection(
            address=self._address, timeout_seconds=ANSWER_SECONDS_MAX
        ) as connection:
            version = connection.ask(Version(), VersionResult)
            stats = connection.ask(Stats(), StatsResult)
            users = self._ask_users(connection)
        return Snapshot(version, stats, users, max(0, stats.users - len(users)))

    def _ask_users(self, connection: AdminConnection) -> list[UserReport]:
        users: list[UserReport] = []
        after: int | None = -1
        while after is not None and (left := self._users_max - len(users)) > 0:
            page = connection.ask(Users(after=after, limit=min(left, PAGE_MAX)), UsersResult)
            users += page.users
            after = page.next
        return users


def registry_of(collector: BusCollector) -> CollectorRegistry:
    """A registry with nothing but this collector."""
    registry = CollectorRegistry(support_collectors_without_names=True)
    registry.register(collector)
    return registry


def text(collector: BusCollector) -> bytes:
    """What it collects now, as OpenMetrics text."""
    content: bytes = generate_latest(registry_of(collector))  # type: ignore[no-untyped-call]
    return content
