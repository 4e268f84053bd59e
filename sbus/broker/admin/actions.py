"""Requests that are recorded with the administrator who made them.

Those that change something, and those that read the messages of others. Requests for figures, lists
and events are not: a monitoring system asks for them all the time.
"""

import socket
from typing import Any, Final

import msgspec

from sbus.broker.events.emitter import describe_process
from sbus.protocol import admin
from sbus.unix.credentials import peer_credentials
from sbus.unix.peer_process import peer_program

_CHANGES: Final = (
    *(admin.Kick, admin.Move, admin.Drain, admin.Limit, admin.Reload, admin.Upgrade),
    admin.TakeOver,
)
_ENVELOPE: Final = ("id", "version")
_ARGUMENTS_CHARACTERS_MAX = 200


def is_change(request: admin.Request) -> bool:
    """Whether a request changes something; `limit` without limits only asks for them."""
    return isinstance(request, _CHANGES) and getattr(request, "limits", True) != {}


def describe_request(request: admin.Request, sock: socket.socket) -> dict[str, Any]:
    """The fields of an event about this request of the administrator at the other end."""
    own = peer_credentials(sock)
    given = {
        name: value
        for name, value in msgspec.structs.asdict(request).items()
        if name not in _ENVELOPE and value not in (None, "") and value is not False
    }
    arguments = msgspec.json.encode(given).decode()[1:-1] if given else ""
    return {
        "who": describe_process(own, peer_program(sock, own.pid)),
        "arguments": arguments[:_ARGUMENTS_CHARACTERS_MAX],
    }
