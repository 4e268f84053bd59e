"""The client library for trio and asyncio; anyio finds out which of them runs."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, Unpack, overload

from sbus.client.async_link import AsyncLink
from sbus.client.connection import Connection
from sbus.client.link import Link
from sbus.client.message_queue import Losses, Lost
from sbus.client.options import LinkOptions
from sbus.protocol.packets import Message


@overload
def connect(
    address: str | None = None,
    *,
    losses: Literal["raise"] = "raise",
    **options: Unpack[LinkOptions],
) -> AbstractAsyncContextManager[Connection[Message]]: ...


@overload
def connect(
    address: str | None = None, *, losses: Literal["report"], **options: Unpack[LinkOptions]
) -> AbstractAsyncContextManager[Connection[Message | Lost]]: ...


def connect(
    address: str | None = None, *, losses: Losses = "raise", **options: Unpack[LinkOptions]
) -> AbstractAsyncContextManager[Connection[Any]]:
    """Connect to the bus at `address`. The default is `$SBUS_ADDRESS`, else the user's own bus at
    `$XDG_RUNTIME_DIR/sbus.socket`, else `/run/sbus.socket`.

    With `losses="report"` a gap in the messages is an item, `Lost`; otherwise it raises
    MessagesLost. For further options see `LinkOptions`. Leaving the block closes the connection.

    Raises AddressError, ConfigurationError, and Disconnected when the bus refuses the connection.
    """
    return _connected(address, losses, options)


@asynccontextmanager
async def _connected(
    address: str | None, losses: Losses, options: LinkOptions
) -> AsyncIterator[Connection[Any]]:
    bus = Connection[Any](AsyncLink(Link(address, losses, options)))
    try:
        await bus._io.open()
        yield bus
    finally:
        bus.close()
