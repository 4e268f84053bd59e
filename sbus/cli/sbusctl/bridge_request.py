"""Asking the bridge of a bus what it does."""

from sbus.bridge.own_keys import STATUS_KEY
from sbus.bridge.status import BridgeStatus, decode_status
from sbus.cli.sbusctl.shared_options import SelectedBus

_SECONDS = 5.0


def ask_bridge(selected: SelectedBus) -> BridgeStatus:
    """Raises SbusError, NobodyListens if there is none."""
    with selected.connect(_SECONDS) as bus:
        return decode_status(bus.request(STATUS_KEY, timeout_seconds=_SECONDS))
