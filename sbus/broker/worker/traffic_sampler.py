"""The traffic sampler: which clients of a busy worker cause its work, and with which others.

It is used for some milliseconds, before clients are moved, and looks at a bounded number of
deliveries. In between nothing is counted.
"""

from collections import Counter
from collections.abc import Iterable

from sbus.broker.delivery.fan_out_times import Recipient
from sbus.broker.ipc.worker_protocol import ClientTraffic, Exchange, TrafficSample
from sbus.broker.worker.publish_batch import PublishBatch
from sbus.broker.worker.router import Route
from sbus.broker.worker.session import Session

_DELIVERIES_MAX = 20_000
"""Some milliseconds of counting."""
_REPORTED_MAX = 512
"""Clients and exchanges in a sample, which has to fit a packet of a link."""


class TrafficSampler:
    """Counts for one sample."""

    def __init__(self) -> None:
        self._published: Counter[int] = Counter()
        self._received: Counter[Recipient] = Counter()
        self._exchanged: Counter[tuple[int, Recipient]] = Counter()
        self._deliveries_left = _DELIVERIES_MAX

    def published(self, batch: PublishBatch) -> None:
        """Messages of a client of this worker are about to be delivered."""
        if self._deliveries_left > 0:
            self._published[batch.session.client] += len(batch.messages)
        self.walked(batch.session.client, (route for _, _, route in batch.messages))

    def walked(self, publisher: int, routes: Iterable[Route]) -> None:
        """Messages of a client of any worker are about to be delivered."""
        for route in routes:
            if self._deliveries_left <= 0:
                return
            self._deliveries_left -= 1 + route.fan_out
            self._received.update(route.recipients)
            self._exchanged.update((publisher, recipient) for recipient in route.recipients)

    def sample(self, sessions: Iterable[Session]) -> TrafficSample:
        """What was counted of these clients."""
        owners: dict[Recipient, int] = {session.outbox: session.client for session in sessions}
        received = Counter(
            {owners[outbox]: count for outbox, count in self._received.items() if outbox in owners}
        )
        busiest = (self._published + received).most_common(_REPORTED_MAX)
        return TrafficSample(
            clients=[
                ClientTraffic(client, self._published[client], received[client])
                for client, _ in busiest
            ],
            exchanges=[
                Exchange(publisher, owners[outbox], messages)
                for (publisher, outbox), messages in self._exchanged.most_common(_REPORTED_MAX)
                if outbox in owners and owners[outbox] != publisher
            ],
        )
