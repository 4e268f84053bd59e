"""A tally: what comes of one message for some recipients, which is compared with before."""

from collections.abc import Iterable

from sbus.broker.delivery.fan_out_times import Recipient
from sbus.protocol.receipts import Counts


class Tally:
    """Made before a message is delivered to these recipients."""

    def __init__(self, recipients: Iterable[Recipient]) -> None:
        outboxes = (recipient.outbox for recipient in recipients)
        self._before = [(it, it.progress()) for it in outboxes if it is not None]

    def counts(self) -> Counts:
        """Behind the delivery. Clients that have left are not counted."""
        sent = waiting = lost = 0
        for outbox, (accepted, delivered_bytes, kept) in self._before:
            now_accepted, now_delivered_bytes, now_kept = outbox.progress()
            if now_accepted == accepted or outbox.leaves_undelivered:
                continue
            if now_delivered_bytes > delivered_bytes:
                sent += 1
            elif now_kept > kept:
                waiting += 1
            else:
                lost += 1
        return Counts(sent, waiting, lost)
