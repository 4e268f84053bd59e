"""Asking the bridge of a bus for its status."""

from typing import Any

from sbus.bridge.own_keys import NAME, STATUS_KEY
from sbus.bridge.status import BridgeStatus, decode_status
from sbus.cli.sbusctl.shared_options import SelectedBus
from sbus.client.blocking import Connection
from sbus.errors import NobodyListens

_SECONDS = 5.0


def ask_bridge(selected: SelectedBus) -> BridgeStatus:
    """Raises SbusError, NobodyListens if there is no bridge, and TimeoutError."""
    with selected.connect(_SECONDS) as bus:
        return decode_status(request_status(bus))


def request_status(bus: Connection[Any]) -> bytes:
    """The answer of the first member, by user id, that has the name of a bridge and listens. Only
    its process receives the request. Raises the same."""
    for member in bus.members(f"*/{NAME}", timeout_seconds=_SECONDS):
        key = b"!/cred/%d/%d/%d/%b" % (member.gid, member.uid, member.pid, STATUS_KEY)
        try:
            return bus.request(key, timeout_seconds=_SECONDS)
        except NobodyListens:
            continue
    raise NobodyListens("this bus has no bridge")
