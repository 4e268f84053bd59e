"""sbus: a local message bus for busy multi-user Linux hosts.

    async with sbus.connect() as bus:              # asyncio or trio
        await bus.subscribe("lamps/*/state")
        async for message in bus:
            print(message.key, message.payload)

    with sbus.blocking.connect() as bus:           # plain Python, the same names
        bus.publish("lamps/3/state", "on")
        bus.sync()

Names are loaded when they are first used: `import sbus` alone does not load an event loop, so that
the daemon's processes and the command line tools start fast.
"""

import importlib
from typing import TYPE_CHECKING

from sbus.errors import (
    AddressError,
    BusError,
    ConfigurationError,
    ConnectionInterrupted,
    Disconnected,
    GroupRefused,
    MessagesLost,
    MessagesUnconfirmed,
    NobodyListens,
    PacketRefused,
    PatternWarning,
    ProtocolViolation,
    RequestFailed,
    SbusError,
)
from sbus.version import __version__

if TYPE_CHECKING:
    from sbus import blocking
    from sbus.client.asynchronous import connect
    from sbus.client.connection import Connection
    from sbus.client.inbox import InboxFull, InboxStatistics
    from sbus.client.message_queue import Lost, NotKept, Reconnected
    from sbus.client.requests import Identity
    from sbus.protocol.packets import Message, Sender
    from sbus.protocol.presence import Member, MemberChange
    from sbus.protocol.receipts import Receipt

__all__ = [
    "AddressError",
    "BusError",
    "ConfigurationError",
    "Connection",
    "ConnectionInterrupted",
    "Disconnected",
    "GroupRefused",
    "Identity",
    "InboxFull",
    "InboxStatistics",
    "Lost",
    "Member",
    "MemberChange",
    "Message",
    "MessagesLost",
    "MessagesUnconfirmed",
    "NobodyListens",
    "NotKept",
    "PacketRefused",
    "PatternWarning",
    "ProtocolViolation",
    "Receipt",
    "Reconnected",
    "RequestFailed",
    "SbusError",
    "Sender",
    "__version__",
    "blocking",
    "connect",
]

_HOMES = {
    "Connection": "sbus.client.connection",
    "Identity": "sbus.client.requests",
    "InboxFull": "sbus.client.inbox",
    "InboxStatistics": "sbus.client.inbox",
    "Lost": "sbus.client.message_queue",
    "Member": "sbus.protocol.presence",
    "MemberChange": "sbus.protocol.presence",
    "Message": "sbus.protocol.packets",
    "NotKept": "sbus.client.message_queue",
    "Receipt": "sbus.protocol.receipts",
    "Reconnected": "sbus.client.message_queue",
    "Sender": "sbus.protocol.packets",
    "connect": "sbus.client.asynchronous",
}


def __getattr__(name: str) -> object:
    if name == "blocking":
        return importlib.import_module("sbus.blocking")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # it is looked for here no more
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
