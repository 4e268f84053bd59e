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
    losses: Literal["raise", "log"] | None = None,
    **options: Unpack[LinkOptions],
) -> AbstractAsyncContextManager[Connection[Message]]: ...


@overload
def connect(
    address: str | None = None, *, losses: Literal["report"], **options: Unpack[LinkOptions]
) -> AbstractAsyncContextManager[Connection[Message | Lost]]: ...


def connect(
    address: str | None = None, *, losses: Losses | None = None, **options: Unpack[LinkOptions]
) -> AbstractAsyncContextManager[Connection[Any]]:
    """Connect to the bus at `address`. The default is `$SBUS_ADDRESS`, else the user's own bus at
    `$XDG_RUNTIME_DIR/sbus.socket`, else `/run/sbus.socket`.

    A gap in the messages raises MessagesLost where it is, the default; with `losses="report"` it is
    an item, `Lost`; with "log", the default of `reconnect=True`, it is a warning of the logger
    `sbus`, and iteration goes on. For further options see `LinkOptions`. Leaving the block closes
    the connection.

    Returns when the bus has answered. Raises AddressError, ConfigurationError, and Disconnected
    when the bus refuses the connection.
    """
    return _connected(address, losses, options)


@asynccontextmanager
async def _connected(
    address: str | None, losses: Losses | None, options: LinkOptions
) -> AsyncIterator[Connection[Any]]:
    bus = Connection[Any](AsyncLink(Link(address, losses, options)))
    try:
        await bus._io.open()
        yield bus
    finally:
        bus.close()
