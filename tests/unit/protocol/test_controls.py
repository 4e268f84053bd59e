"""The notice of an error, whatever its text."""

from sbus.protocol import controls
from sbus.protocol.packets import ControlMessage, parse_server_packet


def test_an_error_notice_carries_any_text() -> None:
    packet = controls.error_notice("reserved", "schlüssel \udcff")
    assert parse_server_packet(packet) == ControlMessage(
        b"!/error", "reserved schlüssel \\udcff".encode()
    )
