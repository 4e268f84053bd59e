"""Publishing for `sbusctl pub --receipt`: each message with its receipt, which is printed."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sbus.cli.terminal.standard_output import write_json, write_line
from sbus.errors import NobodyListens

if TYPE_CHECKING:
    from sbus.client.blocking import Connection
    from sbus.protocol.packets import Message
    from sbus.protocol.receipts import Receipt


def publish_with_receipts(
    bus: "Connection[Message]", key: bytes, payloads: Iterable[bytes], *, as_json: bool
) -> None:
    """Publish one message after the other, and print a line for each. Raises PacketRefused for one
    that was refused, and at the end NobodyListens if nobody received one."""
    published, unheard = 0, 0
    for payload in payloads:
        receipt = bus.publish_with_receipt(key, payload)
        _show(receipt, as_json=as_json)
        published += 1
        unheard += not receipt.has_listeners
    if unheard:
        which = "" if published == 1 else f"; {unheard} of {published} messages had no receiver"
        name = key.decode(errors="backslashreplace")
        raise NobodyListens(f"nobody listens to messages under {name!r}{which}")


def _show(receipt: "Receipt", *, as_json: bool) -> None:
    if as_json:
        write_json(receipt)
    elif receipt.sent is None:
        write_line("unknown: a worker of the bus died")
    else:
        write_line(f"sent {receipt.sent}, waiting {receipt.waiting}, lost {receipt.lost}")
